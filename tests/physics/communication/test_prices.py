"""What collectives take on systems of every kind, and what they leave to what runs beside them.

The tables are small enough to review; NEUSIGHT_UPDATE_GOLDEN=1 rewrites them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from neusight.predictors.clusters.named import find_topology
from neusight.predictors.errors import TopologyError
from neusight.predictors.gpu import GPU, find_gpu
from neusight.predictors.kernel import CollectiveSize, Kernel
from neusight.predictors.physics.communication.collective import collective_timing
from neusight.predictors.physics.communication.contention import contention_of, slowdown
from neusight.predictors.physics.communication.sharing import link_demands
from neusight.predictors.physics.physical_time import Bound
from places import require_golden

MIB = 2**20
OPS = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"
)  # fmt: skip
#: Ranks and hosts: inside one, whole ones, one GPU of each.
GROUPS = ((2, 1), (5, 1), (8, 1), (16, 2), (96, 12), (4, 4))


def systems() -> dict[str, GPU]:
    """GPUs of each kind of link in the system they are usually in, and in stated ones."""
    names = ("M40", "V100", "A100", "RTX-3090", "L40S", "H100", "B200", "MI300X")
    found = {name: find_gpu(name) for name in names}
    found["GB200 NVL72"] = replace(find_gpu("GB200"), topology=find_topology("gb200-nvl72"))
    stated = find_topology("dgx-h100")
    assert stated.network is not None
    sharp = replace(stated.network, sharp=True, oversubscription=2.0)
    found["H100 sharp"] = replace(find_gpu("H100"), topology=stated.with_network(sharp))
    return found


def kernels() -> Iterator[Kernel]:
    for op in OPS:
        for ranks, nodes in GROUPS:
            for num_bytes in (4096, MIB, 256 * MIB):
                yield Kernel.collective(op, num_bytes, ranks, num_nodes=nodes)
    for op in ("all_reduce", "all_gather", "all_to_all"):  # four ranks of a host, two of another
        yield Kernel.collective(op, 256 * MIB, 6, ranks="0..5", gpus_per_node=4)
    for variant in ("one_shot", "two_shot"):
        yield Kernel.collective("all_reduce", MIB, 8, variant=variant)
    yield Kernel.collective("all_reduce", 256 * MIB, 8, dtype="int8")
    yield Kernel.collective("all_reduce", 256 * MIB, 1)


def label(kernel: Kernel) -> str:
    size = kernel.size
    assert isinstance(size, CollectiveSize)
    where = size.ranks or f"{size.world_size}/{size.num_nodes}"
    dtype = kernel.dtype if kernel.dtype != "bfloat16" else ""
    words = (kernel.name, where, str(size.num_bytes), kernel.variant, dtype)
    return " ".join(word for word in words if word)


def price(kernel: Kernel, gpu: GPU) -> str:
    """Nanoseconds, the interval's half width and the CTAs."""
    try:
        timing = collective_timing(kernel, gpu)
    except TopologyError:
        return "-"
    time_us = min(timing.time_us, timing.at_most_us)
    return f"{time_us * 1000:.0f} {timing.spread:.2f} {timing.num_ctas}"


def test_collectives_take_as_long_as_the_golden_table_has_them() -> None:
    gpus = systems()
    lines = [f"{'':<34}" + "".join(f"{name:>20}" for name in gpus)]
    for kernel in kernels():
        cells = "".join(f"{price(kernel, gpu):>20}" for gpu in gpus.values())
        lines.append(f"{label(kernel):<34}{cells}")

    require_golden("collective_prices.txt", lines)


#: What runs beside a collective: its kernel, what bounds it, and its waves of CTAs.
BESIDE: tuple[tuple[Kernel, Bound, float], ...] = (
    (Kernel.gemm(4096, 4096, 4096), "compute", 3.0),
    (Kernel.attention(8, 16, 16, 2048, 2048, 128, causal=True, dtype="bfloat16"), "compute", 0.9),
    (Kernel.elementwise("gelu", MIB, dtype="float32"), "compute", 5.0),
    (Kernel.elementwise("add", MIB, dtype="float32"), "memory", 5.0),
)


def test_collectives_leave_to_others_what_the_golden_table_has() -> None:
    """The shares of links that one uses, of SMs, DRAM and pairs of SMs that it leaves, and how many
    times as long a product, an attention, and an elementwise kernel of arithmetic and of bytes
    take."""
    lines = []
    for name, gpu in systems().items():
        for op in ("all_reduce", "all_to_all", "send_recv"):
            for ranks, nodes in ((1, 1), (8, 1), (16, 2), (4, 4)):
                kernel = Kernel.collective(op, 256 * MIB, ranks, num_nodes=nodes)
                try:
                    time_us = collective_timing(kernel, gpu).time_us
                except TopologyError:
                    continue
                demands = link_demands(kernel, 1.5 * time_us, gpu, ways=("out",))
                left = contention_of(kernel, time_us, gpu, in_clusters=False)
                shares = (left.sms_left, left.bandwidth_left, left.pairs_left)
                slower = (slowdown(k, bound, left, num_waves=waves) for k, bound, waves in BESIDE)
                words = [f"{link} {share:.4f}" for link, share in demands.items()]
                figures = [f"{value:.4f}" for value in (*shares, *slower)]
                lines.append("  ".join([name, op, f"{ranks}/{nodes}", *figures, *words]))

    require_golden("collective_contention.txt", lines)
