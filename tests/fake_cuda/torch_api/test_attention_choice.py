"""The ported rules answer as torch's compiled selector did."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from neusight.fake_cuda.torch_api.attention_choice import AttentionCall, choose_attention, priority
from neusight.recording.recording import TensorSpec
from places import SHARED

GOLDEN = SHARED / "data" / "attention_choice"
CAPABILITIES = {
    number: divmod(number, 10) for number in (70, 75, 80, 86, 89, 90, 100, 103, 110, 120, 121)
}
choose = partial(choose_attention, compute_capability=(9, 0), cudnn_version=92000)
LETTERS = {"C": "cudnn", "F": "flash", "E": "efficient", "M": "math", "X": "error"}

#: Torch's answers (2.13.0, cuDNN 9.20), one letter for each of CAPABILITIES in order.
EXTRACT = {
    "bf16 D64 grad=1": "MMFFFCCCFFF",
    "fp32 D64 grad=1": "EEEEEEEEEEE",
    "fp64 D64 grad=0": "MMMMMMMMMMM",
    "fp16 D63 grad=0": "MMFFFFFFFFF",
    "fp32 D63 grad=0": "EEMMMMMMMMM",
    "fp16 D136 grad=0": "EEFFFCFFFFF",
    "fp16 D200 grad=1": "EEFEECFFFEE",
    "fp16 D256 grad=1 dropout": "EEFEEFFFFEE",
    "fp16 D264 grad=0": "EEEEEEEEEEE",
    "fp16 Sq1 Sk1 grad=0": "EEFFFFFFFFF",
    "fp16 Sq64 Sk128 causal grad=0": "EEEEECCCEEE",
    "fp16 layout=bshd grad=1 dropout=0.1": "EEFFFFFFFFF",
    "mask bool B11L grad=0": "EEEEECCCEEE",
    "mask fp16 requires_grad grad=1": "EEEEEEEEEEE",
    "GQA H8 Hk2 enable_gqa fp16 grad=0": "MMFFFCCCFFF",
    "GQA H8 Hk2 enable_gqa fp32": "MMMMMMMMMMM",
    "GQA H8 Hk2 enable_gqa mask fp16": "MMMMMCCCMMM",
    "D192 Dv128 grad=1": "EEEEECCCEEE",
    "3-D fp16": "MMMMMMMMMMM",
    "last dim stride 2": "MMMMMMMMMMM",
    "k,v batch 1 (broadcast)": "MMMMMMMMMMM",
    "forced FLASH_ATTENTION fp16": "XXFFFFFFFFF",
    "forced CUDNN_ATTENTION fp16": "XXCCCCCCCCC",
    "forced CUDNN_ATTENTION fp16 D256 grad drop": "XXXXXCXXXXX",
    "deterministic fp16 mask grad=1": "EEEEEEEEEEE",
    "cudnn off: fp16 grad": "EEFFFFFFFFF",
}

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}


def contiguous(*shape: int, dtype: str = "float16") -> TensorSpec:
    stride, strides = 1, []
    for size in reversed(shape):
        strides.append(stride)
        stride *= max(size, 1)
    return TensorSpec(shape, tuple(reversed(strides)), dtype)


def heads_after_sequence(batch: int, heads: int, seq: int, dim: int, *, dtype: str) -> TensorSpec:
    """What `x.view(batch, seq, heads, dim).transpose(1, 2)` gives."""
    stride = (seq * heads * dim, dim, heads * dim, 1)
    return TensorSpec((batch, heads, seq, dim), stride, dtype)


def attention(
    *,
    B: int = 2,
    H: int = 8,
    S: int = 128,
    D: int = 64,
    L: int | None = None,
    Hk: int | None = None,
    Dv: int | None = None,
    dtype: str = "fp16",
    grad: int = 0,
    layout: str = "bhsd",
    mask: TensorSpec | None = None,
    mask_requires_grad: bool = False,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    enable_gqa: bool = False,
    deterministic: bool = False,
    only: str = "",
) -> AttentionCall:
    def spec(heads: int, seq: int, dim: int) -> TensorSpec:
        if layout == "bshd":
            return heads_after_sequence(B, heads, seq, dim, dtype=DTYPES[dtype])
        return contiguous(B, heads, seq, dim, dtype=DTYPES[dtype])

    num_keys = S if L is None else L
    return AttentionCall(
        query=spec(H, S, D),
        key=spec(Hk or H, num_keys, D),
        value=spec(Hk or H, num_keys, Dv or D),
        mask=mask,
        mask_requires_grad=mask_requires_grad,
        requires_grad=bool(grad),
        dropout_p=dropout_p,
        is_causal=is_causal,
        enable_gqa=enable_gqa,
        deterministic=deterministic,
        flash_enabled=only in ("", "FLASH_ATTENTION"),
        efficient_enabled=only in ("", "EFFICIENT_ATTENTION"),
        cudnn_enabled=only in ("", "CUDNN_ATTENTION"),
        math_enabled=only in ("", "MATH"),
    )


def boolean(*shape: int) -> TensorSpec:
    return contiguous(*shape, dtype="bool")


def dtype_and_head_dim_calls() -> Iterator[tuple[str, AttentionCall]]:
    for dtype in ("bf16", "fp16", "fp32", "fp64"):
        for grad in (0, 1):
            yield f"{dtype} D64 grad={grad}", attention(dtype=dtype, grad=grad)
    head_dims = (8, 16, 20, 32, 63, 64, 72, 80, 96, 100, 120, 128, 136, 160, 192, 200, 224, 256)
    for dim in (*head_dims, 264, 320, 512):
        for grad in (0, 1):
            yield f"fp16 D{dim} grad={grad}", attention(D=dim, grad=grad)
            yield f"fp32 D{dim} grad={grad}", attention(D=dim, grad=grad, dtype="fp32")
        yield f"fp16 D{dim} grad=1 dropout", attention(D=dim, grad=1, dropout_p=0.1)
    for dim, value_dim in ((64, 128), (128, 64), (192, 128), (576, 512)):
        for grad in (0, 1):
            yield f"D{dim} Dv{value_dim} grad={grad}", attention(D=dim, Dv=value_dim, grad=grad)
            yield (
                f"bf16 D{dim} Dv{value_dim} grad={grad} causal",
                attention(D=dim, Dv=value_dim, grad=grad, dtype="bf16", is_causal=True),
            )


def sequence_and_layout_calls() -> Iterator[tuple[str, AttentionCall]]:
    lengths = ((1, 1), (1, 128), (128, 1), (1, 4096), (7, 7), (64, 128), (128, 64), (4096, 4096))
    for queries, keys in (*lengths, (32768, 32768)):
        for grad in (0, 1):
            call = attention(S=queries, L=keys, grad=grad)
            yield f"fp16 Sq{queries} Sk{keys} grad={grad}", call
            yield f"fp16 Sq{queries} Sk{keys} causal grad={grad}", replace(call, is_causal=True)
    for layout in ("bhsd", "bshd"):
        for grad in (0, 1):
            for dropout in (0.0, 0.1):
                yield (
                    f"fp16 layout={layout} grad={grad} dropout={dropout}",
                    attention(layout=layout, grad=grad, dropout_p=dropout),
                )


def mask_calls() -> Iterator[tuple[str, AttentionCall]]:
    masks = {
        "bool B1SL": boolean(2, 1, 128, 128),
        "bool SL": boolean(128, 128),
        "bool BHSL": boolean(2, 8, 128, 128),
        "bool B11L": boolean(2, 1, 1, 128),
        "fp16 B1SL": contiguous(2, 1, 128, 128),
        "fp32 B1SL": contiguous(2, 1, 128, 128, dtype="float32"),
    }
    for grad in (0, 1):
        for name, mask in masks.items():
            yield f"mask {name} grad={grad}", attention(mask=mask, grad=grad)
        trained = attention(mask=contiguous(2, 8, 128, 128), grad=grad, mask_requires_grad=True)
        yield f"mask fp16 requires_grad grad={grad}", trained
    unaligned = attention(S=100, mask=boolean(2, 1, 100, 100))
    yield "mask S100 bool (unaligned last dim)", unaligned
    yield "mask S101 bool", attention(S=101, mask=boolean(2, 1, 101, 101))
    yield "mask+causal", attention(mask=boolean(128, 128), is_causal=True)


def grouped_query_calls() -> Iterator[tuple[str, AttentionCall]]:
    for heads in (1, 2, 8):
        name = f"GQA H8 Hk{heads}"
        for grad in (0, 1):
            call = attention(Hk=heads, enable_gqa=True, grad=grad)
            yield f"{name} enable_gqa fp16 grad={grad}", call
        yield f"{name} enable_gqa fp32", attention(Hk=heads, enable_gqa=True, dtype="fp32")
        masked = attention(Hk=heads, enable_gqa=True, mask=boolean(128, 128))
        yield f"{name} enable_gqa mask fp16", masked
        yield f"{name} no flag", attention(Hk=heads)
    yield "GQA 6/4 enable_gqa", attention(H=6, Hk=4, enable_gqa=True)


def odd_calls() -> Iterator[tuple[str, AttentionCall]]:
    for name, shape in (
        ("3-D fp16", (8, 128, 64)),
        ("2-D fp16", (128, 64)),
        ("5-D", (2, 2, 2, 16, 64)),
    ):
        spec = contiguous(*shape)
        yield name, AttentionCall(spec, spec, spec)
    strided = TensorSpec((2, 8, 128, 64), (131072, 16384, 128, 2), "float16")
    yield "last dim stride 2", AttentionCall(strided, strided, strided)
    half, full = contiguous(2, 8, 128, 64), contiguous(2, 8, 128, 64, dtype="float32")
    yield "mixed dtype q16 k32", AttentionCall(half, full, full)
    one = contiguous(1, 8, 128, 64)
    yield "k,v batch 1 (broadcast)", AttentionCall(half, one, one)
    yield "Sq=0", attention(S=0)
    yield "scale given", attention()
    yield "batch*heads 70000", attention(B=8750, S=16)


def switch_calls() -> Iterator[tuple[str, AttentionCall]]:
    for backend in ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH"):
        yield f"forced {backend} fp16", attention(only=backend)
        yield f"forced {backend} fp32", attention(only=backend, dtype="fp32")
        yield f"forced {backend} fp16 D256 grad drop", attention(only=backend, D=256, grad=1)
    for grad in (0, 1):
        call = attention(grad=grad, deterministic=True)
        yield f"deterministic fp16 grad={grad}", call
        masked = replace(call, mask=boolean(128, 128))
        yield f"deterministic fp16 mask grad={grad}", masked
    yield "cudnn off: fp16 grad", replace(attention(grad=1), cudnn_enabled=False)
    masked = attention(mask=boolean(128, 128))
    yield "cudnn off: fp16 mask", replace(masked, cudnn_enabled=False)


CALLS = dict(
    pair
    for family in (
        dtype_and_head_dim_calls,
        sequence_and_layout_calls,
        mask_calls,
        grouped_query_calls,
        odd_calls,
        switch_calls,
    )
    for pair in family()
)


def recorded_choice(answer: str) -> str:
    """The selector's choice in a golden answer, which holds the op that ran or the error raised."""
    if answer.endswith("_attention"):
        return answer.removesuffix("_attention")
    if "No available kernel" in answer:
        return "error"
    return "math"  # other errors and plain op lists come from the math path


@pytest.mark.parametrize("architecture", CAPABILITIES)
def test_every_recorded_call_gets_the_recorded_backend(architecture: int) -> None:
    path = GOLDEN / f"sdpa_{architecture}.json"
    if not path.exists():
        pytest.skip("the full golden table is not part of this checkout; the extract is tested")
    golden: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    assert set(golden) == set(CALLS)

    chosen = {
        name: choose(call, compute_capability=CAPABILITIES[architecture])
        for name, call in CALLS.items()
    }

    assert chosen == {name: recorded_choice(answer) for name, answer in golden.items()}


@pytest.mark.parametrize("name", EXTRACT)
def test_the_extract_gets_the_recorded_backend(name: str) -> None:
    chosen = [
        choose(CALLS[name], compute_capability=capability) for capability in CAPABILITIES.values()
    ]

    assert chosen == [LETTERS[letter] for letter in EXTRACT[name]]


def test_a_call_has_the_defaults_of_torch() -> None:
    spec = contiguous(2, 8, 128, 64)

    assert AttentionCall(spec, spec, spec) == attention()


def test_there_are_as_many_calls_as_were_recorded() -> None:
    assert len(CALLS) == 229


def test_the_environment_can_put_cudnn_last() -> None:
    order = priority((9, 0), 92000, cudnn_deprioritized=True)

    assert order == ("flash", "efficient", "math", "cudnn")
    assert choose(replace(attention(), priority=order)) == "flash"


EXPANDED = TensorSpec((2, 1, 128, 128), (128, 128, 1, 0), "bool")  # along the keys


@pytest.mark.parametrize(
    ("call", "options", "expected"),
    [
        (attention(), {"cudnn_version": 91500}, "flash"),
        (attention(), {"cudnn_version": 91501}, "cudnn"),
        (attention(dropout_p=1 / 16), {}, "cudnn"),
        (attention(dropout_p=3 / 32), {}, "flash"),
        (attention(dropout_p=0.125), {}, "cudnn"),
        (attention(dropout_p=0.1), {}, "flash"),
        (replace(attention(), priority=("efficient", "math")), {}, "efficient"),
        (attention(only="NONE"), {}, "error"),
        (attention(mask=EXPANDED), {}, "math"),
    ],
)
def test_cudnn_dropout_priority_and_masks_decide_on_hopper(
    call: AttentionCall, options: dict[str, int], expected: str
) -> None:
    assert choose(call, **options) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("only", "dtype", "first", "letters"),
    [
        ("FLASH_ATTENTION", "fp16", (8, 0), "XFFX"),
        ("EFFICIENT_ATTENTION", "fp32", (5, 0), "XEEX"),
        ("CUDNN_ATTENTION", "fp16", (8, 0), "XCCX"),
    ],
)
def test_each_kernel_is_built_for_architectures_from_its_first_to_consumer_blackwell(
    only: str, dtype: str, first: tuple[int, int], letters: str
) -> None:
    """sdp_utils.cpp: before the first, the first, sm121 and what comes after it."""
    capabilities = [(first[0] - 1, 9), first, (12, 1), (12, 2)]
    call = attention(dtype=dtype, only=only)

    chosen = [choose(call, compute_capability=capability) for capability in capabilities]

    assert chosen == [LETTERS[letter] for letter in letters]


@pytest.mark.parametrize(
    ("capability", "letters"),
    [
        ((8, 5), "FFFFFFX"), ((8, 6), "FXXFXFX"), ((8, 9), "FXXFXFX"), ((9, 0), "FFFFFFX"),
        ((11, 9), "FFFFFFX"), ((12, 0), "FXXFXFX"), ((12, 1), "FXXFXFX"),
    ],
)  # fmt: skip
def test_wide_heads_have_no_gradient_on_chips_with_little_shared_memory(
    capability: tuple[int, int], letters: str
) -> None:
    flash = partial(attention, grad=1, only="FLASH_ATTENTION")
    calls = [flash(D=size) for size in (192, 193, 224, 225)]
    calls += [flash(D=225, dropout_p=0.1), flash(D=256), flash(D=257)]

    chosen = [choose(call, compute_capability=capability) for call in calls]

    assert chosen == [LETTERS[letter] for letter in letters]
    assert choose(attention(D=224, only="FLASH_ATTENTION"), compute_capability=(8, 6)) == "flash"


CUDNN = partial(attention, only="CUDNN_ATTENTION")


@pytest.mark.parametrize(
    ("call", "capability", "version", "is_taken"),
    [
        (CUDNN(), (9, 0), 89999, False), (CUDNN(), (9, 0), 90000, True),
        (CUDNN(dropout_p=1 / 16), (9, 0), 91100, True),
        (CUDNN(dropout_p=1 / 16), (9, 0), 91101, False),
        (CUDNN(dropout_p=1 / 16), (9, 0), 91399, False),
        (CUDNN(dropout_p=1 / 16), (9, 0), 91400, True),
        (CUDNN(dropout_p=1 / 32), (9, 0), 92000, False),
        (CUDNN(dropout_p=1 / 16, S=1, L=8), (9, 0), 92000, False),
        (CUDNN(S=1, L=8), (9, 0), 92000, True), (CUDNN(S=8, L=1), (9, 0), 92000, False),
        (CUDNN(S=8, L=2), (9, 0), 92000, True),
        (CUDNN(D=128), (8, 0), 90000, True), (CUDNN(D=136), (8, 0), 92000, False),
        (CUDNN(D=256), (9, 0), 90999, False), (CUDNN(D=256), (9, 0), 91000, True),
        (CUDNN(D=264), (9, 0), 92000, False), (CUDNN(D=256), (9, 1), 92000, False),
        (CUDNN(D=192, Dv=128), (10, 0), 91099, False), (CUDNN(D=192, Dv=128), (10, 0), 91100, True),
        (CUDNN(D=192, Dv=128), (11, 0), 92000, False),
        (CUDNN(D=192, Dv=136), (10, 3), 92000, False),
        (CUDNN(D=184, Dv=128), (10, 0), 92000, False),
        (CUDNN(D=124), (9, 0), 92000, False), (CUDNN(D=64, Dv=60), (9, 0), 92000, False),
        (CUDNN(H=8, Hk=2, enable_gqa=True), (9, 0), 92000, True),
        (CUDNN(H=8, Hk=3, enable_gqa=True), (9, 0), 92000, False),
    ],
)  # fmt: skip
def test_what_cudnn_takes_depends_on_its_version(
    call: AttentionCall, capability: tuple[int, int], version: int, is_taken: bool
) -> None:
    found = choose(call, compute_capability=capability, cudnn_version=version)

    assert found == ("cudnn" if is_taken else "error")


@pytest.mark.parametrize(
    ("dtype", "capability", "dim"), [("fp32", (8, 0), 4), ("fp16", (7, 0), 8), ("fp32", (7, 5), 1)]
)
def test_heads_of_the_efficient_kernel_are_aligned_where_tensor_cores_read_them(
    dtype: str, capability: tuple[int, int], dim: int
) -> None:
    calls = [
        attention(dtype=dtype, D=60 + more, only="EFFICIENT_ATTENTION") for more in range(1, 9)
    ]

    chosen = [choose(call, compute_capability=capability) for call in calls]

    assert chosen == ["error" if more % dim else "efficient" for more in range(61, 69)]


def test_the_efficient_kernel_takes_heads_of_one_element_and_none_of_no_element() -> None:
    """Where a GEMM's operands are not aligned (sdp_utils.cpp)."""
    one, none = (attention(D=size, dtype="fp32", only="EFFICIENT_ATTENTION") for size in (1, 0))

    chosen = [choose(call, compute_capability=(7, 0)) for call in (one, none)]

    assert chosen == ["efficient", "error"]


@pytest.mark.parametrize(("dim", "expected"), [(1, "flash"), (2, "math")])
def test_elements_of_heads_lie_side_by_side_where_a_head_has_several(
    dim: int, expected: str
) -> None:
    spaced = TensorSpec((2, 8, 128, dim), (8 * 128 * 4 * dim, 128 * 4 * dim, 4 * dim, 4), "float16")
    call = replace(attention(D=dim), query=spaced, key=spaced, value=spaced)

    assert choose(call, compute_capability=(8, 0)) == expected


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (attention(), "flash"),
        (attention(dtype="bf16", grad=1, dropout_p=0.1), "flash"),
        (attention(dtype="fp32"), "efficient"),
        (attention(mask=boolean(128, 128)), "efficient"),
        (attention(Hk=2, enable_gqa=True), "flash"),
        (attention(Hk=2, enable_gqa=True, mask=boolean(128, 128)), "math"),
        (attention(dtype="fp64"), "math"),
        (attention(D=72, only="EFFICIENT_ATTENTION"), "efficient"),
        (attention(D=68, dtype="fp32", only="EFFICIENT_ATTENTION"), "efficient"),
        (attention(D=68, only="EFFICIENT_ATTENTION"), "error"),
    ],
)
def test_amd_never_takes_cudnn(call: AttentionCall, expected: str) -> None:
    assert choose(call, compute_capability=(9, 4), vendor="amd") == expected
