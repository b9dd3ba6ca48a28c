"""The registry against torch itself and whole models: every op of a kind is mapped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import neusight
from neusight.ops import is_mapped, kernels_of
from neusight.recording.recording import MathMode, OpSignature, TensorSpec

MATH = MathMode()


# -- breadth ---------------------------------------------------------------------------------------


def aten_overloads() -> Iterator[Any]:
    """Every aten overload that a dispatch mode can meet."""
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        if namespace != "aten":
            continue
        packet, _, overload = rest.partition(".")
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"):
            continue
        found = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
        if found is not None:
            yield found


def unmapped(overloads: list[Any]) -> list[str]:
    names = {(o._schema.name, o._schema.overload_name or "default") for o in overloads}
    return sorted({op for op, overload in names if not is_mapped(op, overload)})


@pytest.mark.parametrize("tag", ["pointwise", "reduction"])
def test_every_op_that_torch_tags_is_mapped(tag: str) -> None:
    wanted = getattr(torch.Tag, tag, None)
    overloads = [o for o in aten_overloads() if wanted in o.tags]

    assert unmapped(overloads) == []


def test_every_view_launches_nothing() -> None:
    def is_view(overload: Any) -> bool:
        aliases = [a.alias_info for a in overload._schema.arguments if a.alias_info is not None]
        return any(not alias.is_write for alias in aliases)

    views = [overload for overload in aten_overloads() if is_view(overload)]
    x = TensorSpec((4,), (1,), "float32")

    assert unmapped(views) == []
    for overload in views:
        call = OpSignature(overload._schema.name, "default", (("self", x),), (x,))
        assert kernels_of(call, MATH) == (), overload


def test_what_is_left_out_is_known() -> None:
    """Sparse, quantized, nested, MPS and MKL-DNN ops fall back; anything else is a gap."""
    left_out = [
        "sparse",
        "mkldnn",
        "mps",
        "quantized",
        "nested",
        "nnpack",
        "for_cpu",
        "cpu_fallback",
        "_test_",
        "triton",
        "cslt_compress",
        "coo",
        "csr",
        "lstm_mps",
        "dyn_quant",
        "int4pack",
        "histogramdd",
        "coalesce",
        "spdiags",
        "spsolve",
        "sspaddmm",
        "hspmm",
        "semi_",
        "per_channel",
        "per_tensor",
        "philox",
        "from_file",
        "_foobar",
        "compressed",
        "helper_functional",
        "q_",
        "to_dense",
    ]

    gaps = [op for op in unmapped(list(aten_overloads())) if not any(k in op for k in left_out)]

    assert gaps == []


# -- models ----------------------------------------------------------------------------------------


def train(
    model: nn.Module,
    loss: Callable[[], torch.Tensor],
    optimizer: str = "AdamW",
    **options: Any,
) -> None:
    """Two steps with clipped gradients."""
    stepper = getattr(torch.optim, optimizer)(model.parameters(), **options)
    for _ in range(2):
        loss().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        stepper.step()
        stepper.zero_grad()


def mean_output(model: nn.Module, embedding: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """A loss for a recurrent model."""
    result: torch.Tensor = model(embedding(tokens))[0].mean()
    return result


def assert_all_mapped(program: Callable[[], Any]) -> None:
    with neusight.forecast_on("H100") as forecast:
        program()

    assert list(forecast.unmapped) == []


TINY = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
TINY_GPT2 = {"vocab_size": 64, "n_embd": 32, "n_layer": 1, "n_head": 2}
TINY_T5 = {
    "vocab_size": 64,
    "d_model": 32,
    "d_kv": 16,
    "d_ff": 64,
    "num_layers": 1,
    "num_heads": 2,
    "decoder_start_token_id": 0,
}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", TINY_GPT2),
    "bert": ("BertConfig", "BertForMaskedLM", TINY),
    "llama": ("LlamaConfig", "LlamaForCausalLM", {**TINY, "num_key_value_heads": 1}),
    "mixtral": (
        "MixtralConfig",
        "MixtralForCausalLM",
        {**TINY, "num_key_value_heads": 1, "num_local_experts": 4},
    ),
    "t5": ("T5Config", "T5ForConditionalGeneration", TINY_T5),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_language_models_are_mapped_whole(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    config, model_class, options = MODELS[name]

    def program() -> None:
        model = getattr(transformers, model_class)(getattr(transformers, config)(**options))
        model = model.cuda().bfloat16()
        tokens = torch.randint(64, (2, 8), device="cuda")
        train(model, lambda: model(input_ids=tokens, labels=tokens).loss)

    assert_all_mapped(program)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_image_models_are_mapped_whole(memory_format: torch.memory_format) -> None:
    def program() -> None:
        model = nn.Sequential(
            nn.Conv2d(3, 8, 7, stride=2, padding=3),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
            nn.Conv2d(8, 8, 3, groups=8),
            nn.GroupNorm(2, 8),
            nn.SiLU(),
            nn.ConvTranspose2d(8, 8, 4, 2, 1),
            nn.InstanceNorm2d(8, affine=True),
            nn.LeakyReLU(0.2),
            nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.PixelShuffle(2),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.1),
            nn.Linear(8, 5),
        ).cuda()
        model = model.to(memory_format=memory_format)  # type: ignore[call-overload]  # torch's stubs
        image = torch.randn(2, 3, 64, 64, device="cuda").to(memory_format=memory_format)
        classes = torch.randint(5, (2,), device="cuda")
        scaler = torch.amp.GradScaler("cuda")
        stepper = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = F.cross_entropy(model(image), classes, label_smoothing=0.1)
            scaler.scale(loss).backward()
            scaler.unscale_(stepper)
            scaler.step(stepper)
            scaler.update()
        wanted = torch.rand(2, 5, device="cuda")
        train(model, lambda: F.binary_cross_entropy_with_logits(model(image), wanted))
        train(model, lambda: F.binary_cross_entropy(model(image).sigmoid(), wanted))
        train(model, lambda: F.smooth_l1_loss(model(image), wanted))
        model.eval()
        with torch.no_grad():
            model(image)

    assert_all_mapped(program)


@pytest.mark.filterwarnings("ignore")
def test_recurrent_models_are_mapped_whole() -> None:
    def program() -> None:
        embedding = nn.Embedding(64, 16).cuda()
        tokens = torch.randint(64, (2, 8), device="cuda")
        for kind in (nn.LSTM, nn.GRU, nn.RNN):
            model = kind(16, 32, 2, batch_first=True, dropout=0.1, bidirectional=True).cuda()
            train(model, partial(mean_output, model, embedding, tokens))
        nn.LSTMCell(16, 32).cuda()(torch.randn(4, 16, device="cuda"))[0].sum().backward()

    assert_all_mapped(program)


@pytest.mark.filterwarnings("ignore")
def test_attention_modules_are_mapped_whole() -> None:
    def program() -> None:
        source = torch.randn(2, 8, 32, device="cuda")
        model = nn.Transformer(32, 2, 1, 1, 64, batch_first=True).cuda()
        train(model, lambda: model(source, source).mean())
        layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 1).cuda().eval()
        with torch.no_grad():
            encoder(source)
        query = torch.randn(2, 4, 16, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        key = torch.randn(2, 2, 16, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        F.scaled_dot_product_attention(query, key, key, enable_gqa=True).sum().backward()

    assert_all_mapped(program)


OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("Adam", {"amsgrad": True}),
    ("Adam", {"capturable": True}),
    ("AdamW", {"fused": True}),
    ("AdamW", {"foreach": False}),
    ("SGD", {"lr": 0.1, "nesterov": True, "momentum": 0.9}),
    ("RMSprop", {"centered": True}),
    ("Adagrad", {}),
    ("Adadelta", {}),
    ("NAdam", {}),
    ("RAdam", {}),
    ("Adamax", {}),
    ("Adafactor", {}),
    ("LBFGS", {}),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("optimizer", "options"), OPTIMIZERS, ids=str)
def test_optimizers_are_mapped_whole(optimizer: str, options: dict[str, Any]) -> None:
    def program() -> None:
        model = nn.Linear(4, 4).cuda()
        stepper = getattr(torch.optim, optimizer)(model.parameters(), **options)

        def loss() -> torch.Tensor:
            stepper.zero_grad()
            result: torch.Tensor = model(torch.randn(2, 4, device="cuda")).mean()
            result.backward()
            return result

        for _ in range(2):
            stepper.step(loss)

    assert_all_mapped(program)


@pytest.mark.filterwarnings("ignore")
def test_odds_and_ends_are_mapped() -> None:
    def program() -> None:
        def empty(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, device="cuda")

        x, index = empty(4, 10), torch.zeros(4, dtype=torch.long, device="cuda")
        x.topk(3)
        x.sort()
        x.cumsum(0)
        x.logsumexp(-1)
        x.std(0)
        x[index]
        x[index] = 1
        x[x > 0]
        x.unique()
        x.gather(1, index[:, None])
        x.scatter_add(1, index[:, None], x[:, :1])
        x.index_add(0, index, x)
        torch.multinomial(x.softmax(-1), 1)
        torch.randperm(10, device="cuda")
        torch.cat([x, x]).repeat(2, 1).roll(1).flip(0).t().contiguous()
        F.pad(x, (1, 1)).masked_fill(F.pad(x, (1, 1)) > 0, 0).nan_to_num()
        torch.fft.rfft2(empty(2, 8, 8))
        torch.linalg.inv(empty(3, 3))
        torch.cdist(x, x)
        torch.bincount(index)
        F.one_hot(index, 5)
        F.embedding_bag(index, x, torch.zeros(2, dtype=torch.long, device="cuda"))
        F.grid_sample(empty(2, 3, 8, 8), empty(2, 4, 4, 2))
        F.interpolate(empty(2, 3, 8, 8), scale_factor=2, mode="bicubic")
        F.unfold(empty(2, 3, 8, 8), 3)
        nn.Bilinear(3, 4, 5).cuda()(empty(2, 3), empty(2, 4))
        torch.einsum("bij,bkj->bik", empty(2, 3, 4), empty(2, 5, 4))
        x.cpu()
        x.to("cpu", torch.float64)
        x.mean().item()

    assert_all_mapped(program)
