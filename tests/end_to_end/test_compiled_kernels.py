"""The CPU build of torch forecasts the kernels that a CUDA build with Triton names."""

from __future__ import annotations

from pathlib import Path

import pytest
from compiled_net import quiet
from golden_programs import PROGRAMS, kernels_of

GOLDEN = Path(__file__).parents[1] / "golden" / "compiled_kernels_h100.txt"


def golden_kernels(title: str) -> list[str]:
    """Of the list that `python tests/golden_programs.py` prints with a CUDA build; its first line
    says which."""
    _, _, rest = GOLDEN.read_text(encoding="utf-8").partition(f"## {title}\n")
    return rest.partition("\n\n")[0].split()


SHORT = "MLP, training"


@pytest.mark.parametrize(
    "title",
    [pytest.param(title, marks=() if title == SHORT else pytest.mark.slow) for title in PROGRAMS],
)
def test_kernels_are_those_of_a_cuda_build_with_triton(title: str) -> None:
    with quiet():
        kernels = kernels_of(PROGRAMS[title])

    assert kernels == golden_kernels(title)
