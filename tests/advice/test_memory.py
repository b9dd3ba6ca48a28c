"""What would make a program fit, and by how much."""

from __future__ import annotations

import neusight
from neusight.advice.memory import memory_advice
from neusight.memory.placement import memory_of, memory_on
from neusight.predictors.gpu import find_gpu
from neusight.recording.recording import Alloc, Batch, Entry, OpCall, Recording, Step
from op_calls import MATH, call, spec
from small_net import train

MIB = 2**20


def test_advice_states_what_fits_and_by_how_much(plain: neusight.Forecast) -> None:
    limit = 560 * MIB

    advice = memory_advice(
        plain.recording,
        plain.gpu,
        limit_bytes=limit,
        latency_of=lambda changed: plain.of(changed).step_latency_us.median,
    )

    assert not advice.fits
    assert advice.needed_bytes > limit
    first = advice.remedies[0]
    assert first.what == "checkpoint Net.blocks.* (6 modules)"
    assert first.fits
    assert first.saved_bytes == advice.needed_bytes - first.total_bytes
    assert first.added_us is not None
    assert 0 < first.added_us < plain.step_latency_us.median
    assert advice.batch is not None
    assert advice.batch.recorded == 16
    assert 1 <= advice.batch.batch < 16
    largest, spec = next(item for item in advice.tensors if item[0].kind != "workspace")
    assert spec is not None
    assert (spec.shape, largest.num_bytes) == ((2048, 1024), 8 * MIB)
    assert largest.stack[0].partition(":")[0].endswith("small_net.py")


def test_the_largest_batch_fits_and_one_more_does_not(plain: neusight.Forecast) -> None:
    limit = 700 * MIB
    found = memory_advice(plain.recording, plain.gpu, limit_bytes=limit).batch
    assert found is not None

    def fits(batch: int) -> bool:
        return memory_on(train(batch=batch).recording, plain.gpu, capacity_bytes=limit).fits

    assert fits(found.batch)
    assert not fits(found.batch + 1)


def test_needed_memory_suffices_and_less_does_not(plain: neusight.Forecast) -> None:
    needed = memory_advice(plain.recording, plain.gpu).needed_bytes

    assert memory_on(plain.recording, plain.gpu, capacity_bytes=needed).fits
    assert not memory_on(plain.recording, plain.gpu, capacity_bytes=int(needed * 0.995)).fits


def test_where_nothing_alone_suffices_all_together_are_tried(plain: neusight.Forecast) -> None:
    advice = memory_advice(plain.recording, plain.gpu, limit_bytes=470 * MIB)

    assert not any(remedy.fits for remedy in advice.remedies if "together" not in remedy.what)
    assert any("all of these together" in remedy.what for remedy in advice.remedies)


def test_nothing_recorded_needs_the_context_alone() -> None:
    advice = memory_advice(Recording((), gpu="A100", torch_version="2.13.0"), find_gpu("A100"))

    assert advice.fits
    assert advice.needed_bytes == find_gpu("A100").context_bytes
    assert advice.remedies == ()
    assert advice.batch is None


def test_no_batch_is_tried_above_a_thousand_times_the_recorded_one() -> None:
    signature = call("relu", spec(2, 4), self=spec(2, 4))
    entries: tuple[Entry, ...] = (OpCall(signature, MATH), Alloc(0, 32, "net", "aten::relu"))
    step = Step("eval", entries, batch=Batch(samples=2))
    program = Recording((step,), gpu="A100", torch_version="2.13.0")

    assert memory_advice(program, find_gpu("A100")).batch == (2048, 2)


def test_a_batch_that_nothing_shows_is_not_guessed() -> None:
    entries: tuple[Entry, ...] = (Alloc(0, 4 * MIB, "net", "aten::relu"),)
    for batch in (None, Batch(samples=2)):  # nothing that is allocated grows with the two
        step = Step("eval", entries, batch=batch or Batch())
        program = Recording((step,), gpu="A100", torch_version="2.13.0")

        assert memory_advice(program, find_gpu("A100")).batch is None
        assert memory_of(program).peak_allocated == 4 * MIB
