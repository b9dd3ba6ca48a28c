"""The GPU's lanes of a trace: kernels and copies on their streams, annotations above them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from neusight.output.names.kernel import kernel_display_name, launched_name
from neusight.output.trace.arguments import forecast_arguments, launch_arguments
from neusight.output.trace.collectives import Collectives, is_collective
from neusight.output.trace.events import APART_NS, LAUNCH_ARROW, EventLog, joined, members
from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import COPY_ENGINE_KERNELS, Kernel
from neusight.timeline.spans import KernelSpan, Timeline

#: torch.cuda's default stream, as profiles number it, and what they add to others' numbers.
DEFAULT_STREAM = 7
_OTHER_STREAMS = 20
#: What a stream runs, where it is not a collective of a process group.
_COPIES, _OWN = "copies", ""
#: Annotations nest at most this deep before their ranges on the GPU lane coincide.
_MAX_ANNOTATION_DEPTH = 64


class DeviceLanes:
    """Writes what runs on the GPU."""

    def __init__(
        self, log: EventLog, timeline: Timeline, gpu: GPU, collectives: Collectives
    ) -> None:
        self._log = log
        self._timeline = timeline
        self._collectives = collectives
        self._gpu = gpu
        self.is_rocm = gpu.vendor == "amd"
        self._stream_end: dict[int, int] = {}
        self._runs: dict[int, set[str]] = {}
        self._known: dict[tuple[int, int], tuple[str, str, Kernel]] = {}

    @property
    def streams(self) -> dict[int, str]:
        """The streams written so far, as profiles number them, and what each is called."""
        numbers = sorted(self._stream_end) or [DEFAULT_STREAM]
        return {number: self._stream_name(number) for number in numbers}

    def _stream_name(self, number: int) -> str:
        """By its number, and by what runs there if that is all of one kind."""
        runs = self._runs.get(number, set())
        if number == DEFAULT_STREAM:
            return f"stream {number} (default)"
        if runs == {_COPIES}:
            return f"stream {number} (copies)"
        if not runs or runs & {_COPIES, _OWN}:
            return f"stream {number}"
        library = "RCCL" if self.is_rocm else "NCCL"
        return f"stream {number} ({library}, group {', '.join(sorted(runs))})"

    def starts_of(self, kernels: Sequence[KernelSpan], begin_ns: int) -> dict[int, int]:
        """By stream, how long after its step began the first of these kernels starts as written."""
        first: dict[int, int] = {}
        for span in kernels:
            stream = _stream_number(span.stream)
            if stream not in first:
                first[stream] = self._start_of(span, stream) - begin_ns
        return first

    def ends_of(self, streams: Iterable[int], begin_ns: int) -> dict[int, int]:
        """By stream, how long after its step began the last of what was written ends."""
        return {stream: self._stream_end[stream] - begin_ns for stream in streams}

    def repeated(self, ends: Mapping[int, int], begin_ns: int) -> None:
        """A step that begins then was written as one whose streams end so long after it began."""
        self._stream_end.update({stream: begin_ns + end for stream, end in ends.items()})

    def _start_of(self, span: KernelSpan, stream: int) -> int:
        return max(span.start_ns, self._stream_end.get(stream, -APART_NS) + APART_NS)

    def kernel(self, span: KernelSpan, external: int) -> None:
        """A kernel or a copy, and the end of the arrow from its launch."""
        log, stream = self._log, _stream_number(span.stream)
        start = self._start_of(span, stream)
        end = max(start + APART_NS, span.end_ns)
        self._stream_end[stream] = end
        name, fixed, _ = self._fixed_arguments(span)
        category, queued = "kernel", '"queued":0,'
        if span.kernel.name in COPY_ENGINE_KERNELS:
            category = "gpu_memset" if span.kernel.name == "memset" else "gpu_memcpy"
            name, queued = launched_name(name, span), ""
        runs = _OWN if category == "kernel" else _COPIES
        if is_collective(span.kernel):
            runs = self._collectives.messages(span)[0].group.name
            waited = {"waited for ranks us": span.waited_ns / 1000}
            fixed = joined(fixed, members({**self._collectives.arguments(span), **waited}))
        self._runs.setdefault(stream, set()).add(runs)
        args = f'{queued}"device":{log.device},"context":1,"stream":{stream},'
        log.kernel(
            category, name, stream, start, end, external, args, span.correlation, f",{fixed}"
        )
        log.arrow_end(LAUNCH_ARROW, span.correlation, start, log.device, stream)

    def annotations(self, kernels: Sequence[KernelSpan], external: Mapping[int, int]) -> None:
        """Each annotation over the kernels launched in it, a stream a range; none for the step.

        `external` gives the external id of each annotation's span.
        """
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
            name = self._timeline.host[position].name
            self._log.range_on_stream(
                "gpu_user_annotation", name, stream, start - reach, end + reach, external[position]
            )

    def _fixed_arguments(self, span: KernelSpan) -> tuple[str, str, Kernel]:
        """What is the same for every launch of a kernel; the kernel keeps the key alive."""
        key = (id(span.kernel), id(span.estimate))
        known = self._known.get(key)
        if known is None:
            name = kernel_display_name(span.kernel, span.estimate, self._gpu)
            if span.kernel.name in COPY_ENGINE_KERNELS:
                num_bytes = max(span.kernel.bytes_read, span.kernel.bytes_written)
                args: dict[str, object] = {
                    "bytes": num_bytes,
                    "memory bandwidth (GB/s)": num_bytes / span.duration_ns,
                }
            else:
                args = launch_arguments(span.kernel, span.estimate, self._gpu)
            args.update(forecast_arguments(span.kernel, span.estimate))
            known = self._known[key] = (name, members(args), span.kernel)
        return known

    def _depth(self, position: int) -> int:
        depth = 0
        while position >= 0:
            span = self._timeline.host[position]
            depth += span.kind == "annotation"
            position = span.parent
        return depth


def _stream_number(stream: int) -> int:
    if stream == 0:
        return DEFAULT_STREAM
    return _OTHER_STREAMS + stream
