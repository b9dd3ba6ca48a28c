"""Finds which of many ranks do the same: each is run for a few steps, and compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from neusight.fake_cuda.distributed.rank import Rank
from neusight.integrations.program.recorded import Recorded

if TYPE_CHECKING:
    from neusight.integrations.program.ranks.side_by_side import Ranks

#: Up to so many ranks all are run whole: those of two hosts of 8 GPUs. Of more at least so many.
ALL_RUN = 16

#: Ops that ranks of more than these are run for together, and those that take as long as the start
#: of a rank: at 0.13 ms an op and 0.13 s a start, a minute of CPU.
_MOST_OPS = 400_000
_OPS_OF_START = 1_000


@dataclass
class Scan:
    """Ranks of one program beyond the first, which is among `ranks` with those that it exchanges
    something with. Before these have ended, nothing is compared."""

    template: Rank
    ranks: Ranks | None = None

    def others(self, ranks: Ranks) -> Iterator[int]:
        """The ranks to be run after the first ones: all, or as many as may be; then the last, those
        of the first host and the first of each host come before the rest."""
        self.ranks = ranks
        world_size, per_node = self.template.world_size, self.template.gpus_per_node
        order = sorted(
            range(world_size),
            key=lambda r: (r != world_size - 1, r >= per_node and r % per_node != 0, r),
        )
        most = max(ALL_RUN, _MOST_OPS // self._ops_of_rank)
        for rank in order:
            if rank not in ranks.processes and len(ranks.processes) < most:
                yield rank

    def steps(self, stated: int | None) -> int | None:
        """After how many steady steps a rank is ended: one, where the first was ended as well."""
        return 1 if self._first is not None and self._first.outcome.stopped_early else stated

    def compared(self, found: Recorded) -> Recorded:
        """Of a rank whose steps begin as those of one that was run whole, or was found to differ,
        the collectives alone; else all of it."""
        from neusight.timeline.ranks.cutting import without_broken_step
        from neusight.timeline.ranks.similarity import collectives_of, is_like

        recording = found.recording
        if self.ranks is None or recording is None or found.outcome.failure:
            return found
        if found.was_stopped:
            recording = without_broken_step(recording)
        is_early = found.outcome.stopped_early
        for rank, process in self.ranks.processes.items():
            other = None if process.done is None else process.done.answer
            if other is None or other.like is not None or other.recording is None:
                continue
            if is_early == other.outcome.stopped_early and is_like(
                recording, other.recording, are_cut=is_early
            ):
                kept = collectives_of(recording)
                return replace(found, recording=kept, like=rank, was_stopped=False)
        return replace(found, recording=recording, was_stopped=False)

    @property
    def _first(self) -> Recorded | None:
        processes = {} if self.ranks is None else self.ranks.processes
        done = next((process.done for process in processes.values()), None)
        return None if done is None else done.answer

    @property
    def _ops_of_rank(self) -> int:
        """Of the first rank, each step that differs from the one before counted once."""
        recording = None if self._first is None else self._first.recording
        steps = () if recording is None else recording.steps
        return _OPS_OF_START + sum(len(step.entries) for step in steps)
