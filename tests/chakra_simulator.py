"""Chakra's files run as simulators run them: of each rank one kernel, one communication and one
call of the host at a time, the one of the lowest number first."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chakra_reader import attributes, kind, read_chakra

#: What a transfer takes, µs.
TRANSFER_US = 10


class Simulation:
    """Runs all ranks; `end_us` is when the last node of each ends, `left` what could not run."""

    def __init__(self, paths: Sequence[Path], groups: Mapping[str, Sequence[int]]) -> None:
        self.nodes = [read_chakra(path)[1] for path in paths]
        self.end_us = [0] * len(paths)
        self._groups = groups
        self._waits = [{node.id: set(node.data_deps) for node in own} for own in self.nodes]
        self._busy: set[tuple[int, str]] = set()
        self._ends: list[tuple[int, int, int]] = []  # time, rank, node
        self._met: dict[Any, list[tuple[int, int]]] = defaultdict(list)
        self._calls: Counter[Any] = Counter()
        self._now_us = 0
        self._run()

    @property
    def left(self) -> list[int]:
        """How many nodes of each rank never ran."""
        return [len(waits) for waits in self._waits]

    def _run(self) -> None:
        started: set[tuple[int, int]] = set()
        while True:
            for rank, waits in enumerate(self._waits):
                for number in sorted(waits):
                    unit = (rank, self._unit(rank, number))
                    is_ready = not waits[number] and (rank, number) not in started
                    if is_ready and unit not in self._busy:
                        started.add((rank, number))
                        self._busy.add(unit)
                        self._start(rank, number)
            if not self._ends:
                return
            self._now_us, rank, number = heapq.heappop(self._ends)
            self._busy.discard((rank, self._unit(rank, number)))
            del self._waits[rank][number]
            for others in self._waits[rank].values():
                others.discard(number)
            self.end_us[rank] = self._now_us

    def _unit(self, rank: int, number: int) -> str:
        node = self.nodes[rank][number]
        if kind(node) != "COMP_NODE":
            return "network"
        return "host" if attributes(node)["is_cpu_op"] else "gpu"

    def _start(self, rank: int, number: int) -> None:
        node = self.nodes[rank][number]
        reported = attributes(node)
        if kind(node) == "COMP_NODE":
            heapq.heappush(self._ends, (self._now_us + node.duration_micros, rank, number))
        elif kind(node) == "COMM_COLL_NODE":
            self._calls[rank, reported["pg_name"]] += 1
            key = (reported["pg_name"], self._calls[rank, reported["pg_name"]])
            size = len(self._groups.get(reported["pg_name"], self.nodes))
            self._meet(key, rank, number, size, node.duration_micros)
        elif kind(node) == "COMM_SEND_NODE":  # it ends when it has arrived
            heapq.heappush(self._ends, (self._now_us + TRANSFER_US, rank, number))
            self._meet(self._pair(reported, "send"), rank, -1, 2, TRANSFER_US)
        else:
            self._meet(self._pair(reported, "recv"), rank, number, 2, TRANSFER_US)

    def _pair(self, reported: dict[str, Any], end: str) -> tuple[Any, ...]:
        """The n-th transfer from one to the other with that tag."""
        key = (reported["comm_src"], reported["comm_dst"], reported["comm_tag"])
        self._calls[key, end] += 1
        return (*key, self._calls[key, end])

    def _meet(self, key: Any, rank: int, number: int, size: int, us: int) -> None:
        """Ends for all once the last has come; -1 ends by itself."""
        self._met[key].append((rank, number))
        if len(self._met[key]) == size:
            for other, place in self._met[key]:
                if place >= 0:
                    heapq.heappush(self._ends, (self._now_us + us, other, place))
