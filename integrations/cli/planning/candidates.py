"""What may be chosen: every combination of the script's arguments and the number of ranks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from neusight.fake_cuda.distributed.rank import Rank
from neusight.integrations.cli.sweep import Sweep
from neusight.integrations.program.program import Program
from neusight.predictors.errors import OptionError

#: How the number of ranks is called among what was chosen.
WORLD_SIZE = "world-size"

#: More would run for hours: each is recorded for seconds.
MOST_CANDIDATES = 1000


@dataclass(frozen=True)
class Candidate:
    """A program with its arguments set, and the rank that it runs as; `settings` is what was
    chosen, by name, in the order asked for."""

    settings: tuple[tuple[str, str], ...]
    program: Program
    rank: Rank | None = None

    @property
    def title(self) -> str:
        """What was chosen, in words.

        >>> Candidate((("tp", "2"), ("fused", "yes")), Program("train.py", ())).title
        'tp 2, fused yes'
        """
        return ", ".join(f"{name} {value}" for name, value in self.settings) or "as it is"


def candidates_of(
    program: Program, sweeps: Sequence[Sweep], ranks: Sequence[Rank | None]
) -> list[Candidate]:
    """Every combination, the last sweep changing fastest; the number of ranks is shown where there
    are several. OptionError for an argument that stands twice, or too many combinations."""
    names = [sweep.argument.replace("_", "-") for sweep in sweeps]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise OptionError(f"--sweep names {twice} twice; list its values once: {twice}=1,2,4")
    count = len(ranks)
    for sweep in sweeps:
        count *= len(sweep.values)
    if count > MOST_CANDIDATES:
        raise OptionError(
            f"these are {count:,} combinations; plan {MOST_CANDIDATES:,} at most: leave values out"
        )
    return [
        _candidate(program, sweeps, rank, chosen, states_ranks=len(ranks) > 1)
        for rank in ranks
        for chosen in itertools.product(*(sweep.values for sweep in sweeps))
    ]


def _candidate(
    program: Program,
    sweeps: Sequence[Sweep],
    rank: Rank | None,
    chosen: Sequence[str],
    *,
    states_ranks: bool,
) -> Candidate:
    arguments = program.arguments
    for sweep, value in zip(sweeps, chosen, strict=True):
        arguments = sweep.set_in(arguments, value)
    settings = [(sweep.argument, value) for sweep, value in zip(sweeps, chosen, strict=True)]
    if states_ranks and rank is not None:
        settings.insert(0, (WORLD_SIZE, str(rank.world_size)))
    return Candidate(tuple(settings), replace(program, arguments=arguments), rank)
