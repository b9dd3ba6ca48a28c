"""Packages that people train with are imported inside a forecast, and do one small thing there."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import neusight


def package(name: str) -> Any:
    """The package, imported here; the test is skipped, with the reason, where it cannot be."""
    try:
        return importlib.import_module(name)
    except (ImportError, OSError, RuntimeError) as error:
        pytest.skip(f"{name} cannot be imported: {error}")


@contextmanager
def forecast() -> Iterator[Any]:
    """A forecast in which packages may warn of what they like."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with neusight.forecast_on("H100") as opened:
            yield opened


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def small_gpt2() -> Any:
    transformers = package("transformers")
    config = transformers.GPT2Config(
        n_layer=1, n_embd=32, n_head=2, vocab_size=64, bos_token_id=1, eos_token_id=2
    )
    return transformers.GPT2LMHeadModel(config)


def words() -> torch.Tensor:
    return torch.randint(3, 60, (2, 8), device="cuda")


def test_peft_trains_low_rank_weights() -> None:
    with forecast() as opened:
        peft = package("peft")
        settings = peft.LoraConfig(target_modules=["c_attn"], r=4)
        model = peft.get_peft_model(small_gpt2().to("cuda"), settings)
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained)
        ids = words()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        assert all(p.grad is not None for p in trained)
        assert {p.shape[0] for p in trained} == {4, 96}

    assert opened.steps


def test_the_trainer_is_imported_with_bitsandbytes_there() -> None:
    package("bitsandbytes")
    with forecast():
        trainer = package("transformers").Trainer
        torch.ones(1, device="cuda").add_(1)
        assert trainer.__name__ == "Trainer"


def test_bitsandbytes_multiplies_by_weights_of_four_and_eight_bits() -> None:
    with forecast() as opened:
        bnb = package("bitsandbytes")
        data = torch.randn(4, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        four = bnb.nn.Linear4bit(64, 32, compute_dtype=torch.bfloat16).to("cuda")
        assert (four.weight.shape, four.weight.dtype) == ((1024, 1), torch.uint8)
        out = four(data)
        out.sum().backward()
        assert data.grad is not None and data.grad.shape == (4, 64)
        eight = bnb.nn.Linear8bitLt(32, 16, has_fp16_weights=False).to("cuda")
        assert eight(out.half()).shape == (4, 16)

    assert opened.kernels


def test_an_optimizer_of_bitsandbytes_keeps_states_of_eight_bits() -> None:
    with forecast():
        bnb = package("bitsandbytes")
        parameter = torch.nn.Parameter(torch.randn(8192, device="cuda"))
        optimizer = bnb.optim.AdamW8bit([parameter])
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        assert optimizer.state[parameter]["state1"].dtype is torch.uint8


def test_accelerate_prepares_a_step_in_mixed_precision() -> None:
    with forecast() as opened:
        accelerator = package("accelerate").Accelerator(mixed_precision="bf16")
        model = torch.nn.Linear(8, 8)
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
        accelerator.backward(model(torch.randn(4, 8, device=accelerator.device)).sum())
        optimizer.step()
        assert accelerator.device.type == "cuda"

    assert any(kernel.dtype == "bfloat16" for kernel, _ in opened.kernels)


def test_torchao_makes_weights_of_eight_bits() -> None:
    with forecast() as opened:
        quantization = package("torchao.quantization")
        model = torch.nn.Sequential(torch.nn.Linear(64, 64)).to("cuda", torch.bfloat16)
        quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
        assert model(torch.randn(4, 64, device="cuda", dtype=torch.bfloat16)).shape == (4, 64)

    assert opened.kernels


def test_diffusers_trains_a_step_of_a_unet() -> None:
    with forecast() as opened:
        diffusers = package("diffusers")
        try:
            unet = diffusers.UNet2DModel
        except (ImportError, RuntimeError) as error:
            pytest.skip(f"diffusers.UNet2DModel cannot be imported: {error}")
        model = unet(
            sample_size=16,
            block_out_channels=(32, 64),
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
            layers_per_block=1,
        ).to("cuda")
        optimizer = torch.optim.AdamW(model.parameters())
        images = torch.randn(2, 3, 16, 16, device="cuda")
        noise, times = torch.randn_like(images), torch.randint(0, 1000, (2,), device="cuda")
        noisy = diffusers.DDPMScheduler().add_noise(images, noise, times)
        predicted = model(noisy, times).sample
        torch.nn.functional.mse_loss(predicted, noise).backward()
        optimizer.step()
        assert predicted.shape == images.shape

    assert opened.steps


def test_a_model_of_timm_classifies() -> None:
    with forecast():
        model = package("timm").create_model("resnet18", num_classes=10).to("cuda").eval()
        with torch.no_grad():
            assert model(torch.randn(2, 3, 64, 64, device="cuda")).shape == (2, 10)


def test_safetensors_are_read_to_the_gpu(tmp_path: Path) -> None:
    saved = package("safetensors.torch")
    saved.save_file({"weight": torch.ones(4, 2)}, tmp_path / "weights.safetensors")
    with forecast():
        found = saved.load_file(tmp_path / "weights.safetensors", device="cuda")
        assert (found["weight"].device.type, found["weight"].shape) == ("cuda", (4, 2))
        assert float((found["weight"] + 1).sum()) == 16


@pytest.mark.parametrize("name", ["xformers", "sentence_transformers", "datasets", "optimum"])
def test_a_package_can_be_imported(name: str) -> None:
    with forecast():
        torch.ones(1, device="cuda").add_(1)
        assert package(name).__name__ == name
