"""The slowest of many hosts."""

from __future__ import annotations

from itertools import pairwise

from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import Kernel
from neusight.predictors.physics.communication.stragglers import num_hosts, slowest_share


def test_one_host_waits_for_nobody_and_more_wait_longer() -> None:
    shares = [slowest_share(hosts) for hosts in (1, 2, 4, 16, 64, 1024)]

    assert shares[0] == 0.0
    assert all(fewer < more for fewer, more in pairwise(shares))
    assert shares[-1] < 0.06


def test_hosts_are_counted_where_the_ranks_lie() -> None:
    gpu = find_gpu("H100")
    everyone = Kernel.collective("all_gather", 2**20, 64, ranks="0..63", gpus_per_node=8)
    neighbours = Kernel.collective("all_gather", 2**20, 8, ranks="0..7", gpus_per_node=8)

    assert [num_hosts(collective, gpu) for collective in (everyone, neighbours)] == [8, 1]
