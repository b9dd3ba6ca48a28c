"""A calibration wraps a predictor, saves, loads, and refuses what it was not made for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neusight.predictors import GPU, ConvolutionSize, Estimate, Kernel, KernelClass, find_gpu
from neusight.predictors.errors import CalibrationError, UnsupportedKernelError
from neusight.predictors.measuring.calibration import (
    Calibrated,
    Calibration,
    ClassCorrection,
    behaviour_of,
    variant_of,
    with_constants,
)
from neusight.predictors.physics.roofline import flop_roofline_us
from neusight.predictors.registry import find_predictor

GEMM = Kernel.gemm(2048, 2048, 2048)
RELU = Kernel.elementwise("relu", 1 << 22, dtype="float32")

GEMMS = ClassCorrection(
    kernel_class="gemm",
    dtype="bfloat16",
    factor=1.25,
    spread=0.1,
    num_samples=12,
    loo_error_before=0.22,
    loo_error_after=0.04,
    center_us=100.0,
    low_us=10.0,
    high_us=1000.0,
)


def calibration(*rows: ClassCorrection, name: str = "H100", **constants: float) -> Calibration:
    target = find_gpu(name)
    base = find_predictor()
    return Calibration(
        gpu=target.name,
        predictor=base.name,
        behaviour=behaviour_of(base, target),
        constants=constants,
        corrections=rows,
        plain_host={"op_us": 3.0},
        torch_version="2.6.0",
        source={
            "num_measurements": 12,
            "num_problems": 12,
            "loo_error_before": 0.22,
            "loo_error_after": 0.04,
        },
    )


def priced(made: Calibration, kernel: Kernel, target: GPU | None = None) -> Estimate:
    chosen = target or find_gpu(made.gpu)
    [estimate] = made.applied_to(find_predictor(), chosen).predict([kernel], chosen)
    return estimate


def plain(kernel: Kernel) -> Estimate:
    [estimate] = find_predictor().predict([kernel], find_gpu("H100"))
    return estimate


def test_a_correction_multiplies_the_forecasts_of_its_class_and_dtype_alone() -> None:
    made = calibration(GEMMS)

    assert priced(made, GEMM).latency_us == pytest.approx(1.25 * plain(GEMM).latency_us, abs=2e-3)
    assert priced(made, RELU).latency_us == plain(RELU).latency_us
    half = Kernel.gemm(2048, 2048, 2048, dtype="float16")
    assert priced(made, half).latency_us == plain(half).latency_us


def test_corrected_estimates_say_that_they_are_calibrated_and_others_do_not() -> None:
    made = calibration(GEMMS)

    assert priced(made, GEMM).predictor == "tiled, calibrated"
    assert priced(made, RELU).predictor == "tiled"


def test_the_interval_of_a_corrected_estimate_has_the_measured_spread() -> None:
    found = priced(calibration(GEMMS), GEMM)

    assert found.high_us / found.latency_us == pytest.approx(1.1, rel=1e-3)
    assert found.latency_us / found.low_us == pytest.approx(1.1, rel=1e-3)


def test_the_interval_is_wider_far_from_what_was_measured() -> None:
    near = calibration(replace(GEMMS, low_us=10.0, high_us=100.0))
    far = calibration(replace(GEMMS, low_us=0.1, high_us=1.0))

    assert priced(near, GEMM).in_range
    widths = [priced(made, GEMM).high_us / priced(made, GEMM).latency_us for made in (near, far)]
    assert widths == pytest.approx([1.1, 1.15], rel=1e-3)


def test_a_correction_fades_far_from_what_was_measured() -> None:
    row = replace(GEMMS, factor=1.44, low_us=10.0, high_us=100.0)

    found = [row.factor_at(time) for time in (10.0, 100.0, 1000.0, 1.0, 1e9)]

    assert found == pytest.approx([1.44, 1.44, 1.2, 1.2, 1.0], abs=0.01)


def test_a_row_that_is_not_applied_states_the_spread_and_changes_no_time() -> None:
    made = calibration(replace(GEMMS, factor=1.0, is_applied=False))

    assert priced(made, GEMM).latency_us == plain(GEMM).latency_us
    assert priced(made, GEMM).high_us == pytest.approx(1.1 * plain(GEMM).latency_us, rel=1e-3)


def test_a_variant_has_its_own_row_before_that_of_its_class() -> None:
    made = calibration(GEMMS, replace(GEMMS, variant="tn", factor=1.5))
    tn = Kernel.gemm(2048, 2048, 2048, layout="tn")

    assert priced(made, tn).latency_us == pytest.approx(1.5 * plain(tn).latency_us, abs=2e-3)
    assert priced(made, GEMM).latency_us == pytest.approx(1.25 * plain(GEMM).latency_us, abs=2e-3)


def test_constants_replace_those_of_the_gpu() -> None:
    made = calibration(bandwidth_utilization=0.45)
    large = Kernel.elementwise("relu", 1 << 28, dtype="float32")

    assert priced(made, large).latency_us == pytest.approx(2 * plain(large).latency_us, rel=0.06)


def test_a_class_that_the_constants_made_worse_is_priced_without_them() -> None:
    row = ClassCorrection("elementwise", "float32", 1.0, 0.1, 5, 0.1, 0.1, keeps_constants=False)
    large = Kernel.elementwise("relu", 1 << 28, dtype="float32")

    made = calibration(row, bandwidth_utilization=0.45)

    assert priced(made, large).latency_us == plain(large).latency_us


def test_no_correction_beats_the_peak() -> None:
    made = calibration(replace(GEMMS, factor=0.05))

    assert priced(made, GEMM).latency_us == pytest.approx(
        flop_roofline_us(GEMM, find_gpu("H100")), abs=1e-3
    )
    assert priced(made, GEMM).low_us == priced(made, GEMM).latency_us


@given(
    slope=st.floats(-0.3, 0.3),
    factor=st.floats(0.2, 5.0),
    times=st.lists(st.floats(0.5, 1e5), min_size=2, max_size=8),
)
def test_longer_forecasts_stay_longer(slope: float, factor: float, times: list[float]) -> None:
    row = replace(GEMMS, slope=slope, factor=factor)

    ordered = sorted(times)
    corrected = [time * row.factor_at(time) for time in ordered]

    assert all(first <= second * (1 + 1e-12) for first, second in pairwise(corrected))


def test_a_batch_and_single_kernels_come_out_alike() -> None:
    made = calibration(GEMMS, bandwidth_utilization=0.5).applied_to(
        find_predictor(), find_gpu("H100")
    )
    kernels = [GEMM, RELU, GEMM, Kernel.gemm(64, 64, 64)]

    together = made.predict(kernels, find_gpu("H100"))

    assert together == [made.predict([kernel], find_gpu("H100"))[0] for kernel in kernels]


def test_what_was_saved_is_read_back_equal_byte_for_byte(tmp_path: Path) -> None:
    made = calibration(GEMMS, floor_us=1.9)

    made.save(tmp_path / "deep" / "h100.json")
    again = Calibration.load(tmp_path / "deep" / "h100.json")
    again.save(tmp_path / "again.json")

    assert again == made
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "deep/h100.json").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.json", "deep"]


def test_a_calibration_wraps_a_predictor_once() -> None:
    made = calibration(GEMMS)
    once = made.applied_to(find_predictor(), find_gpu("H100"))

    twice = made.applied_to(once, find_gpu("H100"))

    assert isinstance(twice, Calibrated) and not isinstance(twice.base, Calibrated)


def test_another_gpu_another_predictor_and_another_version_are_refused() -> None:
    made = calibration(GEMMS)

    with pytest.raises(CalibrationError, match="is for 'H100-SXM5-80GB', the forecast for L4"):
        made.applied_to(find_predictor(), find_gpu("L4"))
    with pytest.raises(CalibrationError, match=r"corrects predictor 'tiled', .* 'roofline'"):
        made.applied_to(find_predictor("roofline"), find_gpu("H100"))
    with pytest.raises(CalibrationError, match=r"another version of neusight.*Calibrate again"):
        replace(made, behaviour="0123456789ab").applied_to(find_predictor(), find_gpu("H100"))


def test_a_changed_datasheet_changes_the_behaviour() -> None:
    changed = replace(find_gpu("H100"), bandwidth_gbps=2000.0)

    assert behaviour_of(find_predictor(), changed) != behaviour_of(
        find_predictor(), find_gpu("H100")
    )
    assert behaviour_of(find_predictor(), find_gpu("V100")) == behaviour_of(
        find_predictor(), find_gpu("V100")
    )


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("", "cannot be read: it is no JSON"),
        ("[1, 2]", "is not a calibration that neusight wrote"),
        ('{"gpu": "H100"}', "is no calibration"),
        ('{"format": "neusight calibration", "schema_version": 7}', "has schema version 7"),
    ],
)
def test_a_foreign_or_damaged_file_is_refused_by_name(
    tmp_path: Path, text: str, reported: str
) -> None:
    path = tmp_path / "c.json"
    path.write_text(text)

    with pytest.raises(CalibrationError, match=rf"c\.json.*{reported}"):
        Calibration.load(path)


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match=r"No such file.*neusight calibrate"):
        Calibration.load(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ({"gpu": ""}, "'gpu' is ''"),
        ({"constants": {"tdp_w": 3.0}}, r"constants\.tdp_w"),
        ({"constants": {"bandwidth_utilization": 1.5}}, "'constants.bandwidth_utilization' is 1.5"),
        ({"constants": {"floor_us": True}}, "'constants.floor_us' is True"),
        ({"corrections": [{"factor": "1"}]}, r"'corrections\[0\].factor' is '1'"),
        ({"corrections": "none"}, "'corrections' is 'none'"),
        ({"host": {"plain": {"op_us": -1.0}}}, "'host.plain.op_us' is -1.0"),
        ({"host": {"plain": 3}}, "'host.plain' is 3"),
    ],
)
def test_a_wrong_value_is_named(change: dict[str, object], reported: str) -> None:
    document = {**calibration(GEMMS).to_json(), **change}

    with pytest.raises(CalibrationError, match=reported):
        Calibration.from_json(document, source="the file")


@pytest.mark.parametrize(
    ("key", "value"),
    [("factor", 0.0), ("factor", "1"), ("slope", 3), ("is_applied", 1), ("beauty", 1.0)],
)
def test_a_wrong_value_in_a_row_is_named(key: str, value: object) -> None:
    document = json.loads(json.dumps(calibration(GEMMS).to_json()))
    document["corrections"][0][key] = value

    with pytest.raises(CalibrationError, match=key):
        Calibration.from_json(document)


PLAIN_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)


@settings(max_examples=40)
@given(key=st.sampled_from(sorted(calibration(GEMMS).to_json())), value=PLAIN_VALUES)
def test_any_damage_gives_a_calibration_or_its_error(key: str, value: object) -> None:
    document = {**calibration(GEMMS).to_json(), key: value}

    try:
        found = Calibration.from_json(document)
    except CalibrationError:
        return

    assert isinstance(found.table(), str)


@settings(max_examples=40)
@given(key=st.sampled_from(sorted(calibration().source)), value=PLAIN_VALUES)
def test_any_damage_in_its_source_gives_a_calibration_or_its_error(key: str, value: object) -> None:
    document = json.loads(json.dumps(calibration().to_json()))
    document["source"][key] = value

    try:
        found = Calibration.from_json(document)
    except CalibrationError:
        return

    assert "12 different problems" in found.table() or key.startswith("num")
    assert found.headline().startswith("calibrated")


@settings(max_examples=40)
@given(
    key=st.sampled_from(sorted(calibration(GEMMS).to_json()["corrections"][0])), value=PLAIN_VALUES
)
def test_any_damage_in_a_row_gives_a_calibration_or_its_error(key: str, value: object) -> None:
    document = json.loads(json.dumps(calibration(GEMMS).to_json()))
    document["corrections"][0][key] = value

    try:
        found = Calibration.from_json(document)
    except CalibrationError:
        return

    assert priced(found, GEMM).latency_us > 0


def test_the_table_states_constants_corrections_and_hosts() -> None:
    text = calibration(GEMMS, floor_us=1.9).table()

    assert "12 times, 12 different problems" in text
    assert "floor_us 1.9" in text
    assert "gemm   bfloat16  (all)          12   1.250  10%   22.0%   4.0%" in text
    assert "plain: op 3.0 µs" in text and "profiled: not measured" in text


def attention(seq: int, *, backward: bool = False) -> Kernel:
    return Kernel.attention(
        1, 8, 8, seq, 512, 64, causal=False, dtype="bfloat16", backward=backward
    )


IMAGE = ConvolutionSize(8, 64, 64, 1, (28, 28), (28, 28), (3, 3), (1, 1), "weight_gradient")


@pytest.mark.parametrize(
    ("kernel", "variant"),
    [
        (attention(1), "decode"),
        (attention(64), "forward"),
        (attention(1, backward=True), "backward"),
        (Kernel.convolution(IMAGE, dtype="float32"), "weight_gradient"),
        (RELU, "relu"),
        (GEMM, "nt"),
    ],
)
def test_variants_distinguish_directions_and_phases(kernel: Kernel, variant: str) -> None:
    assert variant_of(kernel) == variant


@dataclass
class Refusing:
    """A predictor without products."""

    name: str = "refusing"

    def predict(self, kernels: Sequence[Kernel], gpu: GPU) -> list[Estimate]:
        if kernels[0].kernel_class is KernelClass.GEMM:
            raise UnsupportedKernelError("no products")
        return find_predictor("roofline").predict(kernels, gpu)


def test_what_a_predictor_cannot_price_is_part_of_its_behaviour() -> None:
    target = find_gpu("H100")

    found = behaviour_of(Refusing(), target)

    assert found == behaviour_of(Refusing("another"), target)
    assert found != behaviour_of(find_predictor("roofline"), target)


@pytest.mark.parametrize(
    ("num_samples", "reason"), [(1, "one problem proves nothing"), (2, "it would not help")]
)
def test_the_table_says_why_a_row_has_no_factor(num_samples: int, reason: str) -> None:
    row = replace(GEMMS, num_samples=num_samples, is_applied=False)

    assert calibration(row).table().splitlines()[-3].endswith(f"no factor: {reason}")


def test_what_streams_reach_goes_with_the_bandwidth() -> None:
    gpu = find_gpu("L40S")
    lower = 0.5 * gpu.bandwidth_utilization

    changed = with_constants(gpu, {"bandwidth_utilization": lower})

    assert changed.stream_utilization == pytest.approx(0.5 * gpu.stream_utilization)
    assert with_constants(gpu, {"floor_us": 9.0}).stream_utilization == gpu.stream_utilization
