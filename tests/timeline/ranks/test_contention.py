"""Kernels beside collectives: a second pass over a schedule."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from ranks import Block, join, train

import neusight
from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import PEER_COPY, Kernel, KernelClass
from neusight.predictors.physics.communication.collective import inside_gbps
from neusight.predictors.physics.communication.contention import contention_of
from neusight.predictors.physics.communication.stragglers import slowest_share
from neusight.predictors.physics.communication.system import system_of
from neusight.predictors.physics.roofline import sent_bytes
from neusight.recording.recording import (
    IN_ORDER_OPTION,
    URGENT_STREAMS_OPTION,
    MathMode,
    OpCall,
    OpSignature,
)
from neusight.timeline.ranks.contention import StartRules, _queued, stretches
from neusight.timeline.spans import KernelSpan
from timelines import RELU, kernel_span

H100 = find_gpu("H100")
GEMM = Kernel.gemm(4096, 4096, 4096)
REDUCE = Kernel.collective("all_reduce", 2**26, 8)
SWITCH = system_of(H100).inside[0]


def span(
    kernel: Kernel, start_us: float, end_us: float, *, stream: int = 0, waited_us: float = 0.0
) -> KernelSpan:
    return kernel_span(kernel, end_us - start_us)._replace(
        start_ns=round(start_us * 1000), stream=stream, waited_ns=round(waited_us * 1000)
    )


def left(moving_us: float) -> float:
    """The share of the DRAM's bandwidth beside the reduction."""
    return contention_of(REDUCE, moving_us, H100).bandwidth_left


def test_only_the_part_that_overlaps_takes_longer() -> None:
    """500 µs of collective from 100 on; the kernel's last 20 µs lie beside it."""
    kernels = [span(RELU, 0, 120), span(REDUCE, 100, 600, stream=1), span(RELU, 600, 700)]

    assert stretches(kernels, H100) == [round(20_000 * (1 - left(500.0))), 0, 0]


def test_over_a_whole_collective_all_kernels_lose_what_it_takes() -> None:
    kernels = [
        span(REDUCE, 0, 500, stream=1),
        *(span(RELU, at, at + 50) for at in range(0, 1000, 50)),
    ]

    assert sum(stretches(kernels, H100)) == pytest.approx(500_000 * (1 - left(500.0)), rel=1e-4)


def test_a_collective_that_waits_moves_no_bytes() -> None:
    """It comes at 0, the last of the others at 400: until then its SMs alone are held."""
    kernels = [span(RELU, 0, 500), span(REDUCE, 0, 500, stream=1, waited_us=400.0)]

    assert stretches(kernels, H100)[0] == round(100_000 * (1 - left(100.0)))


def test_what_follows_on_the_same_stream_is_not_beside() -> None:
    assert stretches([span(RELU, 0, 10), span(REDUCE, 5, 20)], H100) == [0, 0]


def test_kernels_of_two_streams_that_leave_each_other_room_take_no_longer() -> None:
    assert stretches([span(RELU, 0, 10), span(RELU, 5, 20, stream=1)], H100) == [0, 0]


@pytest.mark.parametrize(("share", "longer_us"), [(0.5, 0), (0.75, 50)])
def test_kernels_of_two_streams_share_the_bandwidth_that_each_of_them_needs(
    share: float, longer_us: int
) -> None:
    """Two that each move three quarters of what the DRAM can take half as long again."""
    full = H100.bandwidth_gbps * H100.bandwidth_utilization * 1e3 * 100
    kernel = replace(RELU, bytes_read=round(share * full), bytes_written=0)
    kernels = [span(kernel, 0, 100, stream=stream) for stream in (0, 1)]

    assert stretches(kernels, H100) == [longer_us * 1000] * 2


@pytest.mark.parametrize(("num_waves", "longer_us"), [(8.0, 100), (0.5, 0), (0.6, 20)])
def test_products_of_two_streams_share_the_sms_that_each_of_them_needs(
    num_waves: float, longer_us: int
) -> None:
    """Two that fill the GPU take as long as one after the other; two of half a wave are free."""
    kernels = [product(0, 100, num_waves, stream=stream) for stream in (0, 1)]

    assert stretches(kernels, H100) == [longer_us * 1000] * 2


def test_products_that_a_library_placed_where_sms_were_free_share_them_once() -> None:
    kernels = [product(0, 100, 8.0, stream=stream) for stream in (1001, 1002)]
    placed = [item._replace(kernel=replace(item.kernel, branches=(1,))) for item in kernels]

    assert stretches(kernels, H100) == [100_000] * 2
    assert stretches(placed, H100) == [0, 0]


def test_copies_from_other_gpus_share_their_link() -> None:
    copy = Kernel.rows(
        KernelClass.COPY, PEER_COPY, 1, 1, dtype="bfloat16", bytes_read=2, bytes_written=2, flops=0
    )
    kernels = [span(copy, 0, 100, stream=0), span(copy, 50, 150, stream=1)]

    assert stretches(kernels, H100) == [50_000, 50_000]


def product(start_us: float, end_us: float, num_waves: float, *, stream: int = 0) -> KernelSpan:
    """A product of so many waves."""
    found = span(GEMM, start_us, end_us, stream=stream)
    estimate = replace(found.estimate, num_waves=num_waves, bound="compute")
    return found._replace(estimate=estimate)


def start_of(kernels: list[KernelSpan], rules: StartRules | None = None) -> int:
    """When the one collective starts, ns; `stretches` lets it end later by as much."""
    [(number, found)] = [
        (number, span) for number, span in enumerate(kernels) if span.stream == 100
    ]
    placed = dict(_queued(kernels, [number], rules or StartRules()))
    return placed.get(number, found).start_ns


def test_a_collective_starts_when_a_kernel_that_has_all_sms_gives_some_up() -> None:
    """2.5 waves: after two of three; three whole waves: at the end; half a wave: at once."""
    reduce = span(REDUCE, 10, 500, stream=100)

    starts = [start_of([product(0, 90, waves), reduce]) for waves in (2.5, 3.0, 0.5)]

    assert starts == [60_000, 90_000, 10_000]
    assert stretches([product(0, 90, 3.0), reduce], H100)[1] == 80_000


def test_on_a_stream_of_high_priority_it_starts_at_once() -> None:
    kernels = [product(0, 90, 3.0), span(REDUCE, 10, 500, stream=100)]

    assert start_of(kernels, StartRules(urgent_streams=frozenset({100}))) == 10_000


def test_of_two_that_could_start_at_once_launches_decide_with_one_connection() -> None:
    """CUDA_DEVICE_MAX_CONNECTIONS=1; else the kernel that waits for no other stream is first."""
    reduce = span(REDUCE, 0, 500, stream=100)
    launched_first, launched_after = [reduce, product(0, 90, 3.0)], [product(0, 90, 3.0), reduce]

    in_order = StartRules(in_order=True)

    assert start_of(launched_first) == start_of(launched_after, in_order) == 90_000
    assert start_of(launched_first, in_order) == 0


def test_it_waits_for_sms_while_it_would_wait_for_ranks() -> None:
    late = span(REDUCE, 10, 500, stream=100, waited_us=200.0)

    assert stretches([product(0, 90, 3.0), late], H100)[1] == 0


@pytest.mark.parametrize(
    ("priority", "connections", "stated"), [(0, None, (None, None)), (-1, "1", ("33", "yes"))]
)
def test_a_recording_keeps_which_streams_start_first(
    priority: int,
    connections: str | None,
    stated: tuple[str | None, str | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    if connections is not None:
        monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections)
    with neusight.forecast_on("H100", world_size=2) as forecast:
        join()
        with torch.cuda.stream(torch.cuda.Stream(priority=priority)):
            dist.all_reduce(torch.ones(4, device="cuda"))

    options = forecast.recording.options
    assert (options.get(URGENT_STREAMS_OPTION), options.get(IN_ORDER_OPTION)) == stated


def test_a_group_of_high_priority_has_such_a_stream() -> None:
    with neusight.forecast_on("H100", world_size=2) as forecast:
        how = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
        dist.init_process_group("nccl", pg_options=how)
        dist.all_reduce(torch.ones(4, device="cuda"), async_op=True).wait()

    assert forecast.recording.options[URGENT_STREAMS_OPTION] == "100"


def forecast_of(*, overlaps: bool) -> neusight.Forecast:
    """Three blocks; their reductions run beside the next one's products, or before."""
    with neusight.forecast_on("H100", world_size=8) as forecast:
        join()
        products = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
        moved = torch.zeros(2**26, device="cuda")
        for _ in range(4):
            work = dist.all_reduce(moved, async_op=True)
            if not overlaps:
                work.wait()
            for _ in range(8):
                products @ products
            work.wait()
            forecast.step()
    return forecast


def test_a_step_is_longer_by_what_overlaps_and_less_sure() -> None:
    beside, apart = forecast_of(overlaps=True), forecast_of(overlaps=False)

    def products_us(forecast: neusight.Forecast) -> float:
        step = forecast.timeline.steps[-1]
        kernels = forecast.timeline.kernels[step.first_kernel : step.last_kernel]
        return sum(k.duration_ns for k in kernels if k.kernel.flops) / 1000

    alone_us = sum(estimate.latency_us for kernel, estimate in apart.kernels[-9:] if kernel.flops)
    assert products_us(apart) == pytest.approx(alone_us)
    assert 1.05 * alone_us < products_us(beside) < 132 / 116 * alone_us
    assert beside.step_latency_us.low < beside.step_latency_us.median
    assert [estimate for _, estimate in beside.kernels] == [e for _, e in apart.kernels]


def test_data_parallel_training_is_deterministic_and_longer_than_without_others() -> None:
    def run() -> neusight.Forecast:
        with neusight.forecast_on("H100", world_size=8) as forecast:
            join()
            model = torch.nn.parallel.DistributedDataParallel(Block(2048).cuda())
            train(model, width=2048)
        return forecast

    first, second = run(), run()

    assert first.to_json() == second.to_json()


GATHER = Kernel.collective("all_gather", 2**28, 8)
SCATTER = Kernel.collective("reduce_scatter", 2**28, 8)


def test_a_reduce_scatter_beside_an_all_gather_shares_the_link() -> None:
    """Both take what the ring reaches of the link: each is twice as long."""
    alone_us = sent_bytes("all_gather", 2**28, 8) / (inside_gbps(H100, SWITCH, world_size=8) * 1e3)
    kernels = [
        span(GATHER, 0, alone_us, stream=100),
        span(SCATTER, 0, alone_us, stream=101),
    ]

    longer = stretches(kernels, H100)

    assert longer == [pytest.approx(1000 * alone_us, rel=1e-3)] * 2
    assert stretches(kernels[:1], H100) == [0]


def test_a_send_and_a_receive_at_once_use_both_directions() -> None:
    pair = Kernel.collective("send_recv", 2**28, 2)
    send, receive = (
        span(pair, 0, 1000, stream=stream)._replace(
            call=OpCall(OpSignature(name, "", (), ()), MathMode())
        )
        for stream, name in ((100, "c10d::send"), (101, "c10d::recv_"))
    )

    assert stretches([send, receive], H100) == [0, 0]
    assert min(stretches([send, send._replace(stream=102)], H100)) > 0


def test_where_hosts_wait_for_each_other_the_slowest_sets_the_pace() -> None:
    everyone = Kernel.collective("all_gather", 2**20, 128, num_nodes=16)
    kernels = [span(RELU, 0, 1000), span(everyone, 1000, 1100, stream=100)]

    assert stretches(kernels, H100) == [round(1_000_000 * slowest_share(16)), 0]
