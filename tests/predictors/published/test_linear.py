"""The linear model: lines over FLOPs, and for unseen GPUs a line over bandwidth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from neusight.predictors.errors import WeightsError
from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import Kernel
from neusight.predictors.published.linear import (
    FlopLine,
    Linear,
    LinearClass,
    fitted_line,
    load_linear,
    save_linear,
)
from neusight.predictors.registry import find_predictor

V100, H100 = find_gpu("V100-SXM2-32GB"), find_gpu("H100")
CLASS = LinearClass({V100.name: FlopLine(5.0, 1e6), "T4": FlopLine(7.0, 4e5)}, base=1e5, slope=1e3)
GEMM = Kernel.gemm(4096, 4096, 4096, dtype="float32")


def test_points_on_a_line_give_the_line() -> None:
    flops = np.array([1e6, 3e6, 9e6])
    line = fitted_line(flops, 4.0 + flops / 2e5)
    assert line.start_us == pytest.approx(4.0)
    assert line.flops_per_us == pytest.approx(2e5)


def test_a_line_never_starts_below_zero() -> None:
    line = fitted_line(np.array([1.0, 2.0]), np.array([0.1, 10.0]))
    assert line.start_us == 0.0
    assert line.flops_per_us > 0.0


def test_a_gpu_that_was_measured_has_its_own_line() -> None:
    [estimate] = Linear({("nvidia", "fully_connected"): CLASS}).predict([GEMM], V100)
    assert estimate.latency_us == pytest.approx(5.0 + GEMM.flops / 1e6, rel=1e-6)
    assert estimate.origin == "trained"
    assert estimate.in_range


def test_a_gpu_that_was_not_takes_its_throughput_from_its_bandwidth() -> None:
    line = CLASS.on(H100)
    assert line.flops_per_us == pytest.approx(1e5 + 1e3 * H100.bandwidth_gbps)
    assert line.start_us == pytest.approx(6.0)


def test_no_price_is_below_the_peak() -> None:
    fast = LinearClass({H100.name: FlopLine(0.0, 1e30)}, 0.0, 1.0)
    [estimate] = Linear({("nvidia", "fully_connected"): fast}).predict([GEMM], H100)
    assert estimate.latency_us >= GEMM.flops / H100.peak_flops("fp32") * 1e6


def test_other_kernels_take_their_bytes_over_the_bandwidth() -> None:
    copy = Kernel.gemm(64, 64, 64, batch=4)
    [estimate] = Linear({("nvidia", "fully_connected"): CLASS}).predict([copy], V100)
    assert estimate.origin == "fallback"


def test_the_shipped_lines_price_a_known_and_an_unknown_gpu() -> None:
    predictor = find_predictor("linear")
    known, unknown = (predictor.predict([GEMM], gpu)[0] for gpu in (V100, H100))
    assert known.latency_us > unknown.latency_us > 0
    assert find_gpu("MI250").vendor == "amd"
    assert predictor.predict([GEMM], find_gpu("MI250"))[0].origin == "trained"


def test_what_was_saved_is_read_again(tmp_path: Path) -> None:
    classes = {("nvidia", "softmax"): CLASS}
    save_linear(classes, tmp_path / "linear.json", provenance={"data": "test"})
    assert load_linear(tmp_path / "linear.json") == classes


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema_version": 9}', "nonsense"])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "linear.json"
    path.write_text(text)
    with pytest.raises(WeightsError, match=r"linear\.json cannot be read"):
        load_linear(path)
