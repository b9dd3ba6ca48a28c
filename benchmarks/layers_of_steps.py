"""Convolutions of measured steps, as measurements of kernels: a table beside each measured folder.

    python benchmarks/layers_of_steps.py benchmarks/measured/h100

writes `layers/` in that folder, which `neusight fit` and `evaluate` read: of each profile in
`workloads/` every convolution that ran, forward and both gradients, by the shapes that its operator
was called with. A backward operator runs the gradient of the image first and that of the filter
then; where one ends is told by the names of the kernels. The L2 is as the step left it ("hot").
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from neusight.integrations.profiles.measurements import (
    RecordedCall,
    call_of,
    events_by_op,
    kernels_of_calls,
    outermost_ops,
)
from neusight.integrations.profiles.reading.reading import read_profile
from neusight.predictors.gpu import GPU, find_gpu
from neusight.predictors.kernel import ConvolutionSize, Kernel
from neusight.predictors.measuring.folder import (
    Sample,
    append_sample,
    compact,
    read_environment,
    short_dtype,
    write_environment,
)

#: Kernels that stand around a convolution's own.
_AROUND = re.compile(
    "nchwToNhwc|nhwcToNchw|convertTensor|tensorTransform|AddPadding|[Ff]olded|Memset"
    "|scalePackedTensor|init_device_workspace|helper_stage|reduce_wgrad|computeOffsets"
    "|splitKreduce|genericTranspose"
)
#: Of these the ones that neusight describes as kernels of their own around one in 16 bits.
_TRANSFORMS = re.compile(
    "nchwToNhwc|nhwcToNchw|tensorTransform|AddPadding|[Ff]olded|genericTranspose"
)
#: What of them belongs to the convolution before.
_BEHIND = re.compile("nhwcToNchw|foldedNhwcToNhwc|splitKreduce")
#: The bias and its gradient, which are torch's kernels.
_OF_TORCH = "at::native"
_DIRECTIONS = {"forward": "forward", "data_gradient": "data", "weight_gradient": "weight"}


class Event(NamedTuple):
    """A kernel that ran, by name."""

    name: str
    duration_us: float


def layers_of(folder: Path, gpu: GPU) -> Iterator[Sample]:
    """A sample for each convolution of each step, equal ones together: the median of its runs."""
    runs: dict[tuple[str, Kernel], list[Sequence[Event]]] = defaultdict(list)
    for path in sorted((folder / "workloads").glob("*.pt.trace.json.gz")):
        for kernel, events in _convolutions(path, gpu):
            runs[_probe(kernel), kernel].append(events)
    for (probe, kernel), found in sorted(runs.items(), key=lambda item: item[0][0]):
        times = [sum(event.duration_us for event in events) for events in found]
        typical = found[times.index(sorted(times)[len(times) // 2])]
        yield Sample(
            op="convolution",
            probe=probe,
            kernels=(kernel,),
            kernel_us=round(median(times), 3),
            event_us=None,
            num_runs=len(found),
            num_launches=len(typical),
            kernel_name=" + ".join(event.name[:120] for event in typical),
        )


def _convolutions(path: Path, gpu: GPU) -> Iterator[tuple[Kernel, Sequence[Event]]]:
    """Each run of each convolution of a profile, with its kernels."""
    profile = read_profile(path, keep_arguments=True)
    calls: dict[RecordedCall, list[list[Event]]] = defaultdict(list)
    for position, events in events_by_op(profile, outermost_ops(profile)).items():
        call = call_of(profile, position, events) if position >= 0 else None
        if call is not None and "convolution" in call.name:
            found = [Event(event.name, event.duration_ns / 1e3) for event in events]
            calls[call].append([event for event in found if _OF_TORCH not in event.name])
    left_out: Counter[str] = Counter()
    for kernels, runs in zip(kernels_of_calls(list(calls), gpu), calls.values(), strict=True):
        if isinstance(kernels, str):
            left_out[kernels] += 1
            continue
        convolutions = [item for item in kernels if isinstance(item.size, ConvolutionSize)]
        for events in runs:
            parts = _parts(convolutions, events)
            if parts is None:
                left_out["it is not clear where one gradient ends"] += 1
                continue
            for kernel, part in parts:
                yield kernel, _own(kernel, part, has_transforms=len(kernels) > len(convolutions))
    for reason, number in left_out.items():
        print(f"{path.name}: {number} left out: {reason}")


def _parts(
    convolutions: Sequence[Kernel], events: Sequence[Event]
) -> list[tuple[Kernel, Sequence[Event]]] | None:
    """What belongs to each convolution of an operator; None where that is not clear."""
    if len(convolutions) == 1:
        return [(convolutions[0], events)] if events else None
    directions = [_size_of(item).direction for item in convolutions]
    begin = _begin_of_weight_gradient(events)
    if directions != ["data_gradient", "weight_gradient"] or begin is None:
        return None
    return list(zip(convolutions, (events[:begin], events[begin:]), strict=True))


def _begin_of_weight_gradient(events: Sequence[Event]) -> int | None:
    own = [place for place, event in enumerate(events) if not _AROUND.search(event.name)]
    weight = [place for place in own if "wgrad" in events[place].name]
    data = [place for place in own if "dgrad" in events[place].name]
    if weight and (not data or min(weight) > max(data)):
        first = min(weight)
    else:
        later = [place for place in own if place > max(data)] if data else own[1:]
        if not later or (not data and len(own) != 2):
            return None
        first = later[0]
    before = [place for place in own if place < first]
    if not before:
        return None
    begin = before[-1] + 1
    while begin < first and _BEHIND.search(events[begin].name):
        begin += 1
    return begin


def _own(kernel: Kernel, events: Sequence[Event], *, has_transforms: bool) -> Sequence[Event]:
    """Without the transforms that are described as kernels of their own."""
    if kernel.compute == "tf32" or not has_transforms:
        return events
    return [event for event in events if not _TRANSFORMS.search(event.name)]


def _size_of(kernel: Kernel) -> ConvolutionSize:
    assert isinstance(kernel.size, ConvolutionSize)
    return kernel.size


def _probe(kernel: Kernel) -> str:
    """All that distinguishes it, a word each, as in the probes of `neusight measure`."""
    size = _size_of(kernel)
    words: dict[str, object] = {
        "dtype": short_dtype(kernel),
        "direction": _DIRECTIONS[size.direction],
        "memory_format": kernel.layout,
        "variant": kernel.variant or "heuristic",
        "batch": size.batch,
        "inputs": size.in_channels,
        "outputs": size.out_channels,
        "groups": size.groups,
    }
    for name in ("input", "output", "kernel", "stride"):
        words |= {f"{name}_{axis}": edge for axis, edge in enumerate(getattr(size, name))}
    return "convolution " + " ".join(f"{name}={value}" for name, value in words.items())


def main(folders: Sequence[str]) -> int:
    for name in folders:
        folder = Path(name)
        environment = read_environment(folder)
        place = folder / "layers"
        place.mkdir(exist_ok=True)
        write_environment(place, environment)
        for sample in layers_of(folder, find_gpu(environment.gpu)):
            if sample.kernel_us:
                append_sample(place, sample)
        print(f"{place}: {compact(place)} convolutions")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
