"""Packages around torch, each by what people call first."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from covered.habit_programs.habit import batch, habit, net, train


def _rows() -> Any:
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(128, 256)), 16)


@habit("accelerate", is_sampled=True)
def accelerate_loop() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer, rows = accelerator.prepare(model, optimizer, _rows())
    for (x,) in rows:
        with accelerator.accumulate(model):
            loss = model(x).square().mean()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    accelerator.gather(loss)
    accelerator.wait_for_everyone()
    accelerator.save_state("state")
    accelerator.unwrap_model(model)


@habit("accelerate")
def accelerate_offloads() -> None:
    from accelerate import cpu_offload, dispatch_model

    placed = dispatch_model(net(), {"0": 0, "1": 0, "2": "cpu"})
    assert placed(batch()).shape == (32, 10)
    assert cpu_offload(net(), torch.device("cuda:0"))(batch()).shape == (32, 10)


@habit("lightning")
def lightning_trainer() -> None:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def training_step(self, rows: Any, index: int) -> Any:
            loss = self.net(rows[0]).square().mean()
            self.log("loss", loss, prog_bar=True)
            return loss

        def validation_step(self, rows: Any, index: int) -> None:
            self.log("value", self.net(rows[0]).mean())

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters())

    trainer = lightning.Trainer(
        accelerator="gpu", devices=1, precision="bf16-mixed", max_epochs=2,
        default_root_dir="lightning", logger=False, enable_checkpointing=True,
    )  # fmt: skip
    trainer.fit(Module(), _rows(), _rows())


@habit("lightning")
def lightning_fabric() -> None:
    import lightning

    fabric = lightning.Fabric(accelerator="cuda", devices=1, precision="16-mixed")
    fabric.launch()
    model = net()
    model, optimizer = fabric.setup(model, torch.optim.Adam(model.parameters()))
    for _ in range(3):
        fabric.backward(model(batch(8)).square().mean())
        optimizer.step()
        optimizer.zero_grad()


@habit("torchmetrics")
def torchmetrics_accuracy() -> None:
    import torchmetrics

    accuracy = torchmetrics.Accuracy("multiclass", num_classes=10).cuda()
    accuracy(torch.randn(8, 10, device="cuda"), torch.randint(0, 10, (8,), device="cuda"))
    assert 0 <= accuracy.compute().item() <= 1


@habit("peft")
def peft_lora() -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    config = LoraConfig(r=8, target_modules=["c_attn"], task_type="CAUSAL_LM", fan_in_fan_out=True)
    base = GPT2LMHeadModel(GPT2Config(n_layer=2, vocab_size=1000))
    model = get_peft_model(base, config).cuda()
    ids = torch.randint(0, 1000, (2, 64), device="cuda")
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    for _ in range(3):
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def _torchao(config: str, **options: Any) -> None:
    from torchao import quantization

    model = net().cuda().bfloat16().eval()
    quantization.quantize_(model, getattr(quantization, config)(**options))
    assert model(batch(dtype=torch.bfloat16)).shape == (32, 10)


@habit("torchao")
def torchao_int8() -> None:
    _torchao("Int8WeightOnlyConfig")


@habit("torchao")
def torchao_int8_with_dynamic_activations() -> None:
    _torchao("Int8DynamicActivationInt8WeightConfig")


@habit("torchao")
def torchao_float8() -> None:
    _torchao("Float8DynamicActivationFloat8WeightConfig")


@habit("torchao", "mslk")
def torchao_int4() -> None:
    _torchao("Int4WeightOnlyConfig", group_size=128)


@habit("torchao")
def torchao_trains_in_float8() -> None:
    from torchao.float8 import convert_to_float8_training

    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)).cuda().bfloat16()
    convert_to_float8_training(model)
    train(model, batch(dtype=torch.bfloat16))


@habit("bitsandbytes")
def bitsandbytes_in_eight_bits() -> None:
    import bitsandbytes

    layer = bitsandbytes.nn.Linear8bitLt(256, 256, has_fp16_weights=False).cuda()
    assert layer(batch(4, dtype=torch.float16)).shape == (4, 256)


@habit("bitsandbytes")
def bitsandbytes_in_four_bits() -> None:
    import bitsandbytes

    layer = bitsandbytes.nn.Linear4bit(256, 256, compute_dtype=torch.bfloat16).cuda()
    assert layer(batch(4, dtype=torch.bfloat16)).shape == (4, 256)


@habit("bitsandbytes")
def bitsandbytes_adam() -> None:
    import bitsandbytes

    model = net().cuda()
    train(model, optimizer=bitsandbytes.optim.Adam8bit(model.parameters()))


@habit("bitsandbytes", "transformers", "accelerate")
def pretrained_in_four_bits() -> None:
    import bitsandbytes  # noqa: F401
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig, GPT2Config, GPT2LMHeadModel

    GPT2LMHeadModel(GPT2Config(n_layer=2, vocab_size=1000)).save_pretrained("gpt2")
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)
    model = AutoModelForCausalLM.from_pretrained(
        "gpt2", quantization_config=config, device_map="cuda"
    )
    model(torch.randint(0, 100, (2, 8), device="cuda"))


@habit("flash_attn")
def flash_attn_package() -> None:
    from flash_attn import flash_attn_func

    q = torch.randn(2, 128, 4, 64, device="cuda", dtype=torch.bfloat16)
    assert flash_attn_func(q, q, q, causal=True).shape == q.shape


@habit("xformers")
def xformers_package() -> None:
    import xformers.ops

    q = torch.randn(2, 128, 4, 64, device="cuda", dtype=torch.bfloat16)
    assert xformers.ops.memory_efficient_attention(q, q, q).shape == q.shape


@habit("timm", "torchvision")
def timm_model() -> None:
    import timm

    model = timm.create_model("swin_tiny_patch4_window7_224").cuda()
    model(torch.randn(2, 3, 224, 224, device="cuda")).sum().backward()


@habit("torchvision")
def retinanet_of_torchvision() -> None:
    _detects("retinanet_resnet50_fpn")


@habit("torchvision")
def faster_rcnn_of_torchvision() -> None:
    _detects("fasterrcnn_resnet50_fpn")


def _detects(name: str) -> None:
    from torchvision.models import detection

    model = getattr(detection, name)(weights=None, weights_backbone=None).cuda().train()
    target = {
        "boxes": torch.tensor([[10.0, 10, 50, 50]], device="cuda"),
        "labels": torch.tensor([1], device="cuda"),
    }
    losses = model([torch.rand(3, 300, 300, device="cuda")], [target])
    sum(losses.values()).backward()


@habit("torchvision")
def transforms_on_the_gpu() -> None:
    from torchvision.transforms import v2

    change = v2.Compose(
        [v2.RandomHorizontalFlip(), v2.Resize(64), v2.Normalize([0.5] * 3, [0.5] * 3)]
    )
    assert change(torch.rand(4, 3, 128, 128, device="cuda")).shape[-1] == 64


@habit("diffusers", "requests")
def diffusers_unet() -> None:
    from diffusers import DDPMScheduler, UNet2DModel

    model = UNet2DModel(
        64,
        block_out_channels=(64, 128),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ).cuda()
    schedule = DDPMScheduler()
    x = torch.randn(2, 3, 64, 64, device="cuda")
    t = torch.randint(0, 1000, (2,), device="cuda")
    F.mse_loss(model(schedule.add_noise(x, x, t), t).sample, x).backward()


@habit("cupy")
def cupy_arrays() -> None:
    import cupy

    assert torch.as_tensor(cupy.asarray(batch(2, 2))).is_cuda


@habit("einops")
def einops_patterns() -> None:
    from einops import rearrange, reduce, repeat
    from einops.layers.torch import Rearrange

    x = torch.rand(2, 3, 32, 32, device="cuda")
    patches = rearrange(x, "b c (h p) (w q) -> b (h w) (p q c)", p=8, q=8)
    assert patches.shape == (2, 16, 192)
    assert reduce(x, "b c h w -> b c", "mean").shape == (2, 3)
    assert repeat(x[0], "c h w -> n c h w", n=4).shape[0] == 4
    assert Rearrange("b c h w -> b (c h w)")(x).shape == (2, 3072)


@habit("tqdm")
def progress_bars() -> None:
    from tqdm import tqdm

    model = net().cuda()
    bar = tqdm(range(3))
    for _ in bar:
        bar.set_postfix(loss=f"{train(model, steps=1):.3f}")
