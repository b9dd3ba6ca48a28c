"""Links that several transfers use at once: who gets how much, and how long each takes then.

Max-min fair: what a link carries is shared equally, and what one transfer cannot use the others
get, as topologies of switches and network cards do with equal flows.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import CollectiveSize, Kernel, size_of
from neusight.predictors.physics.communication.collective import inside_gbps
from neusight.predictors.physics.communication.system import place_of
from neusight.predictors.physics.roofline import sent_bytes

#: The directions of a link that a ring uses: it sends to one neighbour and receives from another.
BOTH_WAYS = ("out", "in")

#: Shares of a link below this are none: rounding.
_LEAST_SHARE = 1e-9

#: A transfer with less than this left alone has ended.
_LEAST_LEFT_NS = 0.5


class Flow(NamedTuple):
    """A transfer: when it may start, how long it takes alone, the stream whose transfers follow
    each other, and the share of each link that it uses then."""

    start_ns: int
    alone_ns: int
    stream: int
    demands: Mapping[str, float]


def link_demands(
    collective: Kernel, time_us: float, gpu: GPU, ways: Iterable[str] = BOTH_WAYS
) -> dict[str, float]:
    """The share of its link and of its network cards that a GPU uses while a collective takes
    `time_us`: by kind of link and direction, up to 1.

    >>> from neusight.predictors.gpu import find_gpu
    >>> beside = Kernel.collective("all_gather", 2**30, 8)
    >>> sorted(link_demands(beside, 4000.0, find_gpu("H100")))
    ['switch in', 'switch out']
    """
    size = size_of(collective, CollectiveSize)
    if size.world_size <= 1 or time_us <= 0.0:
        return {}
    shares = _shares_us(collective.name, size, gpu)
    return {
        f"{link} {way}": min(1.0, least_us / time_us)
        for link, least_us in shares.items()
        for way in ways
        if least_us / time_us > _LEAST_SHARE
    }


def _shares_us(kind: str, size: CollectiveSize, gpu: GPU) -> dict[str, float]:
    """How long each kind of link would be busy at its full rate, µs."""
    place = place_of(size, gpu)
    moved = own = sent_bytes(kind, size.num_bytes, size.world_size)
    busy_us: dict[str, float] = {}
    if place.network is not None:
        remote, cards = moved, place.cards
        if kind == "send_recv":
            cards = place.cards_of_one
        elif kind == "all_to_all":
            remote = size.num_bytes * (size.world_size - place.least) / size.world_size
            cards = place.cards / place.least
            own = moved - remote
        reached = place.network.gbps * place.network.share / place.network.oversubscription
        busy_us["network"] = remote / (reached * cards * 1e3)
    if place.most > 1:
        rate = inside_gbps(gpu, place.inside, world_size=place.most)
        busy_us[place.inside.kind] = own / (rate * 1e3)
    return busy_us


def fair_rates(demands: Sequence[Mapping[str, float]]) -> list[float]:
    """How fast each transfer gets on, 1.0 as alone, where they share links of capacity 1.

    All get as much of their narrowest link, up to what they use alone, until a link is full.

    >>> fair_rates([{"switch out": 1.0}, {"switch out": 1.0}, {"switch out": 0.2}])
    [0.4, 0.4, 1.0]
    """
    needs = [max(demand.values(), default=0.0) for demand in demands]
    given = [0.0] * len(demands)
    free = dict.fromkeys((link for demand in demands for link in demand), 1.0)
    growing = {index for index, need in enumerate(needs) if need > 0.0}
    while growing:
        weights = dict.fromkeys(free, 0.0)
        for index in growing:
            for link, share in demands[index].items():
                weights[link] += share / needs[index]
        more = min(needs[index] - given[index] for index in growing)
        for link, weight in weights.items():
            if weight > 0.0:
                more = min(more, max(0.0, free[link]) / weight)
        for index in growing:
            given[index] += more
        for link, weight in weights.items():
            free[link] -= more * weight
        growing = {
            index
            for index in growing
            if given[index] < needs[index] - _LEAST_SHARE
            and all(free[link] > _LEAST_SHARE for link in demands[index])
        }
    return [
        round(have / need, 9) if need > 0.0 else 1.0
        for have, need in zip(given, needs, strict=True)
    ]


def shared_times_ns(flows: Sequence[Flow]) -> list[int]:
    """How long each transfer takes, where those at the same time share their links."""
    queues: dict[int, deque[int]] = {}
    for index in sorted(range(len(flows)), key=lambda index: flows[index].start_ns):
        queues.setdefault(flows[index].stream, deque()).append(index)
    times = [flow.alone_ns for flow in flows]
    began: dict[int, float] = {}
    left: dict[int, float] = {}  # of those under way, by stream's first: what is left of it alone
    now = 0.0
    while queues:
        heads = [queue[0] for queue in queues.values()]
        if not left:
            now = max(now, float(min(flows[index].start_ns for index in heads)))
        for index in heads:
            if index not in left and flows[index].start_ns <= now:
                began[index], left[index] = now, float(flows[index].alone_ns)
        active = list(left)
        rates = dict(zip(active, fair_rates([flows[i].demands for i in active]), strict=True))
        until = [flows[index].start_ns - now for index in heads if index not in left]
        step = min(*(left[index] / rates[index] for index in active), *until, math.inf)
        now += step
        for index in active:
            left[index] -= step * rates[index]
            if left[index] < _LEAST_LEFT_NS:
                times[index] = max(times[index], round(now - began[index]))
                del left[index]
                queue = queues[flows[index].stream]
                queue.popleft()
                if not queue:
                    del queues[flows[index].stream]
    return times
