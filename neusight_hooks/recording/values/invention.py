"""Unknown values, by a stated policy; each line that reads one is reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from neusight.recording.call_stack import call_site

#: Unknown floats start here and shrink by this factor at each read of the same line, so that
#: `while loss > 0.5` ends and early stopping sees progress.
FIRST_FLOAT = 2.0
FLOAT_DECAY = 0.99

#: Unknown integers (a token, a length, a count).
UNKNOWN_INT = 1

#: Share of True in a mask whose values are unknown.
MASK_DENSITY = 0.5


class Invention:
    """Invents values, and notes the lines that read them."""

    def __init__(self) -> None:
        #: Lines of the program that read an invented value.
        self.sites: set[str] = set()
        self._reads: Counter[str] = Counter()

    @property
    def num_reads(self) -> int:
        """How often a number was invented, and at how many lines."""
        return self._reads.total() + len(self.sites)

    def report(self) -> None:
        """The program reads one here."""
        self.sites.add(call_site())

    def number(self, dtype: torch.dtype) -> bool | int | float:
        """What an element of this dtype is taken to be here; floats fall from read to read."""
        if dtype is torch.bool:
            return False
        if not dtype.is_floating_point and not dtype.is_complex:
            return UNKNOWN_INT
        site = call_site()
        count = self._reads[site]
        self._reads[site] = count + 1
        return FIRST_FLOAT * FLOAT_DECAY**count

    def values(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Such numbers on the CPU."""
        return torch.full(tuple(shape), self.number(dtype), dtype=dtype)
