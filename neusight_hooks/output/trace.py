"""A timeline as the profiler's own file: steps, ops, modules, launches, kernels, memory, arrows."""

from __future__ import annotations

import gzip
import io
import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from typing_extensions import Unpack

from neusight._version import __version__
from neusight.memory.placement import MemoryTimeline
from neusight.output.kernel_names import kernel_display_name
from neusight.predictors.errors import TraceError
from neusight.predictors.files import write_atomically
from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import (
    DTYPE_BYTES,
    CollectiveSize,
    Kernel,
    KernelClass,
    RowsSize,
)
from neusight.predictors.predictor import Estimate
from neusight.recording.recording import Argument, OpSignature, TensorSpec
from neusight.timeline.launches import is_pinned_copy
from neusight.timeline.scheduler import GRAPH_LAUNCH
from neusight.timeline.spans import HostSpan, KernelSpan, StepSpan, Timeline
from neusight.timeline.streams import COMMUNICATION_STREAM

__all__ = ["TraceOptions", "save_trace", "trace_events", "write_trace"]

Event = dict[str, object]

#: Fixed, so that equal forecasts are equal files: 2024-01-01 00:00:00 UTC.
BASE_TIME_NS = 1_704_067_200_000_000_000
#: The process shown; rank r is this plus r. Its main thread bears the same number.
PROCESS_ID = 4000
#: What runs before the first step shown, so that no time is zero.
LEAD_NS = 1_000_000
#: Steps written at most, the last ones; a real profile rarely has more.
MAX_STEPS = 12
#: torch.cuda's default stream, as profiles number it; other streams follow NCCL's.
DEFAULT_STREAM = 7
#: Sort position of GPU processes and of the profiler's own, as Kineto writes them.
GPU_SORT_INDEX, SPANS_SORT_INDEX = 5_000_000, 536_870_912
#: Intervals on one lane must nest when compared as doubles, so ends keep apart by this.
APART_NS = 1

#: CUPTI's numbers of the runtime calls (as real profiles show them).
_CALLBACK_IDS = {
    "cudaLaunchKernel": 211,
    "cudaLaunchKernelExC": 430,
    GRAPH_LAUNCH: 311,
    "cudaMemcpyAsync": 41,
    "cudaMemsetAsync": 51,
    "cudaDeviceSynchronize": 165,
    "cudaStreamSynchronize": 131,
    "cudaEventSynchronize": 137,
    "cudaEventRecord": 135,
    "cudaStreamWaitEvent": 147,
}
_CPP_TYPES = {
    "float32": "float",
    "float64": "double",
    "float16": "c10::Half",
    "bfloat16": "c10::BFloat16",
    "int64": "long int",
    "int32": "int",
    "int16": "short int",
    "int8": "signed char",
    "uint8": "unsigned char",
    "bool": "bool",
    "complex64": "c10::complex<float>",
    "complex128": "c10::complex<double>",
    "float8_e4m3fn": "c10::Float8_e4m3fn",
    "float8_e5m2": "c10::Float8_e5m2",
}
#: c10::ScalarType, as a dtype argument is shown.
_SCALAR_TYPES = {
    "uint8": 0, "int8": 1, "int16": 2, "int32": 3, "int64": 4, "float16": 5, "float32": 6,
    "float64": 7, "complex32": 8, "complex64": 9, "complex128": 10, "bool": 11, "bfloat16": 15,
    "float8_e5m2": 23, "float8_e4m3fn": 24,
}  # fmt: skip
_COLLECTIVES = {
    "all_reduce": "allreduce",
    "all_gather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "all_to_all": "all_to_allv",
    "send_recv": "send",
}
_NCCL_TYPES = {"float32": "Float", "float16": "Half", "bfloat16": "BFloat16", "float64": "Double"}
#: Registers a thread of a class, from real profiles (H100: GEMM 168, flash 255, elementwise 24).
_REGISTERS = {
    KernelClass.GEMM: 168,
    KernelClass.CONVOLUTION: 168,
    KernelClass.ATTENTION: 168,
    KernelClass.COLLECTIVE: 96,
    KernelClass.OPTIMIZER: 64,
}
_OTHER_REGISTERS = 32
_MAX_BLOCKS_PER_SM = 32
_MAX_THREADS_PER_BLOCK = 1024
_REGISTERS_PER_BLOCK = 65536
_SHARED_MEMORY_PER_BLOCK = 49152
#: Bytes of a thread's work in PyTorch's vectorized kernels: 4 elements.
_ELEMENTS_PER_THREAD = 4
#: Shared memory of a tiled kernel: `_STAGES` slices of `_SLICE` deep A and B tiles.
_STAGES, _SLICE = 4, 64
_DEFAULT_TILE = (128, 128)


class TraceOptions(TypedDict, total=False):
    """What a trace shows, and whose it is."""

    rank: int
    world_size: int
    max_steps: int
    record_shapes: bool
    profile_memory: bool
    with_modules: bool


def trace_events(
    timeline: Timeline,
    memory: MemoryTimeline | None,
    gpu: GPU,
    *,
    rank: int = 0,
    world_size: int = 1,
    max_steps: int = MAX_STEPS,
    record_shapes: bool = True,
    profile_memory: bool = True,
    with_modules: bool = True,
    notes: Mapping[str, object] | None = None,
) -> dict[str, object]:
    """The content of a trace file, in the schema of `torch.profiler`'s `export_chrome_trace`.

    Shown are the last `max_steps` replayed train or eval steps (all steps where there are
    neither); equal steps that were folded away leave a hole in the numbers of `ProfilerStep#N`.
    `notes` joins the key "neusight", which says that this is a forecast.
    """
    shown_memory = memory if profile_memory else None
    writer = _Writer(
        timeline,
        shown_memory,
        gpu,
        rank=rank,
        world_size=world_size,
        record_shapes=record_shapes,
        with_modules=with_modules,
    )
    writer.write(_shown_steps(timeline, max_steps))
    trace: dict[str, object] = {
        "schemaVersion": 1,
        "deviceProperties": [_device_properties(gpu, device) for device in range(rank + 1)],
    }
    if world_size > 1:
        trace["distributedInfo"] = _distributed_info(rank, world_size)
    trace.update(
        {
            "record_shapes": int(record_shapes),
            "profile_memory": int(shown_memory is not None),
            "with_modules": int(with_modules),
            "neusight": {
                "forecast": True,
                "version": __version__,
                "gpu": gpu.name,
                "steps": [
                    {"step": step.replay.index, "represents": step.represents}
                    for step in writer.steps
                ],
                **(notes or {}),
            },
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": BASE_TIME_NS,
            "traceEvents": writer.events,
        }
    )
    return trace


def write_trace(
    path: str | Path,
    timeline: Timeline,
    memory: MemoryTimeline | None,
    gpu: GPU,
    **options: Unpack[TraceOptions],
) -> None:
    """Writes a timeline as a trace file; `options` are those of `trace_events`.

    The file is gzipped where its name ends in .gz, and written whole or not at all: TraceError
    when it cannot be written. Equal forecasts give equal files.
    """
    save_trace(path, trace_events(timeline, memory, gpu, **options))


def save_trace(path: str | Path, trace: Mapping[str, object]) -> None:
    """Writes what `trace_events` gave, as `write_trace` does."""
    target = Path(path)
    # A reader that looks for the last "]" of the file must find that of traceEvents.
    name = target.name.replace("]", "_")
    header = {key: value for key, value in trace.items() if key != "traceEvents"}
    try:
        # HTA finds a file's rank by a pattern with a space after the colon; events need none.
        head = json.dumps(header, allow_nan=False)
        events = json.dumps(trace["traceEvents"], allow_nan=False, separators=(",", ":"))
        text = f'{head[:-1]}{", " if header else ""}"traceEvents": {events}, "traceName": '
        text += json.dumps(name) + "}\n"
    except (TypeError, ValueError) as error:
        raise TraceError(f"The trace for {target} is not plain JSON: {error}.") from error
    data = text.encode()
    if name.endswith(".gz"):
        packed = io.BytesIO()
        with gzip.GzipFile(
            filename="", mode="wb", fileobj=packed, mtime=0, compresslevel=6
        ) as file:
            file.write(data)
        data = packed.getvalue()
    try:
        write_atomically(target, data)
    except OSError as error:
        raise TraceError(
            f"Cannot write the trace to {target}: {error.strerror or error}. "
            "Choose a folder that can be written to."
        ) from error


def _shown_steps(timeline: Timeline, max_steps: int) -> list[StepSpan]:
    steady = [step for step in timeline.steps if step.replay.step.kind != "setup"]
    return (steady or list(timeline.steps))[-max_steps:]


class _Writer:
    """Turns spans into events; holds the counters that make ids unique."""

    def __init__(
        self,
        timeline: Timeline,
        memory: MemoryTimeline | None,
        gpu: GPU,
        *,
        rank: int,
        world_size: int,
        record_shapes: bool,
        with_modules: bool,
    ) -> None:
        self.events: list[Event] = []
        self.steps: list[StepSpan] = []
        self._timeline = timeline
        self._memory = memory
        self._gpu = gpu
        self._device = rank
        self._world_size = world_size
        self._process = PROCESS_ID + rank
        self._threads = {"main": self._process, "autograd": self._process + 1}
        self._record_shapes = record_shapes
        self._with_modules = with_modules
        self._base_ns = 0
        self._num_ids = 0
        self._num_indices = 0
        self._num_flows = 0
        self._num_python = 0
        self._sequence_base = 0
        self._shapes: dict[int, dict[str, object]] = {}
        self._kernel_args: dict[tuple[int, int], tuple[str, dict[str, object], Kernel]] = {}
        self._modules: dict[tuple[str, str], tuple[str, int]] = {}
        self._per_class: dict[str, int] = {}
        self._stream_end: dict[int, int] = {}
        self._written: dict[int, tuple[int, int]] = {}  # span position -> start, end as written
        self._external: dict[int, int] = {}  # span position -> external id that its launches bear
        self._python: dict[int, int] = {}  # span position -> python id

    def write(self, steps: list[StepSpan]) -> None:
        """Writes the steps, and what frames them."""
        self.steps = steps
        first_ns = steps[0].start_ns if steps else 0
        self._base_ns = first_ns - LEAD_NS
        body = self.events
        for step in steps:
            self._step(step)
        self._memory_events()
        last_ns = max((step.done_ns for step in steps), default=first_ns) + LEAD_NS
        self.events = [*self._names(self._base_ns), *body, *self._frame(self._base_ns, last_ns)]

    # -- one step

    def _step(self, step: StepSpan) -> None:
        name = f"ProfilerStep#{step.replay.index}"
        begin_ns, end_ns = step.start_ns, step.end_ns - APART_NS
        external = self._new_id()
        args: dict[str, object] = {"External id": external, "Record function id": 0}
        self._complete(
            "user_annotation", name, "main", begin_ns, end_ns, {**args, "Ev Idx": self._index()}
        )
        kernels = self._timeline.kernels[step.first_kernel : step.last_kernel]
        launched: dict[int, list[KernelSpan]] = defaultdict(list)  # by correlation
        for kernel in kernels:
            launched[kernel.correlation].append(kernel)
        forward: dict[int, tuple[int, int]] = {}  # sequence number -> position and start
        drawn: set[int] = set()
        for position in range(step.first_host, step.last_host):
            span = self._timeline.host[position]
            start, end = self._place(position, span, (begin_ns, end_ns))
            if span.kind == "op":
                self._op(position, span, start, end, launched)
                number = self._sequence(span)
                if number is not None and span.thread == "main" and number not in forward:
                    forward[number] = (position, start)
            elif span.kind == "node":
                self._node(position, span, start, end)
                number = self._sequence(span)
                inner = not span.name.startswith("autograd::engine")
                if inner and number in forward and number not in drawn:
                    drawn.add(number)
                    flow = self._new_flow()
                    self._arrow_start("fwdbwd", flow, forward[number][1], "main")
                    self._arrow_end("fwdbwd", flow, start, self._process, self._threads["autograd"])
            elif span.kind == "annotation":
                self._annotation(position, span, start, end)
            elif span.kind == "module":
                self._module(position, span, start, end)
            elif span.kind in ("launch", "event", "sync"):
                self._runtime(span, start, end, launched.get(span.correlation, ()), external)
            else:
                self._host_work(position, span, start, end)
        self._gpu_annotations(step, kernels)
        self._sequence_base += 1 + max(
            (s.call.sequence_nr or 0 for s in self._host_of(step) if s.call is not None), default=0
        )

    def _host_of(self, step: StepSpan) -> tuple[HostSpan, ...]:
        return self._timeline.host[step.first_host : step.last_host]

    def _place(self, position: int, span: HostSpan, around: tuple[int, int]) -> tuple[int, int]:
        """Where a span is written: inside its parent, its end apart from its neighbours."""
        if span.parent >= 0 and self._timeline.host[span.parent].thread == span.thread:
            around = self._written.get(span.parent, around)
        low, high = around
        end = min(span.end_ns, high) - APART_NS
        start = min(max(span.start_ns, low + APART_NS), max(end, low))
        self._written[position] = (start, max(start, end))
        return self._written[position]

    def _op(
        self,
        position: int,
        span: HostSpan,
        start: int,
        end: int,
        launched: Mapping[int, Sequence[KernelSpan]],
    ) -> None:
        external = self._external[position] = self._new_id()
        args: dict[str, object] = {"External id": external, "Record function id": 0}
        number = self._sequence(span)
        if number is not None and span.thread == "main":
            args["Sequence number"] = number
            args["Fwd thread id"] = 0
        if self._record_shapes and span.call is not None:
            args.update(self._shapes_of(span.call.signature))
        if span.call is not None and span.call.stack:
            args["Call stack"] = ";".join(span.call.stack)
        args["Ev Idx"] = self._index()
        self._complete("cpu_op", span.name, span.thread, start, end, args)
        collective = self._collective_of(position, launched)
        if collective is not None:
            self._communication(position, span, start, end, collective, args)

    def _collective_of(
        self, position: int, launched: Mapping[int, Sequence[KernelSpan]]
    ) -> Kernel | None:
        host = self._timeline.host
        if position + 1 >= len(host) or host[position + 1].parent != position:
            return None
        for span in launched.get(host[position + 1].correlation, ()):
            if span.kernel.kernel_class is KernelClass.COLLECTIVE:
                return span.kernel
        return None

    def _communication(
        self,
        position: int,
        span: HostSpan,
        start: int,
        end: int,
        kernel: Kernel,
        shapes: Mapping[str, object],
    ) -> None:
        """The annotation around NCCL's launch, whose id the kernel bears, and its parameters."""
        external = self._external[position] = self._new_id()
        elements = _elements(kernel)
        self._complete(
            "user_annotation",
            f"nccl:{kernel.name}",
            span.thread,
            start + APART_NS,
            end - APART_NS,
            {
                "External id": external,
                "Record function id": 0,
                "Input Dims": [[elements]],
                "Input type": [_CPP_TYPES.get(kernel.dtype, "float")],
                "Ev Idx": self._index(),
            },
        )
        self._complete(
            "cpu_op",
            "record_param_comms",
            span.thread,
            start + 2 * APART_NS,
            end - 2 * APART_NS,
            {
                "External id": self._new_id(),
                "Record function id": 0,
                **self._collective_args(kernel),
                "Rank": self._device,
                "Ev Idx": self._index(),
            },
        )
        self._written[position] = (start + 3 * APART_NS, end - 3 * APART_NS)

    def _collective_args(self, kernel: Kernel) -> dict[str, object]:
        world = kernel.size.world_size if isinstance(kernel.size, CollectiveSize) else 1
        elements = _elements(kernel)
        received = elements // world if kernel.name == "reduce_scatter" else elements
        sent = elements // world if kernel.name == "all_gather" else elements
        return {
            "Collective name": _COLLECTIVES.get(kernel.name, kernel.name),
            "In msg nelems": sent,
            "Out msg nelems": received,
            "Group size": world,
            "dtype": _NCCL_TYPES.get(kernel.dtype, "Float"),
            "In split size": "[]",
            "Out split size": "[]",
            "Process Group Name": "0",
            "Process Group Description": "default_pg",
            "Process Group Ranks": str(list(range(world))),
        }

    def _node(self, position: int, span: HostSpan, start: int, end: int) -> None:
        external = self._external[position] = self._new_id()
        args: dict[str, object] = {"External id": external, "Record function id": 0}
        number = self._sequence(span)
        if number is not None:
            args["Sequence number"] = number
            args["Fwd thread id"] = 1
        args["Ev Idx"] = self._index()
        self._complete("cpu_op", span.name, span.thread, start, end, args)

    def _annotation(self, position: int, span: HostSpan, start: int, end: int) -> None:
        external = self._external[position] = self._new_id()
        args = {"External id": external, "Record function id": 0, "Ev Idx": self._index()}
        self._complete("user_annotation", span.name, span.thread, start, end, args)

    def _host_work(self, position: int, span: HostSpan, start: int, end: int) -> None:
        external = self._external[position] = self._new_id()
        args = {"External id": external, "Record function id": 0, "Ev Idx": self._index()}
        self._complete("cpu_op", span.name, span.thread, start, end, args)

    def _module(self, position: int, span: HostSpan, start: int, end: int) -> None:
        if not self._with_modules:
            return
        known = self._modules.get((span.detail, span.name))
        if known is None:
            instance = self._per_class.get(span.detail, 0)
            self._per_class[span.detail] = instance + 1
            known = (f"nn.Module: {span.detail or 'Module'}_{instance}", len(self._modules))
            self._modules[(span.detail, span.name)] = known
        self._num_python += 1
        self._python[position] = self._num_python
        args: dict[str, object] = {
            "Python parent id": self._enclosing(span.parent, self._python),
            "Python id": self._num_python,
            "Python module id": known[1],
            "Ev Idx": self._index(),
        }
        self._complete("python_function", known[0], span.thread, start, end, args)

    def _enclosing(self, position: int, ids: Mapping[int, int]) -> int | None:
        while position >= 0:
            if position in ids:
                return ids[position]
            position = self._timeline.host[position].parent
        return None

    def _runtime(
        self, span: HostSpan, start: int, end: int, kernels: Sequence[KernelSpan], step: int
    ) -> None:
        """A call of the runtime, and what it launched; `step` is the id of the step around it."""
        enclosing = self._enclosing(span.parent, self._external)
        external = step if enclosing is None else enclosing
        args: dict[str, object] = {
            "External id": external,
            "cbid": _CALLBACK_IDS[span.name],
            "correlation": span.correlation,
        }
        self._complete("cuda_runtime", span.name, span.thread, start, end, args)
        if kernels:
            self._arrow_start("ac2g", span.correlation, start, span.thread)
        for kernel in kernels:
            self._kernel(kernel, external)

    # -- the GPU

    def _kernel(self, span: KernelSpan, external: int) -> None:
        stream = _stream_number(span.stream)
        start = max(span.start_ns, self._stream_end.get(stream, -APART_NS) + APART_NS)
        end = max(start + APART_NS, span.end_ns)
        self._stream_end[stream] = end
        name, fixed, _ = self._fixed_args(span)
        args: dict[str, object] = {
            "External id": external,
            "queued": 0,
            "device": self._device,
            "context": 1,
            "stream": stream,
            "correlation": span.correlation,
            **fixed,
        }
        category = "kernel"
        if name.startswith("Mem"):
            category = "gpu_memset" if name.startswith("Memset") else "gpu_memcpy"
            if is_pinned_copy(span.call.signature):
                name = name.replace("Pageable", "Pinned")
            del args["queued"]
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": self._device,
                "tid": stream,
                "ts": self._us(start),
                "dur": (end - start) / 1000,
                "args": args,
            }
        )
        self._arrow_end("ac2g", span.correlation, start, self._device, stream)

    def _fixed_args(self, span: KernelSpan) -> tuple[str, dict[str, object], Kernel]:
        """What is the same for every launch of a kernel; the kernel keeps the key alive."""
        key = (id(span.kernel), id(span.estimate))
        known = self._kernel_args.get(key)
        if known is None:
            name = kernel_display_name(span.kernel, span.estimate, self._gpu)
            if name.startswith("Mem"):
                num_bytes = max(span.kernel.bytes_read, span.kernel.bytes_written)
                args: dict[str, object] = {
                    "bytes": num_bytes,
                    "memory bandwidth (GB/s)": num_bytes / span.duration_ns,
                }
            else:
                args = _launch_args(span.kernel, span.estimate, self._gpu)
                if span.kernel.kernel_class is KernelClass.COLLECTIVE:
                    args.update(self._collective_args(span.kernel))
            args.update(_forecast_args(span.kernel, span.estimate))
            known = self._kernel_args[key] = (name, args, span.kernel)
        return known

    def _gpu_annotations(self, step: StepSpan, kernels: tuple[KernelSpan, ...]) -> None:
        """Each annotation over the kernels launched in it, a stream a range; none for the step."""
        ranges: dict[tuple[int, int], list[int]] = {}
        for kernel in kernels:
            position = kernel.op
            while position >= 0:
                if self._timeline.host[position].kind == "annotation":
                    key = (position, _stream_number(kernel.stream))
                    found = ranges.setdefault(key, [kernel.start_ns, kernel.end_ns])
                    found[1] = kernel.end_ns
                position = self._timeline.host[position].parent
        for (position, stream), (start, end) in ranges.items():
            # Inner annotations keep inside outer ones: the deeper, the closer to the kernels.
            reach = max(1, _MAX_ANNOTATION_DEPTH - self._depth(position)) * APART_NS
            self.events.append(
                {
                    "ph": "X",
                    "cat": "gpu_user_annotation",
                    "name": self._timeline.host[position].name,
                    "pid": self._device,
                    "tid": stream,
                    "ts": self._us(start - reach),
                    "dur": (end - start + 2 * reach) / 1000,
                    "args": {"External id": self._external[position]},
                }
            )

    def _depth(self, position: int) -> int:
        depth = 0
        while position >= 0:
            span = self._timeline.host[position]
            depth += span.kind == "annotation"
            position = span.parent
        return depth

    # -- memory

    def _memory_events(self) -> None:
        if self._memory is None or not self.steps:
            return
        shown = {step.replay.index for step in self.steps}
        tops = [
            (start, end, self._timeline.host[position].thread)
            for position, (start, end) in sorted(self._written.items())
            if self._timeline.host[position].kind == "op"
        ]
        starts = [start for start, _, _ in tops]
        for event in self._memory.events:
            if event.step not in shown:
                continue
            time_ns = self._timeline.memory_ns[event.mark]
            before = bisect_right(starts, time_ns) - 1
            inside = before >= 0 and time_ns <= tops[before][1]
            thread = self._threads[tops[before][2] if inside else "main"]
            self.events.append(
                {
                    "ph": "i",
                    "cat": "cpu_instant_event",
                    "s": "t",
                    "name": "[memory]",
                    "pid": self._process,
                    "tid": thread,
                    "ts": self._us(time_ns),
                    "args": {
                        "Total Reserved": event.reserved,
                        "Total Allocated": event.allocated,
                        "Bytes": event.num_bytes,
                        "Addr": event.address,
                        "Device Id": self._device,
                        "Device Type": 1,
                        "Ev Idx": self._index(),
                    },
                }
            )

    # -- the frame

    def _names(self, first_ns: int) -> list[Event]:
        process, gpu = self._process, self._device
        threads = self._threads
        streams = sorted(self._stream_end) or [DEFAULT_STREAM]
        named: list[tuple[str, object, object, str, object]] = [
            ("process_name", process, 0, "name", "python"),
            ("process_labels", process, 0, "labels", "CPU"),
            ("process_sort_index", process, 0, "sort_index", process),
            ("process_name", gpu, 0, "name", "python"),
            ("process_labels", gpu, 0, "labels", f"GPU {gpu}"),
            ("process_sort_index", gpu, 0, "sort_index", GPU_SORT_INDEX + gpu),
        ]
        for stream in streams:
            named.append(("thread_name", gpu, stream, "name", f"stream {stream} "))
            named.append(("thread_sort_index", gpu, stream, "sort_index", stream))
        for thread, label in ((threads["main"], "python"), (threads["autograd"], "pt_autograd_0")):
            named.append(("thread_name", process, thread, "name", f"thread {thread} ({label})"))
            named.append(("thread_sort_index", process, thread, "sort_index", thread))
        return [
            {
                "name": name,
                "ph": "M",
                "ts": self._us(first_ns),
                "pid": pid,
                "tid": tid,
                "args": {key: value},
            }
            for name, pid, tid, key, value in named
        ]

    def _frame(self, first_ns: int, last_ns: int) -> list[Event]:
        first, last = self._us(first_ns), self._us(last_ns)
        return [
            {
                "ph": "X",
                "cat": "Trace",
                "ts": first,
                "dur": (last_ns - first_ns) / 1000,
                "pid": "Spans",
                "tid": "PyTorch Profiler",
                "name": "PyTorch Profiler (0)",
                "args": {"Op count": 0},
            },
            {
                "name": "process_sort_index",
                "ph": "M",
                "ts": first,
                "pid": "Spans",
                "tid": 0,
                "args": {"sort_index": SPANS_SORT_INDEX},
            },
            {
                "name": "Iteration Start: PyTorch Profiler",
                "ph": "i",
                "s": "g",
                "pid": "Traces",
                "tid": "Trace PyTorch Profiler",
                "ts": first,
            },
            {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": last},
        ]

    # -- pieces

    def _complete(
        self,
        category: str,
        name: str,
        thread: str,
        start: int,
        end: int,
        args: Mapping[str, object],
    ) -> None:
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": self._process,
                "tid": self._threads[thread],
                "ts": self._us(start),
                "dur": max(0, end - start) / 1000,
                "args": args,
            }
        )

    def _arrow_start(self, kind: str, flow: int, time_ns: int, thread: str) -> None:
        """Leaves a launch for its kernels, or a forward op for its backward node."""
        self.events.append(
            {
                "ph": "s",
                "id": flow,
                "pid": self._process,
                "tid": self._threads[thread],
                "ts": self._us(time_ns),
                "cat": kind,
                "name": kind,
            }
        )

    def _arrow_end(self, kind: str, flow: int, time_ns: int, process: int, lane: int) -> None:
        """Arrives where `time_ns` begins something on a thread or stream."""
        self.events.append(
            {
                "ph": "f",
                "id": flow,
                "pid": process,
                "tid": lane,
                "ts": self._us(time_ns),
                "cat": kind,
                "name": kind,
                "bp": "e",
            }
        )

    def _sequence(self, span: HostSpan) -> int | None:
        if span.call is None or span.call.sequence_nr is None:
            return None
        return self._sequence_base + span.call.sequence_nr

    def _shapes_of(self, signature: OpSignature) -> dict[str, object]:
        known = self._shapes.get(id(signature))
        if known is None:
            known = self._shapes[id(signature)] = _shape_args(signature)
        return known

    def _us(self, time_ns: int) -> float:
        return (time_ns - self._base_ns) / 1000

    def _new_id(self) -> int:
        self._num_ids += 1
        return self._num_ids

    def _new_flow(self) -> int:
        self._num_flows += 1
        return self._num_flows

    def _index(self) -> int:
        self._num_indices += 1
        return self._num_indices - 1


#: Annotations nest at most this deep before their ranges on the GPU lane coincide.
_MAX_ANNOTATION_DEPTH = 64


def _stream_number(stream: int) -> int:
    if stream == 0:
        return DEFAULT_STREAM
    return stream if stream == COMMUNICATION_STREAM else COMMUNICATION_STREAM + stream


def _elements(kernel: Kernel) -> int:
    num_bytes = kernel.size.num_bytes if isinstance(kernel.size, CollectiveSize) else 0
    return int(num_bytes / DTYPE_BYTES.get(kernel.dtype, 4))


def _launch_args(kernel: Kernel, estimate: Estimate, gpu: GPU) -> dict[str, object]:
    """Grid, block and occupancy, as the profiler derives them."""
    threads = max(1, min(estimate.threads_per_cta, _MAX_THREADS_PER_BLOCK))
    blocks = _num_blocks(kernel, estimate, threads)
    registers = _REGISTERS.get(kernel.kernel_class, _OTHER_REGISTERS)
    registers = min(registers, _REGISTERS_PER_BLOCK // threads)
    shared = _shared_memory(kernel, estimate, gpu)
    warps_per_block = -(-threads // gpu.warp_size)
    max_warps = gpu.max_threads_per_sm // gpu.warp_size
    resident = min(
        _MAX_BLOCKS_PER_SM,
        gpu.max_threads_per_sm // threads,
        gpu.registers_per_sm // (registers * threads),
        gpu.shared_memory_per_sm_bytes // shared if shared else _MAX_BLOCKS_PER_SM,
    )
    warps_per_sm = blocks * warps_per_block / gpu.num_sms
    occupancy = min(warps_per_sm, max(1, resident) * warps_per_block) / max_warps
    return {
        "registers per thread": registers,
        "shared memory": shared,
        "blocks per SM": round(blocks / gpu.num_sms, 6),
        "warps per SM": round(warps_per_sm, 6),
        "grid": [blocks, 1, 1],
        "block": [threads, 1, 1],
        "est. achieved occupancy %": round(100 * min(1.0, occupancy)),
    }


def _num_blocks(kernel: Kernel, estimate: Estimate, threads: int) -> int:
    if estimate.num_ctas > 1 or not isinstance(kernel.size, RowsSize):
        return max(1, estimate.num_ctas)
    if kernel.size.rows > 1:
        return kernel.size.rows
    return max(1, -(-kernel.size.width // (threads * _ELEMENTS_PER_THREAD)))


def _shared_memory(kernel: Kernel, estimate: Estimate, gpu: GPU) -> int:
    if kernel.kernel_class not in (
        KernelClass.GEMM,
        KernelClass.CONVOLUTION,
        KernelClass.ATTENTION,
    ):
        return 0
    tile_m, tile_n = estimate.tile or _DEFAULT_TILE
    wanted = int(_STAGES * _SLICE * (tile_m + tile_n) * DTYPE_BYTES.get(kernel.dtype, 4))
    return min(wanted, gpu.shared_memory_per_block_optin_bytes)


def _forecast_args(kernel: Kernel, estimate: Estimate) -> dict[str, object]:
    """What only a forecast knows; readers of profiles ignore it."""
    args: dict[str, object] = {
        "forecast by": estimate.predictor,
        "forecast origin": estimate.origin,
        "forecast low us": round(estimate.low_us, 3),
        "forecast high us": round(estimate.high_us, 3),
        "in trained range": estimate.in_range,
        "bound by": estimate.bound,
        "kernel class": kernel.kernel_class.value,
        "waves": round(estimate.num_waves, 3),
        "FLOPs": kernel.flops,
        "bytes moved": kernel.num_bytes,
    }
    if estimate.tile is not None:
        args["tile"] = list(estimate.tile)
        args["split k"] = estimate.split_k
    return args


def _shape_args(signature: OpSignature) -> dict[str, object]:
    """The inputs of an op as record_shapes shows them."""
    dims: list[object] = []
    types: list[str] = []
    strides: list[object] = []
    values: list[str] = []
    for _, argument in signature.arguments:
        dim, kind, stride, value = _shown(argument)
        dims.append(dim)
        types.append(kind)
        strides.append(stride)
        values.append(value)
    return {
        "Concrete Inputs": values,
        "Input type": types,
        "Input Strides": strides,
        "Input Dims": dims,
    }


def _shown(argument: Argument) -> tuple[object, str, object, str]:
    """Dims, type, strides and value of one argument."""
    if isinstance(argument, TensorSpec):
        kind = _CPP_TYPES.get(argument.dtype, argument.dtype)
        return list(argument.shape), kind, list(argument.stride), ""
    if isinstance(argument, tuple):
        tensors = [item for item in argument if isinstance(item, TensorSpec)]
        if tensors:
            shapes = [list(item.shape) for item in tensors]
            return shapes, "TensorList", [list(item.stride) for item in tensors], ""
        return [], "ScalarList", [], f"[{', '.join(_concrete(item) for item in argument)}]"
    if argument is None:
        return [], "", [], ""
    return [], "Scalar", [], _concrete(argument)


def _concrete(value: Argument) -> str:
    if isinstance(value, bool) or not isinstance(value, (float, str)):
        return str(value)
    if isinstance(value, str):
        return str(_SCALAR_TYPES.get(value, value))
    text = f"{value:.17g}"  # as C++ prints a double: 0.1 is 0.10000000000000001, 1.0 is "1."
    return text if any(mark in text for mark in ".einf") else text + "."


def _device_properties(gpu: GPU, device: int) -> dict[str, object]:
    return {
        "id": device,
        "name": gpu.driver_name,
        "totalGlobalMem": gpu.memory_bytes,
        "computeMajor": gpu.compute_capability[0],
        "computeMinor": gpu.compute_capability[1],
        "maxThreadsPerBlock": _MAX_THREADS_PER_BLOCK,
        "maxThreadsPerMultiprocessor": gpu.max_threads_per_sm,
        "regsPerBlock": _REGISTERS_PER_BLOCK,
        "warpSize": gpu.warp_size,
        "sharedMemPerBlock": _SHARED_MEMORY_PER_BLOCK,
        "numSms": gpu.num_sms,
        "regsPerMultiprocessor": gpu.registers_per_sm,
        "sharedMemPerBlockOptin": gpu.shared_memory_per_block_optin_bytes,
        "sharedMemPerMultiprocessor": gpu.shared_memory_per_sm_bytes,
    }


def _distributed_info(rank: int, world_size: int) -> dict[str, object]:
    return {
        "backend": "nccl",
        "rank": rank,
        "world_size": world_size,
        "pg_count": 1,
        "pg_config": [
            {
                "pg_name": "0",
                "pg_desc": "default_pg",
                "backend_config": "cuda:nccl",
                "pg_size": world_size,
                "ranks": list(range(world_size)),
            }
        ],
        "nccl_version": "2.27.5",
    }
