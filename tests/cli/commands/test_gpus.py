"""`neusight gpus`."""

from __future__ import annotations

import pytest

from neusight.integrations.cli.main import main
from neusight.predictors.clusters.named import topologies
from neusight.predictors.gpu import gpus


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
