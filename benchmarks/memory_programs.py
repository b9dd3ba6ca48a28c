"""The programs whose peak of memory was measured, each written as what it was measured on ran.

Liveness is the point here: what is held when the peak is reset counts, also a model that the script
built and did not run. Each function sets a program up inside a forecast and returns what one of its
runs does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from operator_chains import CHAINS, pass_of
from torch import Tensor, nn

Program = Callable[[dict[str, Any]], Callable[[], object]]

aten: Any = torch.ops.aten


def _dtype(settings: dict[str, Any]) -> torch.dtype:
    found: torch.dtype = getattr(torch, settings["dtype"].removeprefix("torch."))
    return found


# -- operator chains: Liger-Kernel's benchmark/scripts/benchmark_*.py of 2024 and 2025 -----------


@contextmanager
def _on_the_host() -> Iterator[None]:
    """Models made here are moved to the GPU whole."""
    with torch.device("cpu"):
        yield


def _both_threads_multiply() -> None:
    """Takes the workspaces that the script's earlier runs, of speed, left to cuBLAS."""
    left = torch.ones(1, 1, requires_grad=True)
    (left @ torch.ones(1, 1)).backward()


def _multiplies_forward() -> None:
    """Takes the workspace of one thread: angles are a product of positions and frequencies."""
    torch.ones(1, 1) @ torch.ones(1, 1)


def _chain(name: str, prepare: Callable[[], None] = lambda: None) -> Program:
    """A chain whose speed was measured too; all that its script holds is held."""

    def program(settings: dict[str, Any]) -> Callable[[], object]:
        prepare()
        chain = CHAINS[name](settings)
        call = pass_of(chain, settings["mode"])

        def run(kept: tuple[Tensor, ...] = chain.held) -> None:
            call()

        return run

    return program


_CHAINS: dict[str, Program] = {
    "cross_entropy": _chain("cross_entropy"),
    "embedding": _chain("embedding"),
    "fused_linear_cross_entropy": _chain("fused_linear_cross_entropy"),
    "geglu": _chain("geglu", _both_threads_multiply),
    "layer_norm": _chain("layer_norm"),
    "rms_norm": _chain("rms_norm"),
    "rope": _chain("rope", _multiplies_forward),
}


def softmax(settings: dict[str, Any]) -> Callable[[], object]:
    """One row: the script of that time made a vector of N where its settings say M rows."""
    row = torch.randn(settings["N"], dtype=_dtype(settings), requires_grad=True)

    def full() -> None:
        found = row.softmax(-1)
        found.backward(torch.ones_like(found), retain_graph=True)

    return full


# -- models --------------------------------------------------------------------------------------


@contextmanager
def torch_before_1_11() -> Iterator[None]:
    """Softmax and log-softmax keep their input for the gradient, as they did until torch 1.10
    (of which their backward only read the dtype; pytorch pull request 67586)."""
    softmax, cross_entropy = F.softmax, F.cross_entropy

    def old_softmax(input: Tensor, dim: int = -1, **others: Any) -> Tensor:
        return _kept(input, dim, aten._softmax.default, aten._softmax_backward_data.default)

    def old_cross_entropy(input: Tensor, target: Tensor, **others: Any) -> Tensor:
        backward = aten._log_softmax_backward_data.default
        return F.nll_loss(_kept(input, 1, aten._log_softmax.default, backward), target)

    F.softmax, F.cross_entropy = old_softmax, old_cross_entropy  # type: ignore[assignment]
    try:
        yield
    finally:
        F.softmax, F.cross_entropy = softmax, cross_entropy


def _kept(input: Tensor, dim: int, forward: Any, backward: Any) -> Tensor:
    wide = input.float() if torch.is_autocast_enabled("cuda") else input
    found: Tensor = _KeepsItsInput.apply(wide, dim, forward, backward)
    return found


class _KeepsItsInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, dim: int, forward: Any, backward: Any) -> Tensor:
        found: Tensor = forward(input, dim, False)
        ctx.save_for_backward(input, found)
        ctx.rest = (dim, backward)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        input, found = ctx.saved_tensors
        dim, backward = ctx.rest
        return backward(gradient, found, dim, input.dtype), None, None, None


def bert_mlm(settings: dict[str, Any]) -> Callable[[], object]:
    """BERT-base of so many layers for masked words, a forward and a backward pass, in eval mode as
    transformers' benchmark ran it in July 2020."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(num_hidden_layers=settings["layers"], attn_implementation="eager")
    with _on_the_host():
        model: nn.Module = BertForMaskedLM(config).eval()
    model.cuda()
    tokens = torch.randint(config.vocab_size, (8, 512))
    return lambda: model(input_ids=tokens, labels=tokens)[0].backward()


def bert_inference(settings: dict[str, Any]) -> Callable[[], object]:
    """BERT-base without a head, or with another width or depth, on eight sequences."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=settings.get("hidden", 768), num_hidden_layers=settings.get("layers", 12),
        attn_implementation="eager",
    )  # fmt: skip
    with _on_the_host():
        model: nn.Module = BertModel(config).eval()
    model.cuda()
    tokens = torch.randint(config.vocab_size, (8, settings["length"]))

    def infer() -> None:
        with torch.no_grad():
            model(tokens)

    return infer


def bert_large(settings: dict[str, Any]) -> Callable[[], object]:
    """BERT-large for classification as transformers' Trainer took its steps in 2022."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
        attn_implementation="eager", use_cache=False,
    )  # fmt: skip
    with _on_the_host():
        model: Any = BertForSequenceClassification(config).train()
    model.cuda()
    if settings.get("checkpoints"):
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    half, rounds = bool(settings.get("half")), settings.get("rounds", 1)
    scaler = torch.amp.GradScaler("cuda", enabled=half)

    def step() -> None:
        for _ in range(rounds):
            tokens = torch.randint(100, 30000, (settings["batch"], 512))
            labels = torch.zeros(settings["batch"], dtype=torch.long)
            with torch.autocast("cuda", dtype=torch.float16, enabled=half):
                loss = model(input_ids=tokens, labels=labels).loss / rounds
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        scaler.step(optimizer)
        scaler.update()
        model.zero_grad(set_to_none=False)

    return step


def titan_llama(settings: dict[str, Any]) -> Callable[[], object]:
    """Llama 3.1 8B as TorchTitan trained it in December 2024: FSDP2 in bf16 with FP32 reductions,
    every second product and attention saved for the backward pass, fused AdamW."""
    from recipes import llama
    from torch import distributed
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if not distributed.is_initialized():
        distributed.init_process_group(
            "fake", rank=0, world_size=settings["ranks"], store=FakeStore()
        )
    shape = (settings["batch"], settings["length"])
    with torch.device("meta"):
        model = llama.Llama("llama3-8b", settings["length"])
    llama.recompute(model, "op")
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.layers:
        is_last = block is model.layers[-1]
        fully_shard(block, mp_policy=policy, reshard_after_forward=not is_last)
    fully_shard(model, mp_policy=policy)
    model.to_empty(device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)

    def step() -> None:
        tokens, labels = (torch.randint(128256, shape) for _ in range(2))
        optimizer.zero_grad()
        found = model(tokens)
        loss = llama.loss_of(found, labels)
        del found
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()

    return step


class _SamAttention(nn.Module):
    """With the position bias decomposed into rows and columns, added to the scores one by one."""

    def __init__(self, width: int, side: int) -> None:
        super().__init__()
        self.heads = 16
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.rows, self.columns = (
            nn.Parameter(torch.zeros(2 * side - 1, width // self.heads)) for _ in range(2)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        batch, side, _, width = hidden.shape
        split = self.qkv(hidden).reshape(batch, side * side, 3, self.heads, -1)
        folded = split.permute(2, 0, 3, 1, 4).reshape(3, batch * self.heads, side * side, -1)
        query, key, value = folded.unbind(0)
        scores = (query * (width // self.heads) ** -0.5) @ key.transpose(-2, -1)
        scores = self._with_positions(scores, query, side)
        scores = scores.softmax(dim=-1)
        mixed = (scores @ value).view(batch, self.heads, side, side, -1).permute(0, 2, 3, 1, 4)
        found: Tensor = self.proj(mixed.reshape(batch, side, side, -1))
        return found

    def _with_positions(self, scores: Tensor, query: Tensor, side: int) -> Tensor:
        places = torch.arange(side)[:, None] - torch.arange(side)[None, :] + side - 1
        by_row, by_column = self.rows[places.long()], self.columns[places.long()]
        images = query.reshape(query.shape[0], side, side, -1)
        row_bias = torch.einsum("bhwc,hkc->bhwk", images, by_row)
        column_bias = torch.einsum("bhwc,wkc->bhwk", images, by_column)
        grid = scores.view(-1, side, side, side, side)
        grid = grid + row_bias[:, :, :, :, None] + column_bias[:, :, :, None, :]
        return grid.view(-1, side * side, side * side)


class _SamBlock(nn.Module):
    def __init__(self, width: int, window: int) -> None:
        super().__init__()
        self.window = window
        self.norm1, self.norm2 = (nn.LayerNorm(width, eps=1e-6) for _ in range(2))
        self.attn = _SamAttention(width, window or 64)
        self.lin1, self.lin2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        shortcut, side = hidden, hidden.shape[1]
        hidden = self.norm1(hidden)
        if not self.window:
            hidden = self.attn(hidden)
        else:
            count = -(-side // self.window)
            missing = count * self.window - side
            hidden = F.pad(hidden, (0, 0, 0, missing, 0, missing))
            hidden = hidden.view(-1, count, self.window, count, self.window, hidden.shape[-1])
            hidden = hidden.permute(0, 1, 3, 2, 4, 5).contiguous().flatten(0, 2)
            hidden = self.attn(hidden).view(-1, count, count, *hidden.shape[1:])
            hidden = hidden.permute(0, 1, 3, 2, 4, 5).contiguous().flatten(3, 4).flatten(1, 2)
            hidden = hidden[:, :side, :side, :].contiguous()
        hidden = shortcut + hidden
        found: Tensor = hidden + self.lin2(F.gelu(self.lin1(self.norm2(hidden))))
        return found


def sam(settings: dict[str, Any]) -> Callable[[], object]:
    """The image encoder of Segment Anything's ViT-H, eager; its decoder, which runs on the 64 x 64
    features, is left out."""
    width, dtype = 1280, _dtype(settings)
    whole = (7, 15, 23, 31)
    patches = nn.Conv2d(3, width, 16, 16, dtype=dtype)
    positions = nn.Parameter(torch.zeros(1, 64, 64, width, dtype=dtype))
    blocks = nn.Sequential(*(_SamBlock(width, 0 if i in whole else 14) for i in range(32)))
    blocks.to(dtype).eval()
    neck = nn.Sequential(
        nn.Conv2d(width, 256, 1, bias=False), nn.Conv2d(256, 256, 3, padding=1, bias=False)
    ).to(dtype)
    images = torch.randn(settings["batch"], 3, 1024, 1024, dtype=dtype)

    def encode() -> None:
        with torch.no_grad():
            hidden = patches(images).permute(0, 2, 3, 1) + positions
            neck(blocks(hidden).permute(0, 3, 1, 2))

    return encode


def gpt_fast_llama(settings: dict[str, Any]) -> Callable[[], object]:
    """Llama 2 7B in bf16 with the keys and values of 208 tokens: a prompt of 6, then a token a
    step."""
    from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

    config = LlamaConfig(
        vocab_size=32000, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32,
        num_attention_heads=32, num_key_value_heads=32, attn_implementation="sdpa",
        dtype=torch.bfloat16,
    )  # fmt: skip
    with _on_the_host():
        model: Any = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    model.cuda()
    cache = StaticCache(config=config, max_cache_len=208)

    def generate() -> None:
        with torch.no_grad():
            for length in (6, 1, 1):
                model(input_ids=torch.zeros(1, length, dtype=torch.long), past_key_values=cache)

    return generate


def _flash() -> Any:
    """What torch 2.6 chose on an H100, where today's takes cuDNN's."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(SDPBackend.FLASH_ATTENTION)


def bert_small(settings: dict[str, Any]) -> Callable[[], object]:
    """BERT-small for masked words in bf16, one text of 141 tokens."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        hidden_size=512, num_hidden_layers=4, num_attention_heads=8, intermediate_size=2048
    )
    with _on_the_host():
        model: nn.Module = BertForMaskedLM(config).eval()
    model.to("cuda", torch.bfloat16)
    tokens = torch.randint(config.vocab_size, (1, 141))
    mask = torch.ones_like(tokens)

    def infer() -> None:
        with _flash(), torch.inference_mode():
            model(input_ids=tokens, attention_mask=mask)

    return infer


def vit_base(settings: dict[str, Any]) -> Callable[[], object]:
    """ViT-base in bf16, four images."""
    from transformers import ViTConfig, ViTModel

    with _on_the_host():
        model: nn.Module = ViTModel(ViTConfig()).eval()
    model.to("cuda", torch.bfloat16)
    images = torch.randn(4, 3, 224, 224, dtype=torch.bfloat16)

    def infer() -> None:
        with _flash(), torch.inference_mode():
            model(pixel_values=images)

    return infer


_VGG16 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)


def vgg16(settings: dict[str, Any]) -> Callable[[], object]:
    """VGG-16 as timm has it, trained as its benchmark.py does."""
    layers: list[nn.Module] = []
    channels = 3
    for width in _VGG16:
        if width:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        else:
            layers.append(nn.MaxPool2d(2, 2))
    head = [nn.Conv2d(512, 4096, 7), nn.ReLU(inplace=True), nn.Dropout(0.0)]
    head += [nn.Conv2d(4096, 4096, 1), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(4096, 1000)]
    return _timm_training(nn.Sequential(*layers, *head), settings["batch"])


def beit_base(settings: dict[str, Any]) -> Callable[[], object]:
    """BEiT-base with 16 x 16 patches, eager attention, trained as timm's benchmark.py does."""
    from transformers import BeitConfig, BeitForImageClassification
    from transformers.models.beit import modeling_beit

    # It keeps an index between models, which would be a tensor of another forecast.
    bias: Any = modeling_beit.BeitRelativePositionBias
    index = bias.generate_relative_position_index
    bias.generate_relative_position_index = staticmethod(getattr(index, "__wrapped__", index))
    config = BeitConfig(
        use_relative_position_bias=True, layer_scale_init_value=0.1, num_labels=1000,
        attn_implementation="eager",
    )  # fmt: skip
    model: Any = BeitForImageClassification(config)
    return _timm_training(model, settings["batch"])


def _timm_training(model: nn.Module, batch: int) -> Callable[[], object]:
    torch.backends.cudnn.benchmark = True
    model.train()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=1e-4, momentum=0.9, nesterov=True, foreach=False
    )
    images, labels = torch.randn(batch, 3, 224, 224), torch.randint(1000, (batch,))

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast("cuda", dtype=torch.float16):
            found = model(images)
            loss = F.cross_entropy(getattr(found, "logits", found), labels)
        loss.backward()
        optimizer.step()

    return step


PROGRAMS: dict[str, Program] = _CHAINS | {
    program.__name__: program
    for program in (
        beit_base, bert_inference, bert_large, bert_mlm, bert_small, gpt_fast_llama, sam, softmax,
        titan_llama, vgg16, vit_base,
    )
}  # fmt: skip
