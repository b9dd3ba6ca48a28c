"""How far a peak may be off, and the verdict of three."""

from __future__ import annotations

from typing import Any

import pytest

from neusight.memory.placement import memory_of, memory_on
from neusight.memory.spread import PeakRange, Spread, spread_of, verdict_of_memory
from neusight.predictors.gpu import GPU, find_gpu
from neusight.recording.recording import (
    Alloc,
    Free,
    MathMode,
    OpCall,
    Recording,
    Step,
    StorageRef,
)
from op_calls import call, spec

MIB = 2**20


def recording(*entries: Any, torch_version: str = "2.13") -> Recording:
    return Recording((Step("train", entries),), gpu="A100", torch_version=torch_version)


def convolution(*, benchmark: bool = False) -> OpCall:
    image, weight = spec(8, 16, 32, 32), spec(16, 16, 3, 3)
    signature = call(
        "convolution", image, input=image, weight=weight, bias=None, stride=(1, 1),
        padding=(1, 1), dilation=(1, 1), transposed=False, output_padding=(0, 0), groups=1,
    )  # fmt: skip
    return OpCall(signature, MathMode(cudnn_benchmark=benchmark))


def needs(num_mib: int) -> Recording:
    """One tensor of that many MiB."""
    return recording(Alloc(0, num_mib * MIB))


def sized(num_mib: int) -> GPU:
    """An A100 with so much memory beyond its context of 400 MiB."""
    from dataclasses import replace

    return replace(
        find_gpu("A100"), memory_bytes=(num_mib + 400) * MIB, context_bytes=400 * MIB, aliases=()
    )


@pytest.mark.parametrize(
    ("memory_mib", "verdict", "fits"),
    [
        (10_700, "fits", True),  # 10,000 and 3 % of it, and 350 for kernels that are loaded
        (10_600, "close", True),
        (10_000, "close", True),
        (9_990, "close", False),
        (9_800, "close", False),  # 1 % less, and a quarter of the context
        (9_798, "does not fit", False),
    ],
)
def test_what_lies_within_the_spread_is_close(memory_mib: int, verdict: str, fits: bool) -> None:
    memory = memory_on(needs(10_000), sized(memory_mib))

    assert (memory.verdict, memory.fits) == (verdict, fits)


def test_memory_that_the_allocator_would_give_back_is_not_held_against_a_program() -> None:
    """3000 MiB reserved for what is gone, then 4000: 7000 in all, but 4000 are enough."""
    gone = recording(Alloc(0, 3000 * MIB), Free(StorageRef(0, 0)), Alloc(1, 4000 * MIB))

    memory = memory_on(gone, sized(7100))

    assert memory.needed_range.high > memory.total_bytes > 7300 * MIB
    assert memory.verdict == "fits"


def test_a_peak_without_a_limit_fits() -> None:
    assert memory_of(needs(10)).verdict == "fits"
    assert memory_of(needs(10), capacity_bytes=MIB).verdict == "does not fit"


def test_a_convolution_may_take_as_much_again_as_its_tensors() -> None:
    num_bytes = (2 * 8 * 16 * 32 * 32 + 16 * 16 * 9) * 4

    assert spread_of(recording(convolution())).optional_bytes == num_bytes
    assert spread_of(recording(convolution(benchmark=True))).optional_bytes == 2 * num_bytes
    assert spread_of(needs(1)).optional_bytes == 0


def test_what_a_convolution_may_take_more_is_at_most_a_gibibyte() -> None:
    """Images of 512 MiB, at the host or not."""
    image, weight, host = spec(2**11, 2**16), spec(1), spec(2**28, device="cpu")
    sizes = []
    for inputs in ((image, weight), (image, image), (image, image, weight), (image, host)):
        arguments = {f"argument_{at}": tensor for at, tensor in enumerate(inputs)}
        found = spread_of(recording(OpCall(call("convolution", **arguments), MathMode())))
        sizes.append(found.optional_bytes)

    assert sizes == [512 * MIB + 4, 1024 * MIB, 1024 * MIB, 512 * MIB]


def test_what_cudnn_can_do_without_makes_a_peak_and_fails_no_program() -> None:
    plain, wide = Spread(), Spread(optional_bytes=100)

    assert wide.allocated(1000).high == plain.allocated(1000).high + 100
    assert wide.needed(1000, 10) == plain.needed(1000, 10)


def test_a_recurrent_network_may_need_its_gates_beside_its_tensors() -> None:
    states = spec(64, 32, 1024)
    signature = call("_cudnn_rnn", states, input=states)

    found = spread_of(recording(OpCall(signature, MathMode())))

    assert found.workspace_bytes == 4 * 2 * 64 * 32 * 1024 * 4
    assert found.needed(0, 0).high == found.workspace_bytes + 350 * MIB


def test_the_largest_unknown_workspace_counts_once() -> None:
    once, twice = recording(convolution()), recording(convolution(), convolution())

    assert spread_of(once) == spread_of(twice)


def test_before_1_13_all_kernels_were_loaded_with_the_context() -> None:
    """1343 MiB were reported of a V100, whose context is 350 here."""
    more = {
        version: spread_of(recording(torch_version=version)).needed(0, 350 * MIB).high // MIB
        for version in ("1.10.0", "1.12.1", "1.13.0", "2.0.0")
    }

    assert more == {"1.10.0": 1350, "1.12.1": 1350, "1.13.0": 700, "2.0.0": 700}


def test_ranges_hold_the_peak_and_grow_with_what_is_not_known() -> None:
    plain, wide = Spread(), Spread(workspace_bytes=100)

    assert plain.allocated(1000) == PeakRange(995, 1010)
    assert plain.needed(1000, 400) == PeakRange(990 + 300, 1030 + 400 + 350 * MIB)
    assert wide.allocated(1000) == PeakRange(995, 1110)
    assert wide.needed(1000, 0) == PeakRange(990, 1130 + 350 * MIB)


def test_another_capacity_is_queried_only_where_the_sum_does_not_decide() -> None:
    asked: list[int] = []

    def answer(capacity_bytes: int) -> bool:
        asked.append(capacity_bytes)
        return True

    for capacity in (200, 115):
        reported = verdict_of_memory(
            fits=True, needed_bytes=100, needed=PeakRange(90, 120), capacity_bytes=capacity,
            fits_into=answer,
        )  # fmt: skip
        assert reported == "fits"
    assert asked == [95]


@pytest.mark.parametrize(
    ("fits", "capacity", "least", "verdict", "queried"),
    [
        (True, 120, 0, "fits", []),
        (True, 119, 99, "fits", [99]),
        (True, 119, 100, "close", [99]),
        (False, 95, 105, "close", [105]),
        (False, 95, 106, "does not fit", [105]),
    ],
)
def test_the_verdict_is_that_of_both_ends(
    fits: bool, capacity: int, least: int, verdict: str, queried: list[int]
) -> None:
    """Of 90 to 120 bytes, 100 expected; `least` bytes are enough."""
    found: list[int] = []

    def fits_into(capacity_bytes: int) -> bool:
        found.append(capacity_bytes)
        return capacity_bytes >= least

    reported = verdict_of_memory(
        fits=fits, needed_bytes=100, needed=PeakRange(90, 120), capacity_bytes=capacity,
        fits_into=fits_into,
    )  # fmt: skip
    assert (reported, found) == (verdict, queried)
