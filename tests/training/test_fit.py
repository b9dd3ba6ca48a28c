"""Fitting: what a network learns from, how it is trained, and how sure it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from neusight.predictors import GPU, Kernel, Tiled, find_gpu
from neusight.predictors.errors import DataError
from neusight.predictors.learned.network import Network
from neusight.predictors.training import fit
from neusight.predictors.training.dataset import Group, Launches, is_held_out
from neusight.predictors.training.fit import (
    Rows,
    calibrated,
    calibrated_unseen,
    collect,
    train,
    with_prior_constants,
)

H100, A100 = find_gpu("H100"), find_gpu("A100")
FAMILY = "collective"
BYTES = [2**13 + 4099 * index * index for index in range(120)]


def physics_us(launches: list[Launches], gpu: GPU) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    kernels = [launch[-1] for launch in launches]
    times = Tiled(sustained=False, correction=None).timings(kernels, gpu)
    return np.array([time.time_us for time in times])


def group_of(gpu: GPU, factor: float, *, noise: float = 0.0) -> Group:
    """All-reduces that take `factor` times as long as the physics says."""
    launches: list[Launches] = [(Kernel.collective("all_reduce", size, 8),) for size in BYTES]
    drawn = np.random.default_rng(7).normal(size=len(BYTES))
    return Group(
        gpu_label=gpu.name,
        gpu=gpu,
        table="collectives",
        dtype="bf16",
        phase_or_op="all_reduce",
        launches=launches,
        latency_us=physics_us(launches, gpu) * factor * np.exp(noise * drawn),
        shape=np.arange(len(BYTES), dtype=np.uint64) * np.uint64(7919),
    )


@pytest.fixture(autouse=True)
def a_small_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = fit.RECIPES[FAMILY]._replace(
        hidden=(8,), epochs=60, unseen_epochs=20, batch_rows=32, unseen_batch_rows=32
    )
    monkeypatch.setitem(fit.RECIPES, FAMILY, recipe)


def factor_of(network: Network, rows: Rows) -> float:
    """The factor that a network gives those rows, in the middle."""
    return float(np.exp(np.median(network.run(rows.features))))


def test_a_row_is_learnt_from_as_measured_over_physical_time() -> None:
    [rows] = collect([group_of(H100, 1.5)], FAMILY)

    assert rows.features.shape == (120, 11)
    assert rows.target == pytest.approx(np.log(1.5))
    assert rows.measured_us == pytest.approx(1.5 * rows.physics_us)


def test_only_rows_of_the_family_that_are_for_training_are_collected() -> None:
    group = group_of(H100, 1.5)

    assert collect([group], "gemm_16bit") == []
    assert collect([replace(group, is_for_training=False)], FAMILY) == []


def test_what_precedes_the_kernel_is_taken_off_its_label() -> None:
    group = group_of(H100, 1.0)
    first = Kernel.elementwise("add", 2**20, dtype="float32")
    launches = [(first, *launch) for launch in group.launches]
    both = replace(group, launches=launches, latency_us=group.latency_us + 30.0)
    parts = np.full(len(BYTES), 30.0)

    [measured] = collect([replace(both, parts_us=parts)], FAMILY)
    [told_by_physics] = collect([both], FAMILY)

    assert measured.measured_us == pytest.approx(group.latency_us)
    [estimate] = Tiled(sustained=False, correction=None).predict([first], H100)
    expected = group.latency_us + 30.0 - estimate.latency_us
    assert told_by_physics.measured_us == pytest.approx(expected)


@pytest.mark.parametrize("factor", [1.3, 0.8])
def test_a_network_learns_the_factor_on_the_physics(factor: float) -> None:
    [rows] = collect([group_of(H100, factor)], FAMILY)

    assert factor_of(train([rows], FAMILY), rows) == pytest.approx(factor, rel=0.05)


def test_a_network_knows_the_gpus_and_architectures_that_it_saw() -> None:
    network = train(collect([group_of(H100, 1.3), group_of(A100, 0.8)], FAMILY), FAMILY)

    assert network.gpus == ("A100-SXM4-80GB", "H100-SXM5-80GB")
    assert network.architectures == ("Ampere", "Hopper")


def test_held_out_shapes_change_nothing_that_is_learnt() -> None:
    group = group_of(H100, 1.3)
    held = is_held_out(group.shape)
    spoilt = replace(group, latency_us=np.where(held, 100.0, 1.0) * group.latency_us)

    first, second = (train(collect([one], FAMILY), FAMILY) for one in (group, spoilt))

    assert 0 < held.sum() < len(BYTES) / 2
    for (matrix, bias), (same_matrix, same_bias) in zip(first.layers, second.layers, strict=True):
        assert (matrix.tobytes(), bias.tobytes()) == (same_matrix.tobytes(), same_bias.tobytes())


def test_another_seed_gives_other_weights_and_the_same_one_the_same() -> None:
    rows = collect([group_of(H100, 1.3)], FAMILY)

    one, again, other = (train(rows, FAMILY, seed=seed) for seed in (1, 1, 2))

    assert one.layers[0][0].tobytes() == again.layers[0][0].tobytes()
    assert one.layers[0][0].tobytes() != other.layers[0][0].tobytes()


def test_no_rows_are_refused() -> None:
    with pytest.raises(DataError, match="There are no rows to train collective on"):
        train([], FAMILY)


def test_intervals_are_as_wide_as_the_noise_of_held_out_shapes() -> None:
    def width(noise: float) -> float:
        rows = collect([group_of(H100, 1.0, noise=noise)], FAMILY)
        return float(np.median(calibrated(train(rows, FAMILY), rows).spreads))

    assert width(0.3) > 3 * width(0.03)


def test_what_was_never_seen_is_never_surer_than_what_was() -> None:
    rows = collect([group_of(H100, 1.3), group_of(A100, 0.8)], FAMILY)
    known = calibrated(train(rows, FAMILY), rows)

    unseen = calibrated_unseen(train(rows, FAMILY, unseen=True), known, rows, FAMILY)

    assert unseen.gpus == ()
    own, prior, new_own, new_prior = unseen.spreads
    assert (own >= np.median(known.spreads, axis=0)).all()
    for narrow, wide in ((own, prior), (own, new_own), (prior, new_prior), (new_own, new_prior)):
        assert (narrow <= wide).all()


def test_one_gpu_alone_says_nothing_of_others_but_that_they_are_less_sure() -> None:
    rows = collect([group_of(H100, 1.3)], FAMILY)
    known = calibrated(train(rows, FAMILY), rows)

    unseen = calibrated_unseen(train(rows, FAMILY, unseen=True), known, rows, FAMILY)

    assert (unseen.spreads >= 1.9 * np.median(known.spreads, axis=0)).all()


def test_prior_constants_change_the_physics_and_keep_the_measurements() -> None:
    slow = replace(H100, link_floor_us=4 * H100.link_floor_us)
    [rows] = collect([group_of(slow, 1.3)], FAMILY)

    blind = with_prior_constants(rows, FAMILY, without=lambda gpu: gpu.name == H100.name)

    assert (blind.measured_us == rows.measured_us).all()
    assert blind.physics_us[0] < 0.3 * rows.physics_us[0]
    assert (blind.physics_us < rows.physics_us).all()


def test_progress_is_a_bar_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter(range(0, 100, 10))
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    for is_terminal in (True, False):
        monkeypatch.setattr("sys.stderr.isatty", lambda of=is_terminal: of)
        bar = fit._Bar("gemm", enabled=True)
        bar.show(0.5)
        bar.end()
    fit._Bar("gemm", enabled=False).end()

    shown = capsys.readouterr().err
    half = "\rgemm                 ███████████████···············  50%, 10 s left "
    done = "gemm                 ██████████████████████████████ 100%, {} s      \n"
    assert shown == half + "\r" + done.format(20) + done.format(20)


def test_outside_of_a_checkout_and_without_git_there_is_no_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")

    assert fit.commit() == ""
