"""Devices, streams, memory, graphs and clocks."""

from __future__ import annotations

import threading
import time
import traceback

import torch
from torch import nn

from covered.habit_programs.habit import batch, habit, net, refuses, train


@habit(is_sampled=True)
def questions_about_the_device() -> None:
    properties = torch.cuda.get_device_properties(0)
    assert (properties.multi_processor_count, properties.major) == (132, 9)
    assert "H100" in torch.cuda.get_device_name()
    assert torch.cuda.get_device_capability() == (9, 0)
    assert torch.cuda.is_bf16_supported() and torch.cuda.is_tf32_supported()
    assert (torch.cuda.device_count(), torch.cuda.current_device()) == (1, 0)
    assert "sm_90" in torch.cuda.get_arch_list()
    assert torch.version.cuda is not None and torch.backends.cuda.is_built()
    assert torch.backends.cudnn.is_available() and torch.backends.cudnn.version() > 90000
    assert torch.cuda.nccl.version() > (2, 0, 0)
    assert str(torch.accelerator.current_accelerator()) == "cuda"
    assert torch.accelerator.is_available() and torch.get_device_module("cuda") is torch.cuda
    assert torch.cuda.device(0).idx == 0
    refuses(AssertionError, "Invalid device id", lambda: torch.cuda.get_device_properties(3))
    refuses(RuntimeError, "invalid device ordinal", lambda: torch.ones(2, device="cuda:3"))


@habit()
def sensors_and_processes() -> None:
    assert torch.cuda.utilization() >= 0 and torch.cuda.temperature() >= 0
    assert torch.cuda.power_draw() > 0 and torch.cuda.clock_rate() > 0
    assert "GPU:0" in torch.cuda.list_gpu_processes()


@habit()
def memory_statistics() -> None:
    x = torch.randn(1 << 20, device="cuda")
    assert torch.cuda.memory_allocated() >= x.nbytes
    assert "allocated_bytes.all.peak" in torch.cuda.memory_stats()
    free, total = torch.cuda.mem_get_info()
    assert 0 < free < total
    assert torch.cuda.memory_reserved() >= torch.cuda.memory_allocated()
    print(torch.cuda.memory_summary(abbreviated=True))
    torch.cuda.reset_peak_memory_stats()
    y = x * 2
    assert torch.cuda.max_memory_allocated() >= x.nbytes + y.nbytes
    torch.cuda.empty_cache()
    torch.cuda.ipc_collect()
    torch.cuda.set_per_process_memory_fraction(0.5)
    assert torch.cuda.memory_snapshot()


@habit()
def memory_history_and_snapshots() -> None:
    import pickle

    torch.cuda.memory._record_memory_history(max_entries=1000)
    x = torch.randn(1 << 20, device="cuda")
    torch.cuda.memory._dump_snapshot("snapshot.pickle")
    torch.cuda.memory._record_memory_history(enabled=None)
    with open("snapshot.pickle", "rb") as file:
        assert pickle.load(file)["segments"]
    assert x.nbytes == 4 << 20


@habit()
def memory_pools() -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.empty(1 << 20, device="cuda")
    assert x.is_cuda and pool.use_count() == 1


@habit()
def times_by_events() -> None:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    train(net().cuda())
    end.record()
    torch.cuda.synchronize()
    assert start.elapsed_time(end) > 0 and end.query()


@habit()
def times_by_the_clock() -> None:
    model = net().cuda()
    for _ in range(3):
        model(batch())
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(10):
        model(batch())
    torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"{10 * 32 / elapsed:.0f} samples/s")
    assert elapsed > 0


@habit()
def benchmark_of_torch_utils() -> None:
    from torch.utils import benchmark

    timer = benchmark.Timer("x @ x", globals={"x": batch(256)}, label="product")
    measured = timer.timeit(20)
    assert measured.median > 0
    print(measured)
    assert timer.blocked_autorange(min_run_time=0.01).mean > 0


@habit()
def streams_that_wait() -> None:
    side = torch.cuda.Stream(priority=-1)
    x = torch.randn(1024, 1024, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x @ x
        assert torch.cuda.current_stream() == side
        y.record_stream(side)
    event = side.record_event()
    torch.cuda.current_stream().wait_event(event)
    event.synchronize()
    side.synchronize()
    assert side.query() and torch.cuda.default_stream() != side
    y.sum().item()


@habit()
def cuda_graph_of_a_training_step() -> None:
    model, x = net().cuda(), batch()
    optimizer = torch.optim.Adam(model.parameters(), capturable=True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            model(x).sum().backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
    for _ in range(5):
        x.copy_(torch.randn(32, 256))
        graph.replay()
    loss.item()


@habit()
def cuda_graphs_that_share_a_pool() -> None:
    model, x = net().cuda(), batch()
    model(x)
    pool = torch.cuda.graph_pool_handle()
    graphs = []
    for _ in range(2):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            out = model(x)
            assert torch.cuda.is_current_stream_capturing()
        graphs.append((graph, out))
    for graph, _ in graphs:
        graph.replay()
    graphs[0][0].reset()
    by_accelerator = torch.accelerator.Graph()
    with torch.cuda.stream(torch.cuda.Stream()), by_accelerator:
        x.relu_()
    by_accelerator.replay()


@habit()
def graphed_callables() -> None:
    model, x = net().cuda(), batch(requires_grad=True)
    model = torch.cuda.make_graphed_callables(model, (x,))
    train(model, x.detach().requires_grad_())


@habit()
def threads_of_the_program() -> None:
    errors = []

    def work() -> None:
        try:
            train(net().cuda())
        except BaseException:
            errors.append(traceback.format_exc())

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]


@habit()
def devices_by_every_name() -> None:
    model = net()
    for move in (
        lambda m: m.cuda(),
        lambda m: m.to("cpu").cuda(0),
        lambda m: m.to(torch.device("cuda", 0)),
        lambda m: m.to(device="cuda:0", dtype=torch.bfloat16),
        lambda m: m.half().float(),
    ):
        model = move(model)
        assert next(model.parameters()).device == torch.device("cuda:0")
    with torch.device("cuda"):
        assert torch.zeros(3).is_cuda and nn.Linear(2, 2).weight.is_cuda
    with torch.cuda.device("cuda:0"), torch.cuda.device_of(batch()):
        assert torch.zeros(2, device="cuda").get_device() == 0
    assert batch().new_zeros(3).is_cuda and torch.zeros_like(batch()).is_cuda
    assert torch.empty(2).to(batch()).is_cuda
    assert isinstance(batch(), torch.cuda.FloatTensor)


@habit()
def legacy_types() -> None:
    assert torch.cuda.FloatTensor(4, 4).zero_().shape == (4, 4)
    assert torch.cuda.LongTensor([1, 2]).dtype == torch.int64
    assert torch.FloatTensor(3).cuda().type(torch.cuda.HalfTensor).dtype == torch.float16
    assert torch.FloatTensor(3).type("torch.cuda.DoubleTensor").dtype == torch.float64
    assert batch().type() == "torch.cuda.FloatTensor"
    torch.set_default_tensor_type("torch.cuda.FloatTensor")
    assert torch.randn(4).is_cuda
    torch.set_default_tensor_type("torch.FloatTensor")
    assert not torch.randn(4).is_cuda


@habit()
def seeds_states_and_generators() -> None:
    generator = torch.Generator("cuda").manual_seed(3)
    assert generator.initial_seed() == 3 and generator.device.type == "cuda"
    torch.randn(4, device="cuda", generator=generator)
    torch.randperm(8, device="cuda", generator=generator)
    state = torch.cuda.get_rng_state()
    with torch.random.fork_rng(devices=[0]):
        torch.cuda.manual_seed(1)
    assert torch.equal(torch.cuda.get_rng_state(), state)
    torch.cuda.set_rng_state_all(torch.cuda.get_rng_state_all())
    refuses(
        RuntimeError,
        "Expected a 'cuda' device type for generator",
        lambda: torch.randn(4, device="cuda", generator=torch.Generator()),
    )


@habit()
def waits_are_found() -> None:
    torch.cuda.set_sync_debug_mode("error")
    try:
        x = batch().relu()
        refuses(RuntimeError, "synchronizing CUDA operation", lambda: x.sum().item())
    finally:
        torch.cuda.set_sync_debug_mode("default")


@habit()
def ranges_and_marks() -> None:
    torch.cuda.nvtx.range_push("step")
    with torch.cuda.nvtx.range("forward"), torch.profiler.record_function("net"):
        net().cuda()(batch())
    torch.cuda.nvtx.mark("here")
    torch.cuda.nvtx.range_pop()
    with torch.autograd.profiler.emit_nvtx():
        train(net().cuda())
    torch.cuda.profiler.start()
    torch.cuda.profiler.stop()


@habit()
def one_device_or_the_other() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    assert device.type == "cuda" and dtype == torch.bfloat16
    assert not torch.backends.mps.is_available() and not torch.xpu.is_available()
    if torch.cuda.get_device_properties(0).total_memory < 16 * 2**30:
        raise AssertionError("the GPU is small")
    assert train(net().to(device), torch.randn(4, 256).to(device)) > 0


@habit()
def modules_on_meta_first() -> None:
    with torch.device("meta"):
        model = net()
    model.to_empty(device="cuda")
    model.apply(lambda m: m.reset_parameters() if hasattr(m, "reset_parameters") else None)
    train(model)


@habit()
def swapped_to_the_cpu_and_back() -> None:
    model = net().cuda()
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer=optimizer)
    for state in optimizer.state.values():
        for key, value in state.items():
            if torch.is_tensor(value) and value.dim():
                state[key] = value.to("cpu", non_blocking=True)
    model.cpu()
    torch.cuda.empty_cache()
    model.cuda()
    for state in optimizer.state.values():
        for key, value in state.items():
            if torch.is_tensor(value) and value.dim():
                state[key] = value.to("cuda")
    train(model, optimizer=optimizer)


@habit()
def operands_on_two_devices() -> None:
    model = net().cuda()
    words = "Expected all tensors to be on the same device"
    refuses(RuntimeError, words, lambda: model(torch.randn(4, 256)))
    refuses(RuntimeError, words, lambda: batch(2, 2) + torch.ones(2, 2))
    refuses(RuntimeError, words, lambda: torch.cat([batch(2, 2), torch.ones(2, 2)]))
    refuses(
        RuntimeError,
        words,
        lambda: nn.functional.cross_entropy(batch(4, 4), torch.zeros(4, dtype=torch.long)),
    )
    refuses(RuntimeError, "indices should be either on cpu or on the same device",
            lambda: torch.ones(4)[torch.zeros(2, dtype=torch.long, device="cuda")])  # fmt: skip
    assert (batch(2, 2) + torch.tensor(1.0)).is_cuda  # a number of no dimension may


@habit()
def gradients_on_two_devices() -> None:
    parameter = nn.Parameter(torch.ones(4, 4, device="cuda"))

    def wrong_grad() -> None:
        parameter.grad = torch.ones(4, 4)

    refuses(RuntimeError, "device", wrong_grad)

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return torch.ones(4, 4)

    out = Wrong.apply(parameter).sum()
    refuses(RuntimeError, "expected device cuda:0 but got cpu", out.backward)
    refuses(RuntimeError, "device", lambda: (parameter * 2).backward(torch.ones(4, 4)))


@habit()
def shapes_that_do_not_fit() -> None:
    model = net().cuda()
    refuses(RuntimeError, "mat1 and mat2 shapes cannot be multiplied", lambda: model(batch(4, 255)))
    refuses(RuntimeError, "must match", lambda: batch(2, 3) + batch(2, 4))
    refuses(RuntimeError, "dtype", lambda: model.half()(batch()))
