"""How much longer than a typical host the slowest of many takes: all others wait for it."""

from __future__ import annotations

from functools import cache
from statistics import NormalDist

from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import CollectiveSize, Kernel, size_of
from neusight.predictors.physics.communication.system import place_of

#: By which share the same work differs between hosts of one kind (standard deviation): 0.4 to 4 %
#: where it takes over 1 ms (data/kernelbench, two hosts each). A prior between them; nothing of
#: many GPUs was used.
_HOST_DEVIATION = 0.015

#: Blom's approximation of the largest of n normal numbers.
_BLOM = 0.375


@cache
def slowest_share(num_hosts: int) -> float:
    """What the slowest of so many hosts takes above a typical one, as a share: the expected largest
    of as many normal numbers. 0 for one host.

    >>> [round(slowest_share(hosts), 4) for hosts in (1, 2, 16, 64)]
    [0.0, 0.0088, 0.0265, 0.0351]
    """
    if num_hosts <= 1:
        return 0.0
    quantile = (num_hosts - _BLOM) / (num_hosts + 1.0 - 2.0 * _BLOM)
    return _HOST_DEVIATION * NormalDist().inv_cdf(quantile)


def num_hosts(collective: Kernel, gpu: GPU) -> int:
    """On how many hosts (sets of GPUs that no network joins) the ranks of a collective lie."""
    return place_of(size_of(collective, CollectiveSize), gpu).num_islands
