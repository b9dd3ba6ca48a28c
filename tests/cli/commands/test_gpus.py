"""`neusight gpus`."""

from __future__ import annotations

import pytest

from neusight.integrations.cli.main import main
from neusight.predictors.clusters.named import topologies


def test_topologies_are_listed_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpus", "--topologies"]) == 0

    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown[1 : len(topologies()) + 1]] == topologies()
    assert "32 x 12.5 GB/s" in next(line for line in shown if line.startswith("p5.48xlarge"))
