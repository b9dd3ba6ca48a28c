"""Which of many processes the program is run as."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neusight.predictors.clusters.topology import Topology
from neusight.predictors.errors import OptionError

#: GPUs of a host where it is not stated: as DGX and HGX systems and clouds' largest instances have.
GPUS_PER_NODE = 8

#: What torchrun passes to its processes.
_ELASTIC = {
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "OMP_NUM_THREADS": "1",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_MAX_RESTARTS": "0",
    "TORCHELASTIC_USE_AGENT_STORE": "False",
}


@dataclass(frozen=True)
class Rank:
    """Rank `index` of `world_size` processes, `gpus_per_node` of them on each host (0: as many as
    there are, up to 8). OptionError where hosts would not be full, or the rank is none of them.

    >>> Rank(index=11, world_size=16).local_index
    3
    """

    index: int = 0
    world_size: int = 1
    gpus_per_node: int = 0

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise OptionError(f"the world size is {self.world_size}; it must be above 0")
        if self.gpus_per_node < 0:
            raise OptionError(f"there are {self.gpus_per_node} GPUs per node; it must be above 0")
        if not self.gpus_per_node:
            object.__setattr__(self, "gpus_per_node", min(self.world_size, GPUS_PER_NODE))
        if self.world_size > self.gpus_per_node and self.world_size % self.gpus_per_node:
            raise OptionError(
                f"{self.world_size} ranks do not fill nodes of {self.gpus_per_node} GPUs; say "
                "--gpus-per-node, or another --world-size"
            )
        if not 0 <= self.index < self.world_size:
            raise OptionError(
                f"there is no rank {self.index} of {self.world_size}; ranks count from 0 to "
                f"{self.world_size - 1}"
            )

    @property
    def node(self) -> int:
        return self.index // self.gpus_per_node

    @property
    def num_nodes(self) -> int:
        return -(-self.world_size // self.gpus_per_node)

    @property
    def local_index(self) -> int:
        """Its number on its host, which is that of its GPU."""
        return self.index % self.gpus_per_node

    @property
    def local_world_size(self) -> int:
        return min(self.gpus_per_node, self.world_size)

    def environment(self) -> dict[str, str]:
        """The variables that torchrun sets for this process."""
        numbers = {
            "RANK": self.index,
            "WORLD_SIZE": self.world_size,
            "LOCAL_RANK": self.local_index,
            "LOCAL_WORLD_SIZE": self.local_world_size,
            "NODE_RANK": self.node,
            "GROUP_RANK": self.node,
            "GROUP_WORLD_SIZE": self.num_nodes,
            "ROLE_RANK": self.index,
            "ROLE_WORLD_SIZE": self.world_size,
        }
        return {name: str(number) for name, number in numbers.items()} | _ELASTIC


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks in few words, however many they are.

    >>> ranks_text(range(8)), ranks_text([0, 8, 16, 24]), ranks_text([3, 5, 6])
    ('0..7', '0..24/8', '3,5,6')
    """
    if len(ranks) > 2:
        step = ranks[1] - ranks[0]
        if step > 0 and list(ranks) == list(range(ranks[0], ranks[-1] + 1, step)):
            return f"{ranks[0]}..{ranks[-1]}" + (f"/{step}" if step > 1 else "")
    return ",".join(map(str, ranks))


def stated_rank(
    *,
    index: int | None = None,
    world_size: int | None = None,
    gpus_per_node: int | None = None,
    environment: Mapping[str, str] = os.environ,
    system: Topology | None = None,
) -> Rank | None:
    """The rank that is asked for, else the one that RANK and WORLD_SIZE say; None where neither
    says any. Where it is not stated how many a node holds, that is as many as a node of
    `system` has. OptionError for numbers that mean nothing.

    >>> stated_rank(environment={"RANK": "3", "WORLD_SIZE": "4"})
    Rank(index=3, world_size=4, gpus_per_node=4)
    """
    if index is not None and not isinstance(index, int):
        raise OptionError(
            f"the rank is {index!r}, and here one is run: "
            "neusight run --gpu GPU --rank all-distinct SCRIPT runs several side by side"
        )
    from_launcher = world_size is None and {"RANK", "WORLD_SIZE"} <= set(environment)
    if from_launcher:
        world_size = _number(environment, "WORLD_SIZE")
        index = _number(environment, "RANK") if index is None else index
        if gpus_per_node is None and "LOCAL_WORLD_SIZE" in environment:
            gpus_per_node = _number(environment, "LOCAL_WORLD_SIZE")
    if gpus_per_node == 0:
        raise OptionError("there are 0 GPUs per node; it must be above 0")
    if world_size is None:
        if index is None and gpus_per_node is None:
            return None
        raise OptionError("a rank, or GPUs per node, mean nothing without --world-size")
    usual = 0 if system is None else min(world_size, system.gpus_per_node)
    return Rank(index or 0, world_size, gpus_per_node or max(0, usual))


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment[name]
    if not text.strip().isdecimal():
        raise OptionError(f"the variable {name} is {text!r}; it must be a number")
    return int(text)
