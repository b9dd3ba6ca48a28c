"""`neusight fit`: which predictors it fits, and what it refuses in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from neusight.integrations.cli.main import main
from neusight.predictors.training.published import neusight_fit

pandas = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")


def table(folder: Path) -> Path:
    """Softmax on two GPUs, whose time is a line over its elements."""
    rows = [
        {"op": "softmax", "gpu": gpu, "B": batch, "H": 512, "M": None, "N": None, "K": None,
         "latency_us": 45.0 + slope * batch}
        for gpu, slope in (("Tesla T4", 0.1), ("Tesla V100-PCIE-32GB", 0.05), ("Tesla P4", 0.2))
        for batch in range(16, 4096, 64)
    ]  # fmt: skip
    pandas.DataFrame(rows).to_parquet(folder / "kernels.parquet")
    return folder


def test_a_gpu_that_is_left_out_has_no_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["fit", str(table(tmp_path)), "--predictor", "linear", "--out", str(tmp_path / "w")]

    assert main([*arguments, "--without", "T4"]) == 0

    assert capsys.readouterr().out == "nvidia softmax: lines of P4, V100-PCIE-32GB\n"


@pytest.mark.parametrize(
    ("arguments", "stated"),
    [
        (["--predictor", "neusight", "--width", "0"], "--width 0: it must be 1 or more."),
        (["--without", "T4"], "--without works with the published predictors"),
        (["--predictor", "linear", "--without", "H10"], "Unknown GPU 'H10'"),
        (["--predictor", "linear", "--without", "H100"], "H100-SXM5-80GB was not measured"),
        (["--predictor", "neusight"], "lacks kernel_name, grid_x, grid_y, grid_z"),
        (["--predictor", "habitat"], "no products and no convolutions of NVIDIA GPUs"),
    ],
)
def test_what_cannot_be_fitted_is_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], stated: str
) -> None:
    folder = table(tmp_path)

    assert main(["fit", str(folder), "--out", str(tmp_path / "weights"), *arguments]) == 2

    reported = capsys.readouterr().err
    assert stated in reported
    assert "Traceback" not in reported


def test_a_network_may_be_one_neuron_wide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: dict[str, object] = {}

    def fitted(*_: object, **options: object) -> dict[str, dict[str, float]]:
        asked.update(options)
        return {"gemm": {"T4": 0.125}}

    monkeypatch.setattr(neusight_fit, "fit_neusight", fitted)
    words = ["fit", str(table(tmp_path)), "--out", str(tmp_path / "out"), "--width", "1"]

    assert main([*words, "--predictor", "neusight", "--seed", "3"]) == 0

    assert (asked["width"], asked["seed"]) == (1, 3)
    assert capsys.readouterr().out.splitlines() == [
        "gemm:", f"  {'T4':<40}  12.5% on held-out shapes"
    ]  # fmt: skip
