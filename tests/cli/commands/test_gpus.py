"""`neusight gpus`."""

from __future__ import annotations

import pytest

from neusight.integrations.cli.main import main
from neusight.predictors.clusters.named import topologies
from neusight.predictors.gpu import find_gpu, gpus


def test_topologies_are_listed_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpus", "--topologies"]) == 0

    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown[1 : len(topologies()) + 1]] == topologies()
    assert "32 x 12.5 GB/s" in next(line for line in shown if line.startswith("p5.48xlarge"))


def test_the_list_fits_sixty_columns_and_names_every_gpu(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["gpus"]) == 0

    shown = capsys.readouterr().out.splitlines()
    assert max(map(len, shown)) <= 60
    assert {line.split()[0] for line in shown if line.startswith("  ")} >= set(gpus())
    h100 = next(line for line in shown if "H100-SXM5-80GB" in line)
    assert h100.split() == ["H100-SXM5-80GB", "79", "G", "3350", "700", "989", "66.9"]
    headings = [line for line in shown if line and not line.startswith((" ", "name"))]
    assert headings[0].startswith("Blackwell (1") and headings.index("Hopper (9.0)") > 0
    assert "(" not in headings[-1]


def test_a_clock_above_the_stated_one_reaches_no_more_than_the_peak(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An RTX 3090 boosts beyond the clock that its peak is stated at."""
    assert main(["gpus", "RTX-3090"]) == 0

    shown = capsys.readouterr().out.splitlines()
    [peak, *reached] = next(line for line in shown if line.startswith("  bf16")).split()[1:4]
    assert reached == [peak, peak]


def test_one_gpu_states_what_large_work_reaches(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpus", "H100"]) == 0

    shown = capsys.readouterr().out
    lines = {line.split()[0]: line.split()[1:] for line in shown.splitlines() if line.strip()}
    gpu = find_gpu("H100")
    for unit, peak in (("fp8", "1978.9"), ("bf16", "989.4"), ("fp32", "66.9")):
        found, burst, lasting = lines[unit][:3]
        assert found == peak
        assert float(peak) / 3 < float(lasting) <= float(burst) <= float(peak)
    assert (
        f"{'large streams, GB/s':<38} {3350:>8} {3350 * gpu.bandwidth_utilization:>8.0f}" in shown
    )
