"""What is measured on a GPU: a designed sample of ops, dtypes and shapes, in a fixed order.

A `Probe` is one op with its shapes. `sample()` lists them all, round by round: each round takes a
few probes of every kind, so that whatever time there is, no kind is left out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice, product, starmap, zip_longest
from typing import Any, TypeAlias

from neusight.predictors.errors import DataError

Value: TypeAlias = "int | str"
Arguments: TypeAlias = "tuple[tuple[str, Value], ...]"
#: torch is imported where a probe is run, never to list the probes.
Torch: TypeAlias = Any
Call: TypeAlias = "Callable[[], object]"


@dataclass(frozen=True)
class Probe:
    """One op with its shapes; its text says all of it.

    >>> Probe.parse("gelu dtype=bf16 numel=4096")["numel"]
    4096
    """

    op: str
    arguments: Arguments = ()

    def __getitem__(self, name: str) -> Any:
        return dict(self.arguments)[name]

    def get(self, name: str, default: Any = None) -> Any:
        """An argument, or the default where the probe has none of that name."""
        return dict(self.arguments).get(name, default)

    @property
    def text(self) -> str:
        """The op and its arguments, as `parse` reads them."""
        return " ".join([self.op, *(f"{name}={value}" for name, value in self.arguments)])

    @classmethod
    def parse(cls, text: str) -> Probe:
        """The probe of that text; DataError where it is none."""
        op, *parts = text.split()
        pairs = [part.partition("=") for part in parts]
        if op not in _MAKERS or not all(name and value for name, _, value in pairs):
            raise DataError(f"{text!r} is no probe that can be measured.")
        return cls(op, tuple((name, _value(value)) for name, _, value in pairs))


def _value(text: str) -> Value:
    return int(text) if text.lstrip("-").isdigit() else text


def _probe(op: str, **arguments: Value) -> Probe:
    return Probe(op, tuple(arguments.items()))


def _sized(op: str, names: str, sizes: Iterable[Sequence[int]], **same: Value) -> list[Probe]:
    """Probes that differ in their sizes, which stand after what all have."""
    return [_probe(op, **same, **dict(zip(names.split(), size, strict=False))) for size in sizes]


# -- the sample --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Kind:
    """Probes of one kind in the order in which they are taken, `weight` of them in a round."""

    probes: Sequence[Probe]
    weight: int = 1


def sample() -> list[Probe]:
    """All probes in the order in which they are measured, each once; the same on every machine."""
    kinds = [
        *_attention(),
        *_convolutions(),
        *_other_convolutions(),
        *_gemms(),
        *_rows(),
        *_pointwise(),
        *_others(),
    ]
    iterators = [(iter(kind.probes), kind.weight) for kind in kinds]
    ordered: dict[Probe, None] = {}
    while iterators:
        remaining = []
        for probes, weight in iterators:
            taken = list(islice(probes, weight))
            ordered.update(dict.fromkeys(taken))
            if taken:
                remaining.append((probes, weight))
        iterators = remaining
    return list(ordered)


def quick_sample(*, num_gpus: int = 1) -> list[tuple[str, Probe]]:
    """The probes that measure a GPU's constants, each with the constant."""
    gemms = [
        ("gemm", _probe("mm", dtype=dtype, layout="nt", batch=1, m=m, n=n, k=k))
        for (m, n, k) in ((8192, 8192, 8192), (4096, 4096, 4096), (8192, 4096, 4096))
        for dtype in ("bf16", "fp16", "tf32", "fp32", "fp8")
    ]
    streams = [
        ("stream", _probe(op, dtype=dtype, numel=numel))
        for numel in (1 << 28, 1 << 27)
        for op, dtype in (("clone", "fp32"), ("add", "fp32"), ("add", "bf16"), ("relu", "bf16"))
    ]
    floors = [
        ("floor", _probe(op, dtype="fp32", numel=numel))
        for numel in (1, 32, 1024)
        for op in ("add", "relu", "clone")
    ]
    links = [
        ("link", _probe("all_reduce", dtype="fp32", gpus=num_gpus, numel=numel))
        for numel in (2, 256, 1 << 14)
        if num_gpus > 1
    ]
    return [*gemms, *streams, *floors, *links]


def sustained_sample() -> list[Probe]:
    """Probes for the clocks that are left under load: long kernels of each unit, and streams."""
    size = {"batch": 4, "heads": 32, "kv_heads": 32, "seq_q": 4096, "seq_kv": 4096}
    products = [
        _mm(dtype, "nt", m, n, k)
        for m, n, k in ((8192, 8192, 8192), (8192, 14336, 4096))
        for dtype in ("bf16", "tf32", "fp16", "fp32", "fp8")
    ]
    gradients = [_mm("bf16", layout, 8192, 4096, 4096) for layout in ("nn", "tn")]
    attention = [
        _probe("attention", dtype="bf16", backend="flash", direction=direction, causal=1,
              **size, head_dim=128)
        for direction in ("forward", "backward")
    ]  # fmt: skip
    layer = {"batch": 64, "inputs": 256, "outputs": 256, "kernel": 3, "stride": 1, "groups": 1}
    convolutions = [
        _probe("convolution", dtype=dtype, direction=direction, memory_format="channels_last",
              benchmark=0, **layer, image=56)
        for dtype in ("bf16", "tf32")
        for direction in ("forward", "data", "weight")
    ]  # fmt: skip
    streams = [_probe(op, dtype="fp32", numel=1 << 28) for op in ("clone", "add")]
    return [*products, *gradients, *attention, *convolutions, *streams]


def needs_gpus(probe: Probe) -> int:
    """How many GPUs a probe runs on."""
    return int(probe.get("gpus", 1))


def _mixed(designed: Sequence[Probe], drawn: Sequence[Probe]) -> list[Probe]:
    """Two designed probes, then a drawn one, and so on until both are used up."""
    triples = zip_longest(designed[::2], designed[1::2], drawn)
    return [probe for triple in triples for probe in triple if probe is not None]


def _shuffled(items: Sequence[Any], seed: str) -> list[Any]:
    """In an order that mixes small and large, the same on every machine."""
    result = list(items)
    random.Random(seed).shuffle(result)
    return result


def _log_uniform(draw: random.Random, low: int, high: int, multiple: int = 1) -> int:
    """A whole number between the two, as likely to double as to halve."""
    value = round(float(low * (high / low) ** draw.random()))
    return max(multiple, value // multiple * multiple)


# Layers of models: (out, in) features of GPT-2, BERT, ViT, T5, Llama and their output layers.
_LAYERS = (
    (768, 768),
    (2304, 768),
    (3072, 768),
    (768, 3072),
    (1024, 1024),
    (4096, 1024),
    (1024, 4096),
    (50257, 768),
    (50304, 768),
    (30522, 1024),
    (1000, 2048),
    (4096, 4096),
    (6144, 4096),
    (14336, 4096),
    (4096, 14336),
    (128256, 4096),
    (512, 2048),
)
#: Sequences that decode a token at once.
_DECODED = (1, 2, 4, 8, 16, 32, 64, 128)
_TOKENS = (8192, 1024, 4096, 128, 2048, 16384, 1576, 16)

#: FLOPs and bytes of the largest probe, and the FLOPs of the largest one without matrix units.
_MOST_FLOPS = 2**43
_MOST_FP32_FLOPS = 2**40
_MOST_BYTES = 2**31

_ITEMSIZE = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1}


def _gemms() -> Iterator[_Kind]:
    for dtype, layout in product(("bf16", "fp16", "tf32", "fp32", "fp8"), ("nt", "nn", "tn")):
        if dtype == "fp8" and layout != "nt":  # scaled_mm takes no other
            continue
        layers = [(tokens, *layer) for layer in _LAYERS for tokens in _TOKENS]
        designed = [
            _mm(dtype, layout, *_operand_sizes(layout, *layer))
            for layer in _shuffled(layers, "layers")
        ]
        drawn = list(_drawn_gemms(dtype, layout, 60))
        yield _Kind(_mixed(_allowed(designed), _allowed(drawn)), weight=2)
    for dtype in ("bf16", "fp16", "fp32", "fp8"):
        skinny = [_mm(dtype, "nt", m, *layer) for layer, m in product(_LAYERS, _DECODED)]
        yield _Kind(_allowed(_shuffled(skinny, "skinny")), weight=2)
    for dtype, layout in product(("bf16", "tf32", "fp32"), ("nt", "nn", "tn")):
        heads = list(product((96, 16, 192, 256), (512, 128, 1024, 197), (64, 128)))
        designed = [
            _mm(dtype, layout, *((seq, seq, dim) if layout == "nt" else (seq, dim, seq)), batch)
            for batch, seq, dim in _shuffled(heads, "heads")
        ]
        drawn = list(_drawn_gemms(dtype, layout, 16, batched=True))
        yield _Kind(_mixed(_allowed(designed), _allowed(drawn)))
    for dtype in ("bf16", "fp32"):
        biased = [
            _probe("linear", dtype=dtype, m=tokens, n=out, k=features)
            for (out, features), tokens in product(_LAYERS[:14], _TOKENS[:4])
        ]
        yield _Kind(_shuffled(biased, "biased"))


def _operand_sizes(layout: str, tokens: int, out: int, features: int) -> tuple[int, int, int]:
    """m, n, k of a Linear's product: forward (nt), input gradient (nn), weight gradient (tn)."""
    return {
        "nt": (tokens, out, features),
        "nn": (tokens, features, out),
        "tn": (out, features, tokens),
    }[layout]


def _mm(dtype: str, layout: str, m: int, n: int, k: int, batch: int = 1) -> Probe:
    return _probe("mm", dtype=dtype, layout=layout, batch=batch, m=m, n=n, k=k)


def _drawn_gemms(dtype: str, layout: str, count: int, *, batched: bool = False) -> Iterator[Probe]:
    draw = random.Random(f"gemm {dtype} {layout} {batched}")
    for index in range(count):
        multiple = 16 if dtype == "fp8" else (64, 8, 1)[index % 3]
        batch = _log_uniform(draw, 2, 512) if batched else 1
        high = 2048 if batched else 16384
        sizes = [_log_uniform(draw, 16, high, multiple) for _ in range(3)]
        yield _mm(dtype, layout, sizes[0], sizes[1], sizes[2], batch)


def _allowed(probes: Sequence[Probe]) -> list[Probe]:
    return [probe for probe in probes if _gemm_fits(probe)]


def _gemm_fits(probe: Probe) -> bool:
    batch, m, n, k = (int(probe[name]) for name in ("batch", "m", "n", "k"))
    dtype = str(probe["dtype"])
    flops = 2 * batch * m * n * k
    moved = batch * (m * k + n * k + m * n) * _ITEMSIZE[dtype]
    most = _MOST_FP32_FLOPS if dtype == "fp32" else _MOST_FLOPS
    if dtype == "fp8" and (n % 16 or k % 16):  # cuBLASLt's scaled products
        return False
    return flops <= most and moved <= _MOST_BYTES


# (in, out, kernel, stride, groups, image) of ResNet-50, ConvNeXt-T, UNet, ViT's patches, MobileNet.
_IMAGE_LAYERS = (
    (64, 64, 3, 1, 1, 56),
    (3, 64, 7, 2, 1, 224),
    (64, 256, 1, 1, 1, 56),
    (128, 128, 3, 2, 1, 56),
    (256, 1024, 1, 1, 1, 14),
    (256, 256, 3, 1, 1, 14),
    (512, 512, 3, 1, 1, 7),
    (1024, 2048, 1, 2, 1, 14),
    (96, 96, 7, 1, 96, 56),
    (384, 384, 7, 1, 384, 14),
    (3, 96, 4, 4, 1, 224),
    (192, 384, 2, 2, 1, 28),
    (3, 768, 16, 16, 1, 224),
    (64, 64, 3, 1, 1, 256),
    (256, 128, 3, 1, 1, 128),
    (1024, 512, 3, 1, 1, 32),
    (32, 32, 3, 1, 32, 112),
    (128, 128, 3, 1, 4, 28),
)
_IMAGE_BATCHES = (32, 8, 64, 1)


def _convolutions() -> Iterator[_Kind]:
    designed_sizes = _shuffled(list(product(_IMAGE_LAYERS, _IMAGE_BATCHES)), "images")
    formats = ("channels_last", "contiguous")
    for dtype, memory_format, direction, benchmark in product(
        ("bf16", "tf32", "fp16", "fp32"), formats, ("forward", "data", "weight"), (0, 1)
    ):
        if benchmark and dtype in ("fp16", "fp32"):  # bf16 and TF32 show what it changes
            continue
        convolution = partial(_convolution, dtype, direction, memory_format, benchmark)
        draw = random.Random(f"convolution {dtype} {memory_format} {direction} {benchmark}")
        drawn = [convolution(*_drawn_layer(draw, index)) for index in range(16)]
        designed = [convolution(layer, batch) for layer, batch in designed_sizes]
        yield _Kind(_mixed(designed[:32], drawn))


def _convolution(
    dtype: str, direction: str, memory_format: str, benchmark: int, layer: Sequence[int], batch: int
) -> Probe:
    [probe] = _sized(
        "convolution",
        "inputs outputs kernel stride groups image dims transposed dilation",
        [layer],
        dtype=dtype,
        direction=direction,
        memory_format=memory_format,
        benchmark=benchmark,
        batch=batch,
    )
    return probe


# (in, out, kernel, stride, groups, image, dims, transposed, dilation): R3D-18, a 3-D U-Net,
# decoders of DCGAN and U-Net, DeepLab's dilated layers, a speech model's 1-D layers.
_OTHER_LAYERS = (
    (64, 64, 3, 1, 1, 28, 3, 0, 1),
    (128, 64, 2, 2, 1, 64, 2, 1, 1),
    (2048, 256, 3, 1, 1, 32, 2, 0, 12),
    (512, 512, 3, 1, 1, 1500, 1, 0, 1),
    (3, 64, 7, 2, 1, 56, 3, 0, 1),
    (512, 256, 4, 2, 1, 8, 2, 1, 1),
    (512, 512, 3, 1, 1, 28, 2, 0, 2),
    (128, 256, 3, 2, 1, 14, 3, 0, 1),
    (64, 64, 3, 1, 64, 28, 3, 0, 1),
    (256, 128, 4, 2, 1, 32, 2, 1, 1),
    (64, 32, 2, 2, 1, 28, 3, 1, 1),
    (80, 512, 3, 1, 1, 3000, 1, 0, 1),
)
_OTHER_BATCHES = (8, 2)


def _other_convolutions() -> Iterator[_Kind]:
    for dtype, direction in product(("bf16", "tf32", "fp32"), ("forward", "data", "weight")):
        convolution = partial(_convolution, dtype, direction, "contiguous", 0)
        yield _Kind(list(starmap(convolution, product(_OTHER_LAYERS, _OTHER_BATCHES))))


def _drawn_layer(draw: random.Random, index: int) -> tuple[tuple[int, ...], int]:
    multiple = 8 if index % 2 else 1
    inputs = _log_uniform(draw, 8, 1024, multiple)
    outputs = _log_uniform(draw, 8, 1024, multiple)
    kernel, stride = draw.choice((1, 3, 3, 5)), draw.choice((1, 1, 2))
    image = _log_uniform(draw, 7, 128)
    batch = max(1, min(64, _MOST_IMAGE_ELEMENTS // (max(inputs, outputs) * image * image)))
    return (inputs, outputs, kernel, stride, 1, image), batch


#: Elements of the largest image batch that is drawn.
_MOST_IMAGE_ELEMENTS = 2**27

# (batch, heads, kv_heads, seq_q, seq_kv, head_dim)
_HEADS = (
    (8, 12, 12, 1024, 1024, 64),
    (1, 32, 8, 2048, 2048, 128),
    (16, 16, 16, 512, 512, 64),
    (32, 12, 12, 197, 197, 64),
    (4, 32, 32, 4096, 4096, 128),
    (2, 32, 8, 8192, 8192, 128),
    (64, 12, 12, 128, 128, 64),
    (8, 8, 8, 1024, 77, 40),
    (1, 16, 16, 300, 300, 96),
    (2, 8, 2, 1000, 3000, 128),
    (4, 16, 16, 2048, 2048, 80),
    (1, 64, 8, 16384, 16384, 128),
)
_DECODING_HEADS = tuple(
    (batch, heads, kv_heads, 1, seq, 128)
    for seq, batch, (heads, kv_heads) in product(
        (1024, 4096, 16384, 128), (1, 16, 64), ((32, 8), (32, 32))
    )
)


def _attention() -> Iterator[_Kind]:
    kinds = [
        ("flash", "bf16", 2),
        ("efficient", "bf16", 1),
        ("cudnn", "bf16", 1),
        ("flash", "fp16", 1),
        ("efficient", "fp32", 1),
    ]
    for (backend, dtype, weight), direction in product(kinds, ("forward", "backward")):
        draw = random.Random(f"attention {backend} {dtype} {direction}")
        heads = [*_HEADS, *(_drawn_heads(draw) for _ in range(24))]
        probes = [
            _attended(dtype, backend, direction, size, causal=causal and size[3] <= size[4])
            for size, causal in product(heads, (True, False))
            # Memory-efficient attention takes no grouped heads; fp32 is for small ones.
            if not (backend == "efficient" and size[1] != size[2])
            and not (dtype == "fp32" and size[3] > 2048)
        ]
        yield _Kind(list(dict.fromkeys(probes)), weight=weight)
    decoding = [_attended("bf16", "flash", "forward", size) for size in _DECODING_HEADS]
    yield _Kind(_shuffled(decoding, "decoding"))


def _attended(
    dtype: str, backend: str, direction: str, size: Sequence[int], *, causal: bool = False
) -> Probe:
    [probe] = _sized(
        "attention",
        "batch heads kv_heads seq_q seq_kv head_dim",
        [size],
        dtype=dtype,
        backend=backend,
        direction=direction,
        causal=int(causal),
    )
    return probe


def _drawn_heads(draw: random.Random) -> tuple[int, ...]:
    kv_heads = draw.choice((1, 2, 4, 8, 12, 16))
    group = draw.choice((1, 1, 1, 4))
    seq = _log_uniform(draw, 16, 4096, draw.choice((1, 64)))
    batch = max(1, min(64, _MOST_SCORES // (kv_heads * group * seq * seq)))
    return batch, kv_heads * group, kv_heads, seq, seq, draw.choice((32, 64, 64, 128, 128, 256))


#: Entries of the score matrices of the largest attention that is drawn.
_MOST_SCORES = 2**31

# (rows, width)
_ROW_SIZES = (
    (8192, 768),
    (2048, 4096),
    (4096, 1024),
    (512, 512),
    (16384, 4096),
    (32, 1024),
    (1, 4096),
    (65536, 256),
    (1024, 8192),
    (131072, 64),
    (6304, 768),
    (256, 12288),
)
_WIDE_ROW_SIZES = ((2048, 50257), (8192, 32000), (512, 30522), (1024, 128256))
_SCORE_ROW_SIZES = ((98304, 1024), (131072, 512), (37824, 197), (12288, 128))


def _drawn_rows(op: str, dtype: str) -> list[Probe]:
    draw = random.Random(f"{op} {dtype} []")
    widest = 8192 if op in _TABLE_OPS else 65536
    probes = []
    for index in range(8):
        width = _log_uniform(draw, 16, widest, 8 if index % 2 else 1)
        rows = _log_uniform(draw, 1, max(2, min(262144, 2**28 // width)))
        probes.append(_probe(op, dtype=dtype, rows=rows, width=width))
    return probes


#: Ops on a table of `_TABLE_ROWS` rows, whatever they read of it.
_TABLE_OPS = ("embedding", "embedding_backward", "index_select")
#: Ops over rows, with the sizes that models have.
_ROW_OPS: dict[str, tuple[tuple[int, int], ...]] = {
    "layer_norm": _ROW_SIZES,
    "layer_norm_backward": _ROW_SIZES,
    "rms_norm": _ROW_SIZES,
    "rms_norm_backward": _ROW_SIZES,
    "softmax": (*_SCORE_ROW_SIZES, *_ROW_SIZES[:6]),
    "softmax_backward": (*_SCORE_ROW_SIZES, *_ROW_SIZES[:6]),
    "log_softmax": (*_WIDE_ROW_SIZES, *_ROW_SIZES[:3]),
    "log_softmax_backward": (*_WIDE_ROW_SIZES, *_ROW_SIZES[:3]),
    "cross_entropy": _WIDE_ROW_SIZES,
    "sum_rows": _ROW_SIZES,
    "sum_columns": (*_ROW_SIZES, (8192, 3072), (8192, 50257)),
    "mean_rows": _ROW_SIZES[:6],
    "max_rows": _ROW_SIZES[:6],
    "argmax_rows": (*_WIDE_ROW_SIZES, *_ROW_SIZES[:3]),
    "norm_rows": _ROW_SIZES[:6],
    "cumsum_rows": _ROW_SIZES[:6],
    "sort_rows": _ROW_SIZES[:8],
    "topk_rows": (*_WIDE_ROW_SIZES, (8192, 8), (8192, 64)),
    "embedding": (*_ROW_SIZES, (8192, 1024)),
    "embedding_backward": (*_ROW_SIZES, (8192, 1024)),
    "index_select": _ROW_SIZES,
    "gather_rows": _ROW_SIZES[:8],
    "scatter_add_rows": _ROW_SIZES[:8],
    "index_add_rows": _ROW_SIZES[:8],
    "index_rows": _ROW_SIZES[:8],
    "add_bias": _ROW_SIZES,
    "transpose_copy": _ROW_SIZES,
    "cat": _ROW_SIZES,
    "slice_copy": _ROW_SIZES,
}
_FP32_ROW_OPS = (
    *("layer_norm", "layer_norm_backward", "sum_rows", "sum_columns", "add_bias"),
    *("softmax", "softmax_backward", "log_softmax", "log_softmax_backward", "cross_entropy"),
    *("embedding", "embedding_backward", "transpose_copy"),
)


def _rows() -> Iterator[_Kind]:
    for op, sizes in _ROW_OPS.items():
        for dtype in ("bf16", "fp32") if op in _FP32_ROW_OPS else ("bf16",):
            designed = _sized(op, "rows width", sizes, dtype=dtype)
            yield _Kind(_mixed(designed, _drawn_rows(op, dtype)))


_NUMELS = (8192 * 3072, 8192 * 768, 1 << 20, 1 << 26, 4096, 1 << 16, 12345678, 1 << 28, 1, 300000)


def _pointwise() -> Iterator[_Kind]:
    for op, dtypes in _POINTWISE_DTYPES.items():
        for dtype in dtypes:
            draw = random.Random(f"{op} {dtype}")
            drawn = [_log_uniform(draw, 64, 1 << 28) for _ in range(6)]
            designed = [_probe(op, dtype=dtype, numel=numel) for numel in _NUMELS]
            yield _Kind(_mixed(designed, [_probe(op, dtype=dtype, numel=n) for n in drawn]))


_BOTH = ("bf16", "fp32")
_POINTWISE_DTYPES: dict[str, tuple[str, ...]] = {
    "add": ("bf16", "fp32", "fp16"),
    "mul": _BOTH,
    "mul_scalar": _BOTH,
    "add_": _BOTH,
    "div": ("bf16",),
    "relu": _BOTH,
    "relu_backward": _BOTH,
    "gelu": _BOTH,
    "gelu_backward": _BOTH,
    "gelu_tanh": ("bf16",),
    "silu": ("bf16",),
    "silu_backward": ("bf16",),
    "sigmoid": ("bf16",),
    "tanh": ("bf16",),
    "exp": ("fp32",),
    "rsqrt": ("fp32",),
    "pow": ("fp32",),
    "where": ("bf16",),
    "masked_fill": ("bf16",),
    "dropout": _BOTH,
    "to_bf16": ("fp32",),
    "to_fp32": ("bf16",),
    "clone": _BOTH,
    "fill": _BOTH,
    "zeros": ("fp32",),
    "randn": ("fp32",),
    "sum_all": _BOTH,
    "mean_all": ("fp32",),
    "norm_all": ("fp32",),
    "copy_to_gpu_pinned": ("fp32",),
    "copy_to_gpu": ("fp32",),
    "copy_to_host_pinned": ("fp32",),
}

# (batch, sequence, heads, head_dim) of activations that attention takes apart, and puts together.
_SPLIT_HEADS = (
    (8, 1024, 12, 64),
    (1, 2048, 32, 128),
    (32, 197, 12, 64),
    (16, 512, 16, 64),
    (4, 4096, 32, 128),
    (2, 300, 16, 96),
    (64, 128, 12, 64),
    (1, 8192, 8, 128),
)
#: Copies of tensors that are not contiguous, by what they are made of.
_HEAD_OPS = ("merge_heads", "split_heads", "expand_heads", "rotate_half")

# (batch, channels, image) of feature maps.
_MAPS = (
    (32, 64, 112),
    (32, 256, 56),
    (32, 512, 28),
    (32, 2048, 7),
    (8, 64, 256),
    (1, 1024, 14),
    (64, 96, 56),
    (128, 1024, 14),
)
_MAP_OPS = (
    "batch_norm",
    "batch_norm_backward",
    "batch_norm_eval",
    "group_norm",
    "group_norm_backward",
    "max_pool",
    "max_pool_backward",
    "average_pool",
    "upsample_nearest",
    "upsample_bilinear",
    "instance_norm",
    "other_format",
    "cat_channels",
    "crop",
    "pad",
)
# (number of parameters, elements of each) of ResNet-50, BERT, GPT-2, Llama layers, one large one.
_PARAMETERS = (
    (161, 158000),
    (148, 840000),
    (9, 24000000),
    (400, 300000),
    (10, 1000),
    (1, 38000000),
    (600, 2000),
    (50, 4000000),
)


def _others() -> Iterator[_Kind]:
    for op, dtype, memory_format in product(
        _MAP_OPS, ("bf16", "fp32"), ("contiguous", "channels_last")
    ):
        names = "batch channels image"
        yield _Kind(_sized(op, names, _MAPS, dtype=dtype, memory_format=memory_format))
    for op, dtype in product(_HEAD_OPS, ("bf16", "fp32")):
        yield _Kind(_sized(op, "batch seq heads head_dim", _SPLIT_HEADS, dtype=dtype))
    optimizers = (
        *product(("adamw", "sgd"), ("fused", "foreach"), ("fp32", "bf16")),
        *product(("adam", "sgd"), ("forloop",), ("fp32",)),
        *product(("clip_grad_norm", "unscale"), ("foreach",), ("fp32",)),
    )
    for op, implementation, dtype in optimizers:
        sizes = _PARAMETERS[:1] if implementation == "forloop" else _PARAMETERS
        probes = _sized(op, "tensors numel", sizes, dtype=dtype, implementation=implementation)
        yield _Kind(probes)


# -- how a probe is run -------------------------------------------------------------------------

_DTYPES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "tf32": "float32",
    "fp8": "float8_e4m3fn",
}


@dataclass(frozen=True)
class _Bench:
    """Makes the tensors of a probe on its device."""

    torch: Torch
    device: str
    dtype: Any

    def randn(self, *shape: int, grad: bool = False, dtype: Any = None) -> Any:
        made = self.torch.randn(*shape, device=self.device, dtype=self.torch.float32)
        return made.to(dtype or self.dtype).requires_grad_(grad)

    def indices(self, high: int, *shape: int) -> Any:
        return self.torch.randint(high, shape, device=self.device)

    def pass_of(self, call: Call, *inputs: Any) -> Call:
        """The call; where its inputs want gradients its backward pass, again and again."""
        if not inputs[0].requires_grad:
            return call
        torch, output = self.torch, call()
        grad = torch.randn_like(output)
        return lambda: torch.autograd.grad(output, inputs, grad, retain_graph=True)


Maker: TypeAlias = "Callable[[_Bench, Probe], Call]"
_MAKERS: dict[str, Maker] = {}


def _maker(*ops: str) -> Callable[[Maker], Maker]:
    def register(maker: Maker) -> Maker:
        _MAKERS.update(dict.fromkeys(ops, maker))
        return maker

    return register


@contextmanager
def prepared(probe: Probe, *, device: str = "cuda") -> Iterator[Call]:
    """The probe ready to be called, its tensors made; torch's switches are as before afterwards."""
    import torch

    with ExitStack() as stack:
        for switch in _switches(probe, torch):
            stack.enter_context(switch)
        bench = _Bench(torch, device, getattr(torch, _DTYPES[probe["dtype"]]))
        yield _MAKERS[probe.op](bench, probe)


def _switches(probe: Probe, torch: Torch) -> Iterator[AbstractContextManager[None]]:
    yield _matmul_precision(torch, "high" if probe["dtype"] == "tf32" else "highest")
    yield torch.backends.cudnn.flags(
        enabled=True, benchmark=bool(probe.get("benchmark", 0)), allow_tf32=probe["dtype"] == "tf32"
    )
    backend = probe.get("backend")
    if backend is not None:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        names = {
            "flash": SDPBackend.FLASH_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION,
            "cudnn": SDPBackend.CUDNN_ATTENTION,
        }
        yield sdpa_kernel(names[backend])


@contextmanager
def _matmul_precision(torch: Torch, precision: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@_maker("mm")
def _make_mm(bench: _Bench, probe: Probe) -> Call:
    batch, m, n, k = (probe[name] for name in ("batch", "m", "n", "k"))
    left_transposed, right_transposed = (letter == "t" for letter in probe["layout"])
    lead = (batch,) if batch > 1 else ()
    if probe["dtype"] == "fp8":
        return _make_scaled_mm(bench, m, n, k)
    left = bench.randn(*lead, *((k, m) if left_transposed else (m, k)))
    right = bench.randn(*lead, *((n, k) if right_transposed else (k, n)))
    left = left.transpose(-1, -2) if left_transposed else left
    right = right.transpose(-1, -2) if right_transposed else right
    product = bench.torch.bmm if batch > 1 else bench.torch.mm
    return lambda: product(left, right)


def _make_scaled_mm(bench: _Bench, m: int, n: int, k: int) -> Call:
    torch = bench.torch
    left, right = bench.randn(m, k), bench.randn(n, k).t()
    one = torch.ones((), device=bench.device)
    return lambda: torch._scaled_mm(left, right, one, one, out_dtype=torch.bfloat16)


@_maker("linear")
def _make_linear(bench: _Bench, probe: Probe) -> Call:
    data, weight = bench.randn(probe["m"], probe["k"]), bench.randn(probe["n"], probe["k"])
    bias = bench.randn(probe["n"])
    return lambda: bench.torch.addmm(bias, data, weight.t())


@_maker("convolution")
def _make_convolution(bench: _Bench, probe: Probe) -> Call:
    torch = bench.torch
    kernel, stride, groups = probe["kernel"], probe["stride"], probe["groups"]
    dims, dilation = probe.get("dims", 2), probe.get("dilation", 1)
    transposed = bool(probe.get("transposed", 0))
    padding = 0 if kernel == stride else (kernel - 1) // 2 * dilation
    last = probe["memory_format"] == "channels_last"
    order = torch.channels_last if last else torch.contiguous_format
    data = bench.randn(probe["batch"], probe["inputs"], *[probe["image"]] * dims)
    channels = (probe["outputs"], probe["inputs"] // groups)
    weight = bench.randn(*(channels[::-1] if transposed else channels), *[kernel] * dims)
    data, weight = data.to(memory_format=order), weight.to(memory_format=order)
    shape = ([stride] * dims, [padding] * dims, [dilation] * dims, transposed, [0] * dims, groups)
    aten = torch.ops.aten
    if probe["direction"] == "forward":
        return lambda: aten.convolution(data, weight, None, *shape)
    grad = torch.randn_like(aten.convolution(data, weight, None, *shape))
    mask = [probe["direction"] == "data", probe["direction"] == "weight", False]
    return lambda: aten.convolution_backward(grad, data, weight, None, *shape, mask)


@_maker("attention")
def _make_attention(bench: _Bench, probe: Probe) -> Call:
    attend = bench.torch.nn.functional.scaled_dot_product_attention
    backward = probe["direction"] == "backward"
    batch, dim = probe["batch"], probe["head_dim"]
    query = bench.randn(batch, probe["heads"], probe["seq_q"], dim, grad=backward)
    key, value = (
        bench.randn(batch, probe["kv_heads"], probe["seq_kv"], dim, grad=backward) for _ in range(2)
    )
    options = {
        "is_causal": bool(probe["causal"]),
        "enable_gqa": probe["heads"] != probe["kv_heads"],
    }
    return bench.pass_of(lambda: attend(query, key, value, **options), query, key, value)


@_maker("layer_norm", "layer_norm_backward", "rms_norm", "rms_norm_backward")
def _make_norm(bench: _Bench, probe: Probe) -> Call:
    functional = bench.torch.nn.functional
    backward = probe.op.endswith("_backward")
    width = probe["width"]
    data = bench.randn(probe["rows"], width, grad=backward)
    weight = bench.randn(width, grad=backward)
    if probe.op.startswith("rms"):
        return bench.pass_of(lambda: functional.rms_norm(data, (width,), weight), data, weight)
    bias = bench.randn(width, grad=backward)
    normalize = partial(functional.layer_norm, data, (width,), weight, bias)
    return bench.pass_of(normalize, data, weight, bias)


@_maker("softmax", "softmax_backward", "log_softmax", "log_softmax_backward", "cross_entropy")
def _make_softmax(bench: _Bench, probe: Probe) -> Call:
    functional = bench.torch.nn.functional
    data = bench.randn(probe["rows"], probe["width"], grad=probe.op.endswith("_backward"))
    if probe.op == "cross_entropy":
        targets = bench.indices(probe["width"], probe["rows"])
        return lambda: functional.cross_entropy(data, targets)
    function = functional.log_softmax if probe.op.startswith("log") else functional.softmax
    return bench.pass_of(lambda: function(data, dim=-1), data)


#: Elements that topk takes of each row, and rows of an embedding's table.
_TOP = 8
_TABLE_ROWS = 32000


@_maker(*(op for op in _ROW_OPS if op.endswith("_rows") or op == "sum_columns"))
def _make_rows(bench: _Bench, probe: Probe) -> Call:
    torch = bench.torch
    rows, width = probe["rows"], probe["width"]
    data = bench.randn(rows, width)
    if probe.op in ("gather_rows", "scatter_add_rows"):
        positions = bench.indices(width, rows, width)
        if probe.op == "gather_rows":
            return lambda: torch.gather(data, 1, positions)
        source = bench.randn(rows, width)
        return lambda: data.scatter_add_(1, positions, source)
    if probe.op in ("index_add_rows", "index_rows"):
        positions = bench.indices(rows, rows)
        if probe.op == "index_rows":
            return lambda: data[positions]
        source = bench.randn(rows, width)
        return lambda: data.index_add_(0, positions, source)
    calls: dict[str, Call] = {
        "sum_rows": lambda: data.sum(-1),
        "sum_columns": lambda: data.sum(0),
        "mean_rows": lambda: data.mean(-1),
        "max_rows": lambda: data.amax(-1),
        "argmax_rows": lambda: data.argmax(-1),
        "norm_rows": lambda: torch.linalg.vector_norm(data, dim=-1),
        "cumsum_rows": lambda: data.cumsum(-1),
        "sort_rows": lambda: data.sort(-1),
        "topk_rows": lambda: data.topk(min(_TOP, width), -1),
    }
    return calls[probe.op]


@_maker(*_TABLE_OPS)
def _make_embedding(bench: _Bench, probe: Probe) -> Call:
    torch = bench.torch
    table = bench.randn(_TABLE_ROWS, probe["width"], grad=probe.op.endswith("_backward"))
    positions = bench.indices(_TABLE_ROWS, probe["rows"])
    if probe.op == "index_select":
        return lambda: torch.index_select(table, 0, positions)
    return bench.pass_of(lambda: torch.nn.functional.embedding(positions, table), table)


@_maker("add_bias", "transpose_copy", "cat", "slice_copy")
def _make_layout(bench: _Bench, probe: Probe) -> Call:
    torch = bench.torch
    rows, width = probe["rows"], probe["width"]
    data = bench.randn(rows, 2 * width if probe.op == "slice_copy" else width)
    if probe.op == "add_bias":
        bias = bench.randn(width)
        return lambda: data + bias
    if probe.op == "cat":
        other = bench.randn(rows, width)
        return lambda: torch.cat([data, other], dim=-1)
    if probe.op == "slice_copy":
        return lambda: data[:, :width].contiguous()
    return lambda: data.t().contiguous()


@_maker(*_POINTWISE_DTYPES)
def _make_pointwise(bench: _Bench, probe: Probe) -> Call:
    torch = bench.torch
    aten, functional = torch.ops.aten, torch.nn.functional
    numel = probe["numel"]
    if probe.op.startswith("copy_to"):
        return _make_host_copy(bench, probe)
    if probe.op in ("zeros", "randn"):
        make = getattr(torch, probe.op)
        return lambda: make(numel, device=bench.device, dtype=bench.dtype)
    x, y = bench.randn(numel), bench.randn(numel)
    mask = x > 0 if probe.op in ("where", "masked_fill") else None
    positive = x.abs() + 1
    calls: dict[str, Call] = {
        "add": lambda: x + y,
        "mul": lambda: x * y,
        "mul_scalar": lambda: x * 0.5,
        "add_": lambda: x.add_(y, alpha=1e-3),
        "div": lambda: x / positive,
        "relu": lambda: functional.relu(x),
        "relu_backward": lambda: aten.threshold_backward(x, y, 0),
        "gelu": lambda: functional.gelu(x),
        "gelu_backward": lambda: aten.gelu_backward(x, y),
        "gelu_tanh": lambda: functional.gelu(x, approximate="tanh"),
        "silu": lambda: functional.silu(x),
        "silu_backward": lambda: aten.silu_backward(x, y),
        "sigmoid": lambda: torch.sigmoid(x),
        "tanh": lambda: torch.tanh(x),
        "exp": lambda: torch.exp(x),
        "rsqrt": lambda: torch.rsqrt(positive),
        "pow": lambda: x.pow(2),
        "where": lambda: torch.where(mask, x, y),
        "masked_fill": lambda: x.masked_fill(mask, 0.0),
        "dropout": lambda: functional.dropout(x, 0.1, training=True),
        "to_bf16": lambda: x.to(torch.bfloat16),
        "to_fp32": lambda: x.to(torch.float32),
        "clone": lambda: x.clone(),
        "fill": lambda: x.fill_(1.0),
        "sum_all": lambda: x.sum(),
        "mean_all": lambda: x.mean(),
        "norm_all": lambda: torch.linalg.vector_norm(x),
    }
    return calls[probe.op]


def _make_host_copy(bench: _Bench, probe: Probe) -> Call:
    torch = bench.torch
    pinned = probe.op.endswith("_pinned")
    host = torch.zeros(probe["numel"], dtype=bench.dtype)
    host = host.pin_memory() if pinned else host
    if probe.op.startswith("copy_to_gpu"):
        return lambda: host.to(bench.device, non_blocking=pinned)
    data = bench.randn(probe["numel"])
    return lambda: host.copy_(data, non_blocking=True)


@_maker(*_HEAD_OPS)
def _make_heads(bench: _Bench, probe: Probe) -> Call:
    batch, seq, heads, dim = (probe[name] for name in ("batch", "seq", "heads", "head_dim"))
    if probe.op == "merge_heads":
        data = bench.randn(batch, heads, seq, dim).transpose(1, 2)
        return lambda: data.contiguous()
    data = bench.randn(batch, seq, heads, dim).transpose(1, 2)
    if probe.op == "split_heads":
        return lambda: data.contiguous()
    if probe.op == "expand_heads":
        few = bench.randn(batch, heads, 1, seq, dim)
        return lambda: few.expand(batch, heads, 4, seq, dim).reshape(batch, 4 * heads, seq, dim)
    half = dim // 2
    cat = bench.torch.cat
    return lambda: cat((data[..., half:], data[..., :half]), dim=-1)


@_maker(*_MAP_OPS)
def _make_map(bench: _Bench, probe: Probe) -> Call:
    torch = bench.torch
    functional = torch.nn.functional
    channels, backward = probe["channels"], probe.op.endswith("_backward")
    last = probe["memory_format"] == "channels_last"
    order, other = torch.contiguous_format, torch.channels_last
    order, other = (other, order) if last else (order, other)
    data = bench.randn(probe["batch"], channels, probe["image"], probe["image"])
    data = data.to(memory_format=order).detach().requires_grad_(backward)
    weight, bias = (bench.randn(channels, dtype=torch.float32, grad=backward) for _ in range(2))
    mean, variance = torch.zeros_like(weight.detach()), torch.ones_like(weight.detach())
    narrow_weight, narrow_bias = (part.detach().to(bench.dtype) for part in (weight, bias))

    def batch_norm(training: bool) -> Any:
        return functional.batch_norm(data, mean, variance, weight, bias, training)

    calls: dict[str, Call] = {
        "batch_norm": lambda: batch_norm(True),
        "batch_norm_eval": lambda: batch_norm(False),
        "group_norm": lambda: functional.group_norm(data, 32, narrow_weight, narrow_bias),
        "instance_norm": lambda: functional.instance_norm(data),
        "other_format": lambda: data.contiguous(memory_format=other),
        "cat_channels": lambda: torch.cat((data, data), dim=1),
        "crop": lambda: data[..., 1:-1, 1:-1].contiguous(memory_format=order),
        "pad": lambda: functional.pad(data, (1, 1, 1, 1)),
        "max_pool": lambda: functional.max_pool2d(data, 3, 2, 1),
        "average_pool": lambda: functional.adaptive_avg_pool2d(data, 1),
        "upsample_nearest": lambda: functional.interpolate(data, scale_factor=2),
        "upsample_bilinear": lambda: functional.interpolate(
            data, scale_factor=2, mode="bilinear", align_corners=False
        ),
    }
    leaves = (data, weight, bias) if probe.op.startswith("batch_norm") else (data,)
    return bench.pass_of(calls[probe.op.removesuffix("_backward")], *leaves)


@_maker("adamw", "adam", "sgd", "clip_grad_norm", "unscale")
def _make_optimizer(bench: _Bench, probe: Probe) -> Call:
    torch = bench.torch
    parameters = [bench.randn(probe["numel"], grad=True) for _ in range(probe["tensors"])]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    if probe.op == "clip_grad_norm":
        return lambda: torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    if probe.op == "unscale":
        found = torch.zeros((), device=bench.device)
        one = torch.ones((), device=bench.device)
        gradients = [parameter.grad for parameter in parameters]
        unscale = torch._amp_foreach_non_finite_check_and_unscale_
        return lambda: unscale(gradients, found, one)
    implementation = probe["implementation"]
    options = {"fused": implementation == "fused", "foreach": implementation == "foreach"}
    if probe.op == "sgd":
        optimizer = torch.optim.SGD(parameters, lr=1e-4, momentum=0.9, **options)
    else:
        made = torch.optim.AdamW if probe.op == "adamw" else torch.optim.Adam
        optimizer = made(parameters, lr=1e-4, **options)
    optimizer.step()  # its state is made by the first one
    return lambda: optimizer.step()


@_maker("all_reduce")
def _make_all_reduce(bench: _Bench, probe: Probe) -> Call:
    torch = bench.torch
    parts = [
        torch.zeros(probe["numel"], device=f"{bench.device}:{index}")
        for index in range(needs_gpus(probe))
    ]
    return lambda: torch.cuda.nccl.all_reduce(parts)
