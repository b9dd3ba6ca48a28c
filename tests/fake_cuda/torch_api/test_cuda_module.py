"""torch.cuda answers for the target."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import neusight
from neusight.fake_cuda.torch_api.cuda_module import static_answer
from neusight.predictors.gpu import find_gpu
from neusight.recording.recording import Alloc, EventRecord, OpCall
from recorded_programs import entries_of


def on(name: str, program: Any) -> Any:
    with neusight.forecast_on(name):
        torch.zeros(1, device="cuda")
        return program()


@pytest.mark.parametrize(
    ("name", "capability", "gigabytes"),
    [("H100", (9, 0), 85), ("A100", (8, 0), 85), ("V100", (7, 0), 34), ("L4", (8, 9), 24)],
)
def test_it_answers_as_the_driver_of_the_target(
    name: str, capability: tuple[int, int], gigabytes: int
) -> None:
    target = find_gpu(name)

    def answers() -> tuple[Any, ...]:
        properties = torch.cuda.get_device_properties(0)
        return (
            torch.cuda.is_available(), torch.cuda.get_device_name(), properties.name,
            torch.cuda.get_device_capability(), (properties.major, properties.minor),
            properties.multi_processor_count, torch.cuda.mem_get_info()[1],
            f"sm_{capability[0]}{capability[1]}" in torch.cuda.get_arch_list(),
        )  # fmt: skip

    assert on(name, answers) == (
        True, target.driver_name, target.driver_name, capability, capability, target.num_sms,
        target.memory_bytes, True,
    )  # fmt: skip
    assert round(target.memory_bytes / 1e9) == gigabytes


def test_recurrent_networks_have_the_numbers_of_cudnn() -> None:
    """cudnnRNNMode_t."""
    names = ("RNN_RELU", "RNN_TANH", "LSTM", "GRU")

    found = on("H100", lambda: [*map(torch.backends.cudnn.rnn.get_cudnn_mode, names)])

    assert found == [0, 1, 2, 3]


def test_there_is_one_gpu_and_it_is_current() -> None:
    def answers() -> tuple[Any, ...]:
        torch.cuda.set_device(0)
        with torch.cuda.device(0):
            inside = torch.cuda.current_device()
        torch.cuda.init()
        return (
            torch.cuda.device_count(), inside, torch.cuda.is_initialized(),
            torch.accelerator.is_available(), str(torch.accelerator.current_accelerator()),
            torch.accelerator.device_count(), torch.cuda.can_device_access_peer(0, 0),
            torch.backends.cudnn.is_available(), torch.version.cuda is not None,
        )  # fmt: skip

    assert on("H100", answers) == (1, 0, True, True, "cuda", 1, True, True, True)


def test_torch_does_not_warn_of_a_triton_that_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    name = "torch.utils.flop_counter"
    monkeypatch.delitem(sys.modules, name, raising=False)

    on("H100", lambda: importlib.import_module(name))

    assert caplog.records == []
    assert not logging.getLogger(name).disabled


@pytest.mark.parametrize(
    "use",
    [
        lambda: torch.cuda.set_device(0),
        lambda: torch.empty(1, device="cuda"),
        lambda: torch.ones(1).cuda(),
        torch.cuda.current_device,
        torch.cuda.init,
    ],
)
def test_cuda_starts_with_its_first_use(use: Callable[[], object]) -> None:
    with neusight.forecast_on("H100"):
        torch.manual_seed(0)
        before = torch.cuda.is_initialized()
        use()
        assert (before, torch.cuda.is_initialized()) == (False, True)
        torch.ones(1, device="cuda")


def test_a_gpu_beyond_the_last_is_refused() -> None:
    def program() -> None:
        with pytest.raises(RuntimeError, match=r"invalid device ordinal \(cuda:7, but .* 1 GPU\)"):
            torch.cuda.set_device(7)
        with pytest.raises(ValueError, match="Expected a cuda device, but got: cpu"):
            torch.cuda.set_device("cpu")
        with pytest.raises(AssertionError, match="Invalid device id"):
            torch.cuda.get_device_name(7)

    on("H100", program)


def test_memory_is_that_of_the_caching_allocator() -> None:
    mib = 2**20

    def program() -> list[int]:
        torch.cuda.empty_cache()
        base = torch.cuda.memory_allocated()
        x = torch.empty(10 * mib, dtype=torch.uint8, device="cuda")
        y = torch.empty(5 * mib, dtype=torch.uint8, device="cuda")
        with_both = torch.cuda.memory_allocated() - base
        del x
        found = [
            with_both, torch.cuda.memory_allocated() - base,
            torch.cuda.max_memory_allocated() - base,
        ]  # fmt: skip
        torch.cuda.reset_peak_memory_stats()
        found.append(torch.cuda.max_memory_allocated() - base)
        statistics = torch.cuda.memory_stats()
        found.append(statistics["allocated_bytes.all.current"] - base)
        found.append(int(torch.cuda.memory_reserved() >= 10 * mib))
        before, _ = torch.cuda.mem_get_info()
        torch.cuda.empty_cache()
        found.append(int(torch.cuda.mem_get_info()[0] >= before))
        assert "5120 KiB" in torch.cuda.memory_summary() or y.numel()
        return found

    assert on("H100", program) == [15 * mib, 5 * mib, 15 * mib, 5 * mib, 5 * mib, 1, 1]


def test_out_of_memory_can_raise_as_on_the_gpu_and_be_survived() -> None:
    sizes = []

    with neusight.forecast_on("H100", on_out_of_memory="raise") as forecast:
        size = 2**30
        while True:
            try:
                torch.empty(size, device="cuda")
            except torch.OutOfMemoryError as error:
                message = str(error)
                break
            sizes.append(size)
            size *= 2
        torch.ones(4, device="cuda").sum()

    assert sizes[-1] * 4 < find_gpu("H100").memory_bytes <= 2 * sizes[-1] * 4
    assert message.startswith("CUDA out of memory. Tried to allocate ")
    assert "GiB. GPU 0 has a total capacity of" in message
    assert forecast.fits


def test_questions_that_depend_on_the_gpu_are_kept() -> None:
    with neusight.forecast_on("H100") as forecast:
        torch.zeros(1, device="cuda")
        torch.cuda.get_device_capability()
        torch.cuda.get_device_name()

    assert dict(forecast.recording.queries) == {
        "get_device_capability": "(9, 0)", "get_device_name": "'NVIDIA H100 80GB HBM3'"
    }  # fmt: skip
    assert static_answer("get_device_capability", find_gpu("A100")) == "(8, 0)"
    assert static_answer("elapsed_time", find_gpu("A100")) is None


def test_a_new_stream_has_a_lane_of_its_own_and_streams_nest() -> None:
    with neusight.forecast_on("H100") as forecast:
        first, second = torch.cuda.Stream(), torch.cuda.Stream()
        x = torch.ones(2, device="cuda")
        with torch.cuda.stream(first):
            x.sin()
            with torch.cuda.stream(second):
                x.cos()
            x.tan()
        x.exp()
        torch.cuda.set_stream(first)
        current = torch.cuda.current_stream()
        torch.cuda.set_stream(torch.cuda.default_stream())
        with torch.cuda.stream(None):
            x.log()
        answers = (first == second, current == first, hash(current) == hash(first), first.query())

    lanes = {entry.signature.op: entry.stream for entry in entries_of(forecast, OpCall)}
    assert lanes["aten::sin"] == lanes["aten::tan"] == first.stream_id
    assert lanes["aten::cos"] == second.stream_id
    assert lanes["aten::exp"] == lanes["aten::log"] == lanes["aten::ones"] == 0
    assert answers == (False, True, True, True)


def test_a_pool_of_32_streams_is_handed_out_in_turn_and_urgent_ones_are_kept() -> None:
    with neusight.forecast_on("H100") as forecast:
        torch.ones(1, device="cuda")
        streams = [torch.cuda.Stream(priority=number - 33) for number in range(35)]
        numbers = [stream.stream_id for stream in streams]

    assert numbers == [*range(33, 65), 33, 34, 35]
    urgent = [int(number) for number in forecast.recording.options["urgent_streams"].split(",")]
    assert urgent == sorted({*numbers[:33]})


def test_a_negative_number_of_a_device_changes_nothing() -> None:
    cuda: Any = torch.cuda
    with neusight.forecast_on("H100", world_size=3):
        torch.ones(1, device="cuda")
        cuda.set_device(2)
        cuda.set_device(-1)
        before = [cuda.current_device(), cuda._exchange_device(-1), cuda._exchange_device(0)]
        after = [cuda.current_device(), cuda._exchange_device(1), cuda.current_device()]

    assert (before, after) == ([2, 2, 2], [0, 0, 1])


def test_events_order_streams() -> None:
    with neusight.forecast_on("H100") as forecast:
        side = torch.cuda.Stream()
        torch.zeros(1, device="cuda")
        event = torch.cuda.current_stream().record_event()
        side.wait_event(event)
        side.wait_stream(torch.cuda.current_stream())
        event.synchronize()
        side.synchronize()
        assert isinstance(event, torch.cuda.Event) and event.query()

    records = entries_of(forecast, EventRecord)
    assert [(entry.event, entry.stream) for entry in records] == [(1, 0), (2, 0)]
    assert repr(side) == "<torch.cuda.Stream device=cuda:0 cuda_stream=0x21>"


def test_a_graph_captured_from_a_training_step_steps_at_each_replay() -> None:
    with neusight.forecast_on("H100") as forecast:
        model = torch.nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.ones(4, 8, device="cuda")
        graph = torch.cuda.CUDAGraph()
        assert not torch.cuda.is_current_stream_capturing()
        with torch.cuda.graph(graph, pool=torch.cuda.graph_pool_handle()):
            capturing = torch.cuda.is_current_stream_capturing()
            model(data).sum().backward()
            optimizer.step()
        for _ in range(5):
            graph.replay()

    assert capturing
    trained = [step for step in forecast.recording.steps if step.kind == "train"]
    assert sum(step.count for step in trained) == 5


def test_what_a_capture_allocates_comes_from_the_pool_that_it_was_given() -> None:
    with neusight.forecast_on("H100") as forecast:
        data = torch.ones(4, 8, device="cuda")
        graphs = [torch.cuda.CUDAGraph() for _ in range(3)]
        kept = []
        for graph, pool in zip(graphs, (None, graphs[0], None), strict=True):
            with torch.cuda.graph(graph, pool=None if pool is None else pool.pool()):
                kept.append(data + 1)
            graph.replay()
        kept.append(data + 1)
    entries = [entry for step in forecast.recording.steps for entry in step.entries]

    assert [entry.pool for entry in entries if isinstance(entry, Alloc)] == [0, 1, 1, 2, 0]


def test_random_numbers_of_the_gpu_have_a_state() -> None:
    def program() -> tuple[Any, ...]:
        state = torch.cuda.get_rng_state()
        torch.cuda.set_rng_state(state)
        torch.cuda.manual_seed(3)
        torch.manual_seed(3)
        with torch.random.fork_rng():
            torch.rand(1)
        generator = torch.Generator("cuda")
        generator.manual_seed(5)
        torch.rand(2, device="cuda", generator=generator)
        return tuple(state.shape), state.device.type, isinstance(generator, torch.Generator)

    assert on("H100", program) == ((16,), "cpu", True)


def test_legacy_tensor_types_construct_and_recognise() -> None:
    def program() -> list[Any]:
        cuda: Any = torch.cuda
        x = cuda.HalfTensor(2, 3)
        y = cuda.LongTensor([1, 2])
        with pytest.raises(TypeError, match=r"expected a CUDA tensor of torch\.float32 \(got"):
            cuda.FloatTensor(x)
        return [
            x.dtype, tuple(x.shape), y.tolist(), isinstance(x, cuda.HalfTensor),
            isinstance(y, cuda.FloatTensor), cuda.HalfTensor(x).data_ptr() == x.data_ptr(),
        ]  # fmt: skip

    assert on("H100", program) == [torch.float16, (2, 3), [1, 2], True, False, True]


def test_an_amd_target_is_no_cuda() -> None:
    def program() -> tuple[Any, ...]:
        return torch.version.cuda, torch.cuda.is_available(), torch.cuda.get_device_capability()

    assert on("MI300X", program) == (None, True, (9, 4))


def test_torch_is_built_for_cuda_but_its_own_code_does_not_see_it() -> None:
    """torch._inductor.cudagraph_trees imports names of a CUDA core where it is."""
    on_query = compile("torch.backends.cuda.is_built()", "cudagraph_trees.py", "eval")
    found = on(
        "H100",
        lambda: (
            torch.backends.cuda.is_built(),
            eval(on_query, {"torch": torch, "__name__": "torch._inductor.cudagraph_trees"}),
        ),
    )
    assert found == (True, False)


def test_the_properties_are_those_of_the_gpu_and_of_its_architecture() -> None:
    with neusight.forecast_on("H100"):
        torch.ones(1, device="cuda")
        found: Any = torch.cuda.get_device_properties(0)  # torch's stubs lack some of them
        numbers = (
            found.warp_size, found.max_threads_per_multi_processor, found.max_threads_per_block,
            found.regs_per_multiprocessor, found.shared_memory_per_block,
            found.shared_memory_per_block_optin, found.shared_memory_per_multiprocessor,
            found.L2_cache_size, found.clock_rate, found.memory_clock_rate, found.memory_bus_width,
            found.pci_bus_id, found.pci_device_id, found.pci_domain_id,
            found.is_integrated, found.is_multi_gpu_board,
        )  # fmt: skip

    assert numbers == (
        32, 2048, 1024, 65536, 49152, 232448, 233472, 50 * 2**20, 1_830_000, *[0] * 7
    )  # fmt: skip


def test_ranges_say_how_deep_they_are_and_marks_are_numbered_zero() -> None:
    nvtx: Any = torch.cuda.nvtx
    with neusight.forecast_on("H100"):
        torch.ones(1, device="cuda")
        depths = [nvtx.range_push("a"), nvtx.range_push("b"), nvtx.range_pop(), nvtx.range_pop()]
        marks = [nvtx.range_start("c"), nvtx.mark("d"), nvtx.range_pop()]

    assert (depths, marks) == ([0, 1, 1, 0], [0, 0, 0])


def test_devices_and_streams_are_found_by_number_and_name() -> None:
    cuda: Any = torch.cuda
    with neusight.forecast_on("H100"):
        torch.ones(1, device="cuda")
        index_of = cuda._utils._get_device_index
        found = [index_of(None), index_of(0), index_of("cuda"), index_of("cuda:0")]
        on_cpu = index_of("cpu", allow_cpu=True)
        with pytest.raises(ValueError, match="Expected a cuda device"):
            index_of("cpu")
        ids = [stream.stream_id for stream in (cuda.default_stream(), cuda.current_stream())]
        priorities = [cuda.Stream().priority, cuda.Stream(priority=-1).priority]

    assert (found, on_cpu, ids, priorities) == ([0] * 4, -1, [0, 0], [0, -1])
