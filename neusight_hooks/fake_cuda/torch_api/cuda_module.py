"""torch.cuda as it would answer on a machine with the target GPU."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses import fake_tensor

from neusight.fake_cuda.patching import Patches
from neusight.fake_cuda.torch_api.clock import SimulatedClock
from neusight.fake_cuda.torch_api.native.legacy_types import DTYPES_BY_NAME
from neusight.fake_cuda.torch_api.native.rocm import (
    MIOPEN_VERSION,
    ROCM_ARCHITECTURES,
    architecture,
    l2_of_a_die,
)
from neusight.fake_cuda.torch_api.simulated_memory import SimulatedMemory
from neusight.predictors.gpu import GPU
from neusight.recording.recorder import Recorder
from neusight.recording.recording import EventRecord, EventWait, Phase
from neusight.recording.tape import Launched, TapedInput, TapedOp
from neusight.timeline.scheduler import GRAPH_LAUNCH

#: CUDA that the forecast claims: the toolkit of torch 2.13's CUDA wheels.
CUDA_VERSION = "13.0"

#: Streams of one priority before torch returns the first again (c10/cuda/CUDAStream.cpp).
_STREAM_POOL = 32

#: Identifiers of the script's own streams start here; lower ones are the timeline's.
_FIRST_STREAM = 33

#: torch.cuda.is_bf16_supported: emulation counts on every CUDA GPU.
_SUPPORTS_BF16 = True

#: cudnnRNNMode_t.
_CUDNN_RNN_MODES = {"RNN_RELU": 0, "RNN_TANH": 1, "LSTM": 2, "GRU": 3}

OnQuery = Callable[[str, object], None]


@dataclass(frozen=True)
class DeviceProperties:
    """What torch.cuda.get_device_properties returns."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    warp_size: int
    max_threads_per_multi_processor: int
    max_threads_per_block: int
    regs_per_multiprocessor: int
    shared_memory_per_block: int
    shared_memory_per_block_optin: int
    shared_memory_per_multiprocessor: int
    L2_cache_size: int
    clock_rate: int
    memory_clock_rate: int
    memory_bus_width: int
    gcnArchName: str
    uuid: str = "00000000-0000-0000-0000-000000000000"
    pci_bus_id: int = 0
    pci_device_id: int = 0
    pci_domain_id: int = 0
    is_integrated: int = 0
    is_multi_gpu_board: int = 0


def device_properties(gpu: GPU) -> DeviceProperties:
    major, minor = gpu.compute_capability
    is_amd = gpu.vendor == "amd"
    return DeviceProperties(
        name=gpu.driver_name,
        major=major,
        minor=minor,
        total_memory=gpu.memory_bytes,
        multi_processor_count=gpu.num_sms,
        warp_size=gpu.warp_size,
        max_threads_per_multi_processor=gpu.max_threads_per_sm,
        max_threads_per_block=1024,
        regs_per_multiprocessor=gpu.registers_per_sm,
        shared_memory_per_block=gpu.shared_memory_per_sm_bytes if is_amd else 49152,
        shared_memory_per_block_optin=gpu.shared_memory_per_block_optin_bytes,
        shared_memory_per_multiprocessor=gpu.shared_memory_per_sm_bytes,
        L2_cache_size=l2_of_a_die(gpu) if is_amd else gpu.l2_bytes,
        clock_rate=int(gpu.boost_clock_mhz * 1000),
        memory_clock_rate=0,
        memory_bus_width=0,
        gcnArchName=gpu.gcn_arch_name,
    )


def static_answer(device_query: str, gpu: GPU) -> str | None:
    """What `gpu` answers to a recorded question; None where the answer is not the GPU's alone."""
    properties = device_properties(gpu)
    answers: dict[str, object] = {
        "get_device_properties": properties,
        "get_device_name": properties.name,
        "get_device_capability": (properties.major, properties.minor),
        "total_memory": properties.total_memory,
        "is_bf16_supported": _SUPPORTS_BF16,
        "get_arch_list": arch_list(gpu),
        "cudnn.version": cudnn_version(gpu),
    }
    return repr(answers[device_query]) if device_query in answers else None


def cudnn_version(gpu: GPU) -> int:
    """torch.backends.cudnn.version: a ROCm build reports MIOpen's."""
    return MIOPEN_VERSION if gpu.vendor == "amd" else gpu.cudnn_version


def arch_list(gpu: GPU) -> list[str]:
    """The architectures a wheel that runs on the target was built for: its own is among them."""
    if gpu.vendor == "amd":
        return list(dict.fromkeys((*ROCM_ARCHITECTURES, architecture(gpu))))
    major, minor = gpu.compute_capability
    own = f"sm_{major}{minor}"
    known = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]
    return known if own in known else sorted({*known, own}, key=lambda arch: int(arch[3:]))


class _Event:
    """torch.cuda.Event, timed by the forecast."""

    _context: Any = None

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> None:
        self.enable_timing = enable_timing
        if enable_timing:
            self._context.clock()  # time runs from here, or an earlier timer
        self._number: int | None = None

    def record(self, stream: Any = None) -> None:
        context = self._context
        self._number = context.recorder.tape.record_event(context.stream_number(stream))

    def wait(self, stream: Any = None) -> None:
        if self._number is not None:
            context = self._context
            context.recorder.tape.wait_for_event(self._number, context.stream_number(stream))

    def synchronize(self) -> None:
        if self._number is not None:
            self._context.recorder.tape.synchronize("event", event=self._number)

    def query(self) -> bool:
        return True

    def elapsed_time(self, end_event: _Event) -> float:
        if self._number is None or end_event._number is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        if not (self.enable_timing and end_event.enable_timing):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        context = self._context
        context.on_query("elapsed_time", "forecast time")
        clock = context.clock()
        return float(clock.event_us(end_event._number) - clock.event_us(self._number)) / 1000.0

    def ipc_handle(self) -> bytes:
        return b""

    def __repr__(self) -> str:
        return "<torch.cuda.Event of a forecast>"


class _Stream:
    """torch.cuda.Stream: says which lane the ops go to."""

    _context: Any = None

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        self.device = torch.device("cuda", self._context.recorder.devices.current)
        self.priority = priority
        number = kwargs.get("stream_id")
        if number is None:
            created = self._context.streams_created
            self._context.streams_created = created + 1
            number = _FIRST_STREAM + created % _STREAM_POOL
            if priority < 0:
                self._context.recorder.record_urgent(number)
        self.stream_id = number
        self.device_index = self.device.index
        self.device_type = 1
        self.cuda_stream = number
        self._entered: list[int] = []

    def synchronize(self) -> None:
        self._context.recorder.tape.synchronize("stream", stream=self.stream_id)

    def wait_event(self, event: _Event) -> None:
        event.wait(self)

    def wait_stream(self, stream: _Stream) -> None:
        self.wait_event(stream.record_event())

    def record_event(self, event: _Event | None = None) -> _Event:
        event = event or self._context.event_class()
        event.record(self)
        return event

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return bool(self._context.capturing)

    def __enter__(self) -> _Stream:
        recorder = self._context.recorder
        self._entered.append(recorder.current_stream)
        recorder.current_stream = self.stream_id
        return self

    def __exit__(self, *error: object) -> None:
        self._context.recorder.current_stream = self._entered.pop()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


class _CUDAGraph:
    """torch.cuda.CUDAGraph: what was captured is launched again at each replay."""

    _context: Any = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._captured: list[Launched] = []
        self._phases: set[Phase] = set()
        self._start = self._stream = self._pool = 0

    def capture_begin(self, pool: Any = None, *args: Any, **kwargs: Any) -> None:
        recorder = self._context.recorder
        self._pool = recorder.storages.new_pool() if pool is None else int(pool[1])
        recorder.storages.pool = self._pool
        self._context.capturing = recorder.cutter.is_paused = True
        self._start = recorder.tape.position()
        self._stream = recorder.current_stream

    def capture_end(self) -> None:
        recorder = self._context.recorder
        recorder.storages.pool = 0
        self._captured = recorder.tape.take_launched(self._start)
        self._phases = {entry.phase for entry in self._captured if isinstance(entry, TapedOp)}
        self._context.capturing = recorder.cutter.is_paused = False

    def replay(self) -> None:
        recorder = self._context.recorder
        recorder.cutter.graph_begins()
        recorder.tape.mark("graph_begin", GRAPH_LAUNCH)
        recorder.tape.launch(self._launched_on(recorder.current_stream))
        recorder.tape.mark("graph_end", GRAPH_LAUNCH)
        recorder.cutter.graph_ends(id(self), self._phases)

    def _launched_on(self, stream: int) -> list[Launched]:
        """What was captured, on the stream that launches it now, with events of its own."""
        numbers: dict[int, int] = {}
        launched: list[Launched] = []
        is_called = self._context.recorder.attribution.is_outside()
        for entry in self._captured:
            if isinstance(entry, TapedInput):
                if is_called:  # else the module that launches it has recorded its own input
                    launched.append(entry)
                continue
            on = stream if entry.stream == self._stream else entry.stream
            if isinstance(entry, TapedOp):  # no autograd graph runs it
                launched.append(replace(entry, stream=on, sequence_nr=None))
            elif isinstance(entry, EventRecord):
                numbers[entry.event] = self._context.recorder.tape.new_event()
                launched.append(EventRecord(numbers[entry.event], on))
            elif entry.event in numbers:
                launched.append(EventWait(numbers[entry.event], on))
        return launched

    def pool(self) -> tuple[int, int]:
        return (0, self._pool)

    def reset(self) -> None:
        self._captured = []

    def enable_debug_mode(self) -> None:
        return None

    def debug_dump(self, debug_path: str) -> None:
        return None


class _Context:
    """What the classes above share while one forecast is open."""

    def __init__(
        self, recorder: Recorder, on_query: OnQuery, clock: Callable[[], SimulatedClock]
    ) -> None:
        self.recorder = recorder
        self.on_query = on_query
        self.clock = clock
        self.streams_created = 0
        self.capturing = False
        self.event_class: Any = _Event

    def stream_number(self, stream: Any) -> int:
        if stream is None:
            return self.recorder.current_stream
        return int(stream.stream_id)


def install_cuda_module(
    patches: Patches,
    recorder: Recorder,
    gpu: GPU,
    memory: SimulatedMemory,
    on_query: OnQuery,
    clock: Callable[[], SimulatedClock],
) -> None:
    """Makes torch.cuda answer for `gpu` until `patches.restore()`.

    `on_query` gets each question whose answer depends on the GPU; `clock` gives forecast time.
    """
    context = _Context(recorder, on_query, clock)
    cuda = torch.cuda
    classes = [
        type(base.__name__.lstrip("_"), (base,), {"_context": context, "__module__": "torch.cuda"})
        for base in (_Event, _Stream, _CUDAGraph)
    ]
    event_class, stream_class, graph_class = classes
    context.event_class = event_class
    _install_queries(patches, gpu, on_query)
    _install_devices(patches, recorder)
    _install_streams(patches, recorder, event_class, stream_class)
    _install_memory(patches, memory, gpu, on_query)
    _install_tensor_types(patches)
    _captured_before(patches, cuda.CUDAGraph, graph_class)
    for owner in (cuda, cuda.graphs):
        patches.set(owner, "CUDAGraph", graph_class)
    patches.replace_code(cuda.graphs, "is_current_stream_capturing", lambda: context.capturing)
    patches.replace_code(
        cuda.graphs, "make_graphed_callables", lambda callables, *args, **kwargs: callables
    )
    patches.replace_code(
        cuda.graphs, "graph_pool_handle", lambda: (0, recorder.storages.new_pool())
    )
    _install_capture(patches)
    _install_ranges(patches, recorder)


def _captured_before(patches: Patches, original: Any, ours: Any) -> None:
    """Scripts that took a class by name before the forecast get instances of ours from it."""
    patches.set(
        original, "__new__", staticmethod(lambda cls, *args, **kwargs: ours(*args, **kwargs))
    )


def _install_capture(patches: Patches) -> None:
    """torch.cuda.graph, the with statement that captures."""

    def init(
        self: Any, cuda_graph: Any, pool: Any = None, stream: Any = None, **kwargs: Any
    ) -> None:
        self.cuda_graph, self.forecast_stream = cuda_graph, stream
        self.forecast_pool = pool[0] if pool and isinstance(pool[0], tuple) else pool

    def enter(self: Any) -> None:
        if self.forecast_stream is not None:
            self.forecast_stream.__enter__()
        self.cuda_graph.capture_begin(self.forecast_pool)

    def leave(self: Any, *error: object) -> None:
        self.cuda_graph.capture_end()
        if self.forecast_stream is not None:
            self.forecast_stream.__exit__(*error)

    for name, method in (("__init__", init), ("__enter__", enter), ("__exit__", leave)):
        patches.set(torch.cuda.graph, name, method)


def _install_ranges(patches: Patches, recorder: Recorder) -> None:
    """torch.cuda.nvtx: ranges that nest are annotations."""
    nvtx = torch.cuda.nvtx
    emit: Any = torch.autograd.profiler.emit_nvtx
    patches.set(emit, "__enter__", lambda self: self)  # marks each op for a profiler of NVIDIA's
    patches.set(emit, "__exit__", lambda self, *error: None)
    ranges: list[str] = []

    def push(msg: str) -> int:
        ranges.append(msg)
        recorder.hooks.enter_annotation(msg)
        return len(ranges) - 1

    def pop() -> int:
        if ranges:
            recorder.hooks.leave_annotation(ranges.pop(), failed=True)
        return len(ranges)

    patches.replace_code(nvtx, "range_push", push)
    patches.replace_code(nvtx, "range_pop", pop)
    for name in ("mark", "range_start", "range_end"):
        patches.replace_code(nvtx, name, lambda *args, **kwargs: 0)


def _install_queries(patches: Patches, gpu: GPU, on_query: OnQuery) -> None:
    cuda = torch.cuda
    properties = device_properties(gpu)

    def answering(device_query: str, answer: Any) -> Callable[..., Any]:
        def reply(*args: Any, **kwargs: Any) -> Any:
            on_query(device_query, answer)
            return answer

        return reply

    patches.replace_code(cuda, "is_available", lambda: True)
    patches.replace_code(cuda, "_is_compiled", lambda: True)
    patches.replace_code(cuda, "_nvml_based_avail", lambda: False)
    patches.set(cuda, "_get_device_properties", answering("get_device_properties", properties))
    for device_query, answer in (
        ("get_device_properties", properties),
        ("get_device_name", properties.name),
        ("get_device_capability", (properties.major, properties.minor)),
    ):
        patches.replace_code(cuda, device_query, _of_a_gpu(answering(device_query, answer)))
    patches.replace_code(cuda, "get_arch_list", answering("get_arch_list", arch_list(gpu)))
    patches.replace_code(cuda, "is_bf16_supported", answering("is_bf16_supported", _SUPPORTS_BF16))
    patches.replace_code(torch.backends.cuda, "is_built", lambda: not _is_torch_asking())
    patches.set(torch.version, "cuda", None if gpu.vendor == "amd" else CUDA_VERSION)
    # It says on a build for a GPU that Triton is missing, which here is no more than not installed.
    patches.set(logging.getLogger("torch.utils.flop_counter"), "disabled", True)
    cudnn: Any = torch.backends.cudnn
    functions = cudnn.m  # the module behind its properties: they call each other
    patches.replace_code(functions, "is_available", lambda: True)
    patches.replace_code(functions, "version", answering("cudnn.version", cudnn_version(gpu)))
    patches.replace_code(functions, "is_acceptable", lambda tensor: tensor.is_cuda)
    patches.replace_code(cudnn.rnn, "get_cudnn_mode", _CUDNN_RNN_MODES.__getitem__)


def _is_torch_asking() -> bool:
    """Whether torch's own code asks if it was built for CUDA, which names its core then has."""
    asking = sys._getframe(3).f_globals.get("__name__", "")
    return bool(asking.partition(".")[0] == "torch")


def _of_a_gpu(answer: Callable[[], Any]) -> Callable[..., Any]:
    """The answer, for a GPU that is there; AssertionError, as CUDA gives it, for another."""

    def reply(device: Any = None) -> Any:
        index = torch.cuda._utils._get_device_index(device, optional=True)
        if not 0 <= index < torch.cuda.device_count():
            raise AssertionError("Invalid device id")
        return answer()

    return reply


def _install_devices(patches: Patches, recorder: Recorder) -> None:
    cuda = torch.cuda

    def index_of(device: Any = None, optional: bool = False, allow_cpu: bool = False) -> int:
        if device is None:
            return recorder.devices.current
        if isinstance(device, int):
            return device
        device = torch.device(device) if isinstance(device, str) else device
        if not isinstance(device, torch.device):
            return int(getattr(device, "idx", recorder.devices.current))
        if device.type != "cuda":
            if allow_cpu and device.type == "cpu":
                return -1
            raise ValueError(f"Expected a cuda device, but got: {device}")
        return recorder.devices.current if device.index is None else device.index

    def set_device(device: Any) -> None:
        index = index_of(device)
        if index >= 0:
            recorder.devices.checked(torch.device("cuda", index))
            recorder.devices.use(index)

    def exchange(index: int) -> int:
        previous = recorder.devices.current
        if index >= 0:
            recorder.devices.use(index)
        return previous

    start = recorder.devices.start

    def is_initialized() -> bool:
        return recorder.devices.is_used and not recorder.devices.is_forked

    def current_device() -> int:
        start()
        return recorder.devices.current

    def nothing(*args: Any, **kwargs: Any) -> None:
        return None

    patches.replace_code(cuda, "device_count", lambda: recorder.devices.count)
    patches.replace_code(cuda, "current_device", current_device)
    patches.replace_code(cuda, "set_device", set_device)
    patches.replace_code(cuda, "is_initialized", is_initialized)
    patches.replace_code(cuda, "_lazy_call", lambda callable, **kwargs: callable())
    patches.replace_code(cuda, "_lazy_init", start)
    patches.replace_code(cuda, "init", start)
    # A fake tensor's first one on a device would allocate there for real. Private; torch 2.11 to
    # 2.15 have it. If it moves, fake tensors of a CUDA build ask for the driver.
    patches.replace_code(fake_tensor, "init_gpu_context", nothing)
    # Two functions: Dynamo has a rule for each.
    patches.replace_code(cuda, "_exchange_device", exchange)
    patches.replace_code(cuda, "_maybe_exchange_device", lambda index: exchange(index))
    patches.replace_code(cuda, "can_device_access_peer", lambda *args: True)
    patches.replace_code(cuda, "ipc_collect", nothing)
    patches.replace_code(cuda, "_is_in_bad_fork", lambda: recorder.devices.is_forked)
    patches.replace_code(cuda._utils, "_get_device_index", index_of)
    patches.replace_code(
        cuda, "synchronize", lambda device=None: recorder.tape.synchronize("synchronize")
    )
    patches.on_restore(lambda: recorder.devices.use(0))  # while torch still takes CUDA for there


def _install_streams(
    patches: Patches, recorder: Recorder, event_class: Any, stream_class: Any
) -> None:
    cuda = torch.cuda

    def current(device: Any = None) -> Any:
        return stream_class(stream_id=recorder.current_stream)

    def set_stream(stream: Any) -> None:
        if stream is not None:
            recorder.current_stream = stream.stream_id

    class StreamContext:
        """torch.cuda.StreamContext."""

        def __init__(self, stream: Any) -> None:
            self.stream = stream

        def __enter__(self) -> None:
            if self.stream is not None:
                self.stream.__enter__()

        def __exit__(self, *error: object) -> None:
            if self.stream is not None:
                self.stream.__exit__()

    classes = {"Event": event_class, "Stream": stream_class, "ExternalStream": stream_class}
    for name, ours in classes.items():
        _captured_before(patches, getattr(cuda, name), ours)
        for module in (cuda, cuda.streams):
            patches.set(module, name, ours)
    patches.replace_code(cuda, "current_stream", current)
    patches.replace_code(cuda, "default_stream", lambda device=None: stream_class(stream_id=0))
    patches.replace_code(cuda, "set_stream", set_stream)
    patches.replace_code(cuda, "stream", lambda stream: StreamContext(stream))
    patches.set(cuda, "StreamContext", StreamContext)


def _install_memory(patches: Patches, memory: SimulatedMemory, gpu: GPU, on_query: OnQuery) -> None:
    module = torch.cuda.memory

    def info(device: Any = None) -> tuple[int, int]:
        reserved = memory.statistics()["reserved_bytes.all.current"]
        on_query("total_memory", gpu.memory_bytes)
        return max(0, gpu.memory_bytes - gpu.context_bytes - reserved), gpu.memory_bytes

    def record_history(enabled: Any = "all", *args: Any, **kwargs: Any) -> None:
        # The legacy form takes True and False.
        wanted = enabled if isinstance(enabled, str) else ("all" if enabled else None)
        memory.record_history(wanted, kwargs.get("max_entries"))

    answers: dict[str, Callable[..., Any]] = {
        "memory_stats": lambda device=None: memory.statistics(),
        "reset_peak_memory_stats": lambda device=None: memory.reset_peak(),
        "reset_accumulated_memory_stats": lambda device=None: memory.reset_accumulated(),
        "empty_cache": memory.empty_cache,
        "mem_get_info": info,
        "set_per_process_memory_fraction": lambda fraction, device=None: memory.set_fraction(
            fraction
        ),
        "get_per_process_memory_fraction": lambda device=None: memory.fraction(),
        "memory_snapshot": lambda *args, **kwargs: memory.snapshot()["segments"],
        "_record_memory_history": record_history,
        "_snapshot": lambda *args, **kwargs: memory.snapshot(),
        "_set_allocator_settings": lambda env: memory.set_settings(env),
        "get_allocator_backend": lambda: "native",
    }
    for name, answer in answers.items():
        patches.replace_code(module, name, answer)
    patches.set(torch._C, "_accelerator_setAllocatorSettings", memory.set_settings)


#: What the legacy types of torch.cuda hold, by name.
TENSOR_TYPES = {
    f"{name}Tensor": dtype for name, dtype in DTYPES_BY_NAME.items() if not dtype.is_complex
}


def _install_tensor_types(patches: Patches) -> None:
    """torch.cuda.FloatTensor and its like, which a CPU build refuses to call."""

    def constructor(name: str, dtype: torch.dtype) -> Any:
        class Constructor(type):
            def __instancecheck__(cls, instance: object) -> bool:
                return (
                    isinstance(instance, torch.Tensor)
                    and instance.dtype is dtype
                    and instance.is_cuda
                )

        class LegacyTensor(metaclass=Constructor):
            held_dtype = dtype  # as `Tensor.type(...)` asks

            def __new__(cls, *args: Any) -> Any:
                return legacy_tensor(dtype, *args)

        LegacyTensor.__module__ = "torch.cuda"
        LegacyTensor.__name__ = LegacyTensor.__qualname__ = name
        return LegacyTensor

    for name, dtype in TENSOR_TYPES.items():
        patches.set(torch.cuda, name, constructor(name, dtype))


def legacy_tensor(dtype: torch.dtype, *args: Any) -> torch.Tensor:
    """What `torch.cuda.FloatTensor(*args)` makes on the GPU: of sizes an uninitialised tensor, of
    a tensor another view of it, else a tensor of these values
    (torch/csrc/utils/tensor_new.cpp, legacy_tensor_generic_ctor_new)."""
    if len(args) == 1 and isinstance(args[0], torch.Tensor):
        if args[0].dtype is not dtype or not args[0].is_cuda:
            raise TypeError(
                f"expected a CUDA tensor of {dtype} (got {args[0].dtype} on {args[0].device})"
            )
        return args[0].detach()
    if len(args) == 1 and not isinstance(args[0], (int, torch.Size)):
        return torch.tensor(args[0], dtype=dtype, device="cuda")
    sizes = args[0] if args and isinstance(args[0], torch.Size) else args or (0,)
    return torch.empty(sizes, dtype=dtype, device="cuda")
