"""The physics of fused attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import AttentionSize, Kernel, Variant
from neusight.predictors.physics.attention import attention_timing, visible_tile_pairs
from neusight.predictors.physics.physical_time import PhysicalTime
from neusight.predictors.physics.roofline import flop_roofline_us

NAMES = st.sampled_from(["flash_attention", "cudnn_attention", "efficient_attention"])
GPUS = st.sampled_from(["H100", "A100", "B300", "T4"])
SEQUENCES = st.one_of(st.integers(0, 300), st.integers(0, 40_000))


def timing_of(
    name: Variant,
    gpu_name: str,
    batch: int,
    heads: int,
    seq_q: int,
    seq_kv: int,
    head_dim: int,
    causal: bool,
    backward: bool,
) -> tuple[Kernel, PhysicalTime]:
    kernel = Kernel.attention(
        batch, heads, heads, seq_q, seq_kv, head_dim,
        causal=causal, dtype="float16", backward=backward, name=name,
    )  # fmt: skip
    return kernel, attention_timing(kernel, find_gpu(gpu_name), sustained=False)


@settings(max_examples=300)
@given(
    NAMES, GPUS, st.tuples(st.integers(0, 64), st.integers(1, 64), SEQUENCES, SEQUENCES,
    st.integers(1, 256)), st.booleans(), st.integers(0, 4), st.integers(1, 1000),
)  # fmt: skip
def test_more_work_is_never_faster(
    name: Variant, gpu_name: str, size: tuple[int, ...], backward: bool, axis: int, more: int
) -> None:
    def time_us(sizes: Sequence[int]) -> float:
        batch, heads, seq_q, seq_kv, head_dim = sizes
        arguments = (name, gpu_name, batch, heads, seq_q, seq_kv, head_dim, False, backward)
        return timing_of(*arguments)[1].time_us

    larger = [length + more * (index == axis) for index, length in enumerate(size)]

    assert time_us(larger) >= time_us(size) * (1 - 1e-9)


@settings(max_examples=200)
@given(
    NAMES, GPUS, st.integers(0, 64), st.integers(1, 64), SEQUENCES, SEQUENCES,
    st.integers(1, 256), st.booleans(), st.booleans(),
)  # fmt: skip
def test_finite_and_above_the_flop_bound(
    name: Variant,
    gpu_name: str,
    batch: int,
    heads: int,
    seq_q: int,
    seq_kv: int,
    head_dim: int,
    causal: bool,
    backward: bool,
) -> None:
    kernel, timing = timing_of(
        name, gpu_name, batch, heads, seq_q, seq_kv, head_dim, causal, backward
    )

    assert math.isfinite(timing.time_us)
    assert timing.time_us >= flop_roofline_us(kernel, find_gpu(gpu_name))
    assert timing.time_us >= find_gpu(gpu_name).floor_us


@given(st.integers(1, 3000), st.integers(0, 3000), st.integers(1, 500))
def test_longer_causal_sequences_are_never_faster(sequence: int, cached: int, more: int) -> None:
    def timing(seq_q: int, seq_kv: int) -> PhysicalTime:
        return timing_of("flash_attention", "H100", 2, 8, seq_q, seq_kv, 64, True, False)[1]

    before = timing(sequence, sequence + cached).time_us

    assert timing(sequence, sequence + cached + more).time_us >= before * (1 - 1e-9)
    assert timing(sequence + more, sequence + cached + more).time_us >= before * (1 - 1e-9)


def test_causal_computes_the_lower_triangle_of_tiles() -> None:
    size = AttentionSize(1, 1, 1, 512, 512, 64, 64, True, False)

    assert visible_tile_pairs(size) == 10
    assert visible_tile_pairs(size._replace(causal=False)) == 16
    assert visible_tile_pairs(size._replace(seq_q=1)) == 4


def test_causal_is_faster_and_backward_slower() -> None:
    def time_us(causal: bool, backward: bool) -> float:
        shape = (8, 16, 4096, 4096, 128)
        return timing_of("flash_attention", "A100", *shape, causal, backward)[1].time_us

    assert time_us(True, False) < 0.6 * time_us(False, False)
    assert 2.5 < time_us(True, True) / time_us(True, False) < 4


def test_decode_reads_the_keys_of_shared_heads_once() -> None:
    kernel = Kernel.attention(64, 32, 4, 1, 8192, 128, causal=True, dtype="bfloat16")

    timing = attention_timing(kernel, find_gpu("H100"), sustained=False)

    assert timing.bound == "memory"
    assert timing.time_us < 2 * kernel.num_bytes / 3350e3


def test_on_hopper_cudnn_beats_flash_attention_2() -> None:
    arguments = ("H100", 8, 16, 4096, 4096, 128, True, False)

    _, cudnn = timing_of("cudnn_attention", *arguments)
    _, flash = timing_of("flash_attention", *arguments)

    assert cudnn.time_us < flash.time_us


def test_the_efficient_kernel_takes_few_keys_by_small_tiles() -> None:
    """Two keys a head, as a transformer that takes its batch for the sequence has (T4: 0.6 ms)."""
    gpu = find_gpu("T4")
    few, more = (
        Kernel.attention(
            197, 8, 8, 2, keys, 64, causal=False, dtype="float32", name="efficient_attention"
        )
        for keys in (64, 128)
    )

    assert attention_timing(more, gpu, sustained=True).time_us > 1.5 * (
        attention_timing(few, gpu, sustained=True).time_us
    )


def test_the_efficient_kernel_spills_long_rows() -> None:
    """data/kernelbench 97, head dimension 1024 on H100 SXM: 8.5 ms."""
    kernel = Kernel.attention(
        32, 32, 32, 512, 512, 1024, causal=False, dtype="float16", name="efficient_attention"
    )

    found = attention_timing(kernel, find_gpu("H100"), sustained=False)

    assert found.time_us == pytest.approx(8500, rel=0.15)


#: Shapes out of benchmarks/measured/h100: backend, whether backward, batch, heads, tokens, head
#: dimension, whether causal, and the time of that kernel, µs.
MEASURED: list[tuple[Variant, int, int, int, int, bool, float]] = [
    ("cudnn_attention", 64, 12, 128, 64, False, 17.1),
    ("cudnn_attention", 32, 12, 197, 64, False, 24.1),
    ("cudnn_attention", 8, 12, 1024, 64, True, 46.2),
    ("cudnn_attention", 4, 32, 4096, 128, False, 1731.1),
    ("flash_attention", 16, 16, 512, 64, False, 69.9),
    ("flash_attention", 8, 12, 1024, 64, False, 93.7),
    ("flash_attention", 4, 32, 4096, 128, False, 3179.5),
    ("efficient_attention", 8, 12, 1024, 64, False, 207.8),
    ("efficient_attention", 4, 16, 2048, 80, True, 453.2),
    ("efficient_attention", 4, 32, 4096, 128, False, 6167.8),
]


@pytest.mark.parametrize(
    ("name", "batch", "heads", "tokens", "head_dim", "causal", "measured_us"), MEASURED
)
def test_an_h100_took_about_as_long(
    name: Variant,
    batch: int,
    heads: int,
    tokens: int,
    head_dim: int,
    causal: bool,
    measured_us: float,
) -> None:
    kernel = Kernel.attention(
        batch, heads, heads, tokens, tokens, head_dim, causal=causal, dtype="bfloat16", name=name
    )

    found = attention_timing(kernel, find_gpu("H100"), sustained=False)

    assert found.time_us == pytest.approx(measured_us, rel=0.15)


@pytest.mark.parametrize(
    ("batch", "heads", "tokens", "head_dim", "measured_us"),
    [
        (4, 12, 197, 64, 31.2),  # ViT-base
        (1, 8, 141, 64, 27.3),  # BERT-small
        (1, 1, 16384, 512, 2961.0),  # the image decoder of Stable Diffusion 3.5
    ],
)
def test_aotriton_on_mi300x_takes_what_profiles_show(
    batch: int, heads: int, tokens: int, head_dim: int, measured_us: float
) -> None:
    """In bf16; none of them chose a constant (data/profiled_kernels)."""
    kernel = Kernel.attention(
        batch, heads, heads, tokens, tokens, head_dim, causal=False, dtype="bfloat16"
    )

    timing = attention_timing(kernel, find_gpu("MI300X"), sustained=True)

    assert timing.time_us == pytest.approx(measured_us, rel=0.16)


def test_both_fused_backends_of_amd_are_one_library() -> None:
    flash, efficient = (
        Kernel.attention(2, 16, 16, 2048, 2048, 128, causal=True, dtype="bfloat16", name=name)
        for name in ("flash_attention", "efficient_attention")
    )
    mi300x = find_gpu("MI300X")

    both = [attention_timing(kernel, mi300x, sustained=False) for kernel in (flash, efficient)]

    assert both[0].time_us == both[1].time_us


@pytest.mark.parametrize(
    ("gpu", "tokens", "measured_us"),
    [("RTX A6000", 32, 5.2), ("RTX A6000", 112, 7.4), ("H100", 48, 9.3), ("H100", 1715, 94.4)],
)
def test_torchs_flash_attention_takes_what_profiles_show(
    gpu: str, tokens: int, measured_us: float
) -> None:
    # data/llm_layers, 16 query heads on 4 of keys: not among the rows of the constants.
    kernel = Kernel.attention(1, 16, 4, tokens, tokens, 128, causal=True, dtype="float16")
    kernel = replace(kernel, layout="contiguous")
    timing = attention_timing(kernel, find_gpu(gpu), sustained=False)
    assert min(timing.time_us, timing.at_most_us) == pytest.approx(measured_us, rel=0.3)


def test_only_torchs_own_short_kernels_are_bounded() -> None:
    kernel = Kernel.attention(1, 16, 4, 64, 64, 128, causal=True, dtype="float16")
    longer = Kernel.attention(1, 16, 4, 64, 129, 128, causal=True, dtype="float16")
    gpu = find_gpu("RTX A6000")
    for other in (kernel, replace(longer, layout="contiguous")):
        assert attention_timing(other, gpu, sustained=False).at_most_us == math.inf


def test_the_first_flash_attention_in_triton_takes_as_much_longer_as_its_successor_says() -> None:
    shape = ("A100", 1, 16, 32_768, 32_768, 128, True)

    ratios = [
        timing_of("flash_attention_triton", *shape, backward)[1].time_us
        / timing_of("flash_attention", *shape, backward)[1].time_us
        for backward in (False, True)
    ]

    assert ratios == [pytest.approx(1.4, rel=0.02), pytest.approx(1.8, rel=0.02)]
