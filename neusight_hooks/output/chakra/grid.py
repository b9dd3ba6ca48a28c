"""Ranks that were not run: each does what one does that was, where it stands in the grid of all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from neusight.ops.communication.messages import Message
from neusight.output.chakra.tasks import Task

Ranks = tuple[int, ...]

#: The number of the group of all ranks; ASTRA-sim takes it for that, and numbers others from 1 on.
_WORLD = 0
#: Ranks that a message names.
_MOST_NAMED = 4


class GridRank(NamedTuple):
    """A rank that does what rank `like` does: another one, or itself."""

    number: int
    like: int
    world_size: int

    def peer(self, message: Message) -> int:
        """The rank that its transfer goes to or comes from: as far off as that of the other."""
        peer = message.peer
        if peer < 0:  # the only other one of the two
            peer = next(other for other in message.group.ranks if other != self.like)
        return peer - self.like + self.number

    def members(self, ranks: Ranks) -> Ranks:
        """Those that it meets where the other one meets these; ValueError where it cannot be
        determined."""
        if self.number == self.like or len(ranks) == self.world_size:
            return ranks
        found = _like_group(ranks, self.number, self.world_size)
        if found is None:
            raise ValueError(
                f"ranks {_words(ranks)} lie in no grid, so it is not known which ranks communicate "
                f"with rank {self.number}"
            )
        return found


def ranks_of_grid(tasks: Mapping[int, Sequence[Task]], world_size: int) -> list[GridRank]:
    """All ranks; `tasks` are of those that were run. In a grid of which these are one line, each
    other one is like that at its place along that line.

    ValueError where they are no such line, or exchange with one that was not run.
    """
    run = sorted(tasks)
    if len(run) == world_size:
        return [GridRank(rank, rank, world_size) for rank in run]
    line = _line_in(run, world_size)
    stride = line[1] - line[0] if len(line) > 1 else world_size
    for rank in run:
        own = GridRank(rank, rank, world_size)
        for message in _messages(tasks[rank]):
            if message.is_transfer and own.peer(message) not in tasks:
                raise ValueError(
                    f"rank {rank} exchanges with rank {own.peer(message)}, which was not run"
                )
    likes = {rank: line[rank // stride % len(line)] for rank in range(world_size)}
    likes |= {rank: rank for rank in run}
    return [GridRank(rank, like, world_size) for rank, like in likes.items()]


def _line_in(run: list[int], world_size: int) -> list[int]:
    """Those that are one line of the grid of all ranks: all that were run, or but for the last of
    all, which is looked at by itself where it does something else."""
    for line in (run, run[:-1] if run[-1] == world_size - 1 else []):
        stride = line[1] - line[0] if len(line) > 1 else world_size
        is_even = line == [*line[:1], *(line[0] + stride * place for place in range(1, len(line)))]
        is_first = len(line) == 1 or (len(line) > 1 and line[0] < stride)
        if is_first and is_even and world_size % (stride * len(line)) == 0:
            return line
    raise ValueError(f"ranks {_words(run)} of {world_size} do not determine what the others do")


def numbered_groups(
    places: Sequence[GridRank], tasks: Mapping[int, Sequence[Task]]
) -> dict[Ranks, int]:
    """A number for each group in which these meet, equal on all ranks; 0 is that of everybody."""
    of_each = {
        rank: {message.group.ranks for message in _messages(own) if not message.is_transfer}
        for rank, own in tasks.items()
    }
    found = {place.members(ranks) for place in places for ranks in of_each[place.like]}
    world = {ranks for ranks in found if len(ranks) == places[0].world_size}
    return dict.fromkeys(world, _WORLD) | {
        ranks: number for number, ranks in enumerate(sorted(found - world), start=1)
    }


def _like_group(ranks: Ranks, number: int, world_size: int) -> Ranks | None:
    """The group of a rank in a grid of which `ranks` are another's group; None where they are no
    line of a grid.

    >>> _like_group((0, 8), 3, 16), _like_group((0, 1), 7, 8), _like_group((0, 1, 3), 7, 8)
    ((3, 11), (6, 7), None)
    """
    stride = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    block = stride * len(ranks)
    if stride < 1 or world_size % block or ranks[0] % block >= stride:
        return None
    if ranks != tuple(range(ranks[0], ranks[0] + block, stride)):
        return None
    first = number // block * block + number % stride
    return tuple(range(first, first + block, stride))


def _messages(tasks: Sequence[Task]) -> Iterator[Message]:
    for task in tasks:
        yield from task.messages


def _words(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:_MOST_NAMED]))
    return f"{shown}, ..." if len(ranks) > _MOST_NAMED else shown
