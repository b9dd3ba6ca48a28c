"""What each measured kernel takes on another GPU, and how sure that is.

A kernel takes what is forecast there, times a share of what it deviated from the forecast here:
`forecast_there * (measured / forecast_here) ** kept`. Between GPUs of one compute capability nearly
all of a deviation is the program's and stays; between others most of it is that GPU's own, and the
plain ratio of prices is further off than no profile at all. Over the measured programs of
programs.csv and their pairs of GPUs, median errors of the half that nothing was chosen on
(`python benchmarks/carried_programs.py`): one capability 11.7 % by forecast, 6.4 by
the ratio, 5.8 as here; others 10.2, 12.6 and 9.3.

One that keeps its implementation is carried by Habitat's wave scaling too: where the two disagree,
the interval holds both. Our figure is nearer over shapes of data/paper_fp32 that were measured on
V100 and on A100, P100, P4 and T4, which our prices were fitted on
(benchmarks/results/carrying.csv). With Habitat as predictor, wave scaling gives the figure, as that
system has it.

Between vendors a kernel takes what is forecast, as libraries and compilers are others: 128
operators measured on H100 and on MI300X are carried by the ratio with a median error of 25 % either
way, and forecast with 13 and 16 (benchmarks/vendors.py).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from neusight.integrations.profiles.aliases import class_of_name
from neusight.integrations.profiles.measurements import (
    RecordedCall,
    call_of,
    ops_of_calls,
    outermost_ops,
)
from neusight.integrations.profiles.reading.profile import DeviceEvent, Profile
from neusight.ops import map_op
from neusight.predictors.errors import UnsupportedKernelError
from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.predictors.physics.physical_time import whole_nanoseconds
from neusight.predictors.predictor import Estimate, Predictor
from neusight.predictors.published.habitat import Habitat
from neusight.predictors.published.wave_scaling import LaunchSize, wave_scaled_us
from neusight.recording.recording import MathMode, OpCall, OpSignature

#: How a kernel was carried: by prices and waves together, by waves first (as Habitat), by prices,
#: by our price on the target alone (of another vendor), by bytes over the bandwidth where it is not
#: known what it computes, by the link that carries it, or not at all (the same GPU).
Way = Literal["prices and waves", "waves", "prices", "forecast", "bandwidth", "link", "measured"]

_NS_PER_US = 1000

#: Names of kernels that cuBLAS, cuDNN, CUTLASS and the attention libraries choose by architecture.
_CHOSEN_AGAIN = re.compile(
    r"cutlass|cublas|cudnn|nvjet|gemm|gemv|xmma|winograd|convolve|flash|fmha|cijk|miopen|mma_"
    r"|igemm_|_zn2ck|attn_fwd|^bwd_(kernel|preprocess)|batched_transpose_\d"
    r"|^(maxwell|volta|turing|ampere|sm\d\d)",
    re.IGNORECASE,
)

#: Share of log(measured / forecast) that stays, between GPUs of one compute capability and between
#: others. Chosen on the programs of programs.csv whose name hashes even, where 7/8 to 1 and 1/8 are
#: best, and on products and convolutions of data/paper_fp32, where 1/2 is.
KEPT_BY_RELATED = 0.9
KEPT_BY_OTHERS = 0.25

#: Half widths of the 80 % interval, as shares: the 80 % quantiles of the errors of those programs
#: (even names, none held up by the host), by the class that takes the most time.
_RELATED_SPREAD = 0.14
_PRICES_SPREAD = {
    KernelClass.GEMM: 0.25,
    KernelClass.CONVOLUTION: 0.26,
    KernelClass.ELEMENTWISE: 0.19,
    KernelClass.NORMALIZATION: 0.18,
    KernelClass.REDUCTION: 0.35,
}
#: The same of classes that the programs do not state of, and of bytes over the bandwidth: priors.
_OTHER_SPREAD = 0.25
_BANDWIDTH_SPREAD = 0.5
#: The same between vendors: the 80 % quantile of those 128 operators is 0.27 and 0.33.
_ACROSS_VENDORS_SPREAD = 0.35


class CarriedKernel(NamedTuple):
    """A measured kernel on the target: what it is, its op (`position` in `Profile.ops`, -1 where
    the profile names none), how long it takes, and by which way."""

    event: DeviceEvent
    position: int
    kernel: Kernel
    call: OpCall
    estimate: Estimate
    way: Way


@dataclass(frozen=True)
class _Described:
    """An op as we describe it: its kernels on both GPUs, with our prices."""

    call: OpCall
    there: tuple[tuple[Kernel, Estimate], ...]
    here: tuple[tuple[Kernel, Estimate], ...]

    @property
    def here_us(self) -> float:
        """What its kernels take on the target."""
        return sum(estimate.latency_us for _, estimate in self.here)

    def scale(self, events: Sequence[DeviceEvent], index: int, *, kept: float) -> float:
        """What the `index`-th event of the op is multiplied by, where `kept` of the deviation from
        the forecast stays. Kernel by kernel where as many were described on both, else as one.
        """
        measured_us = sum(event.duration_ns for event in events) / _NS_PER_US
        before, after = sum(estimate.latency_us for _, estimate in self.there), self.here_us
        if len(events) == len(self.there) == len(self.here):
            measured_us = events[index].duration_ns / _NS_PER_US
            before, after = (side[index][1].latency_us for side in (self.there, self.here))
        deviation = measured_us / before
        return after / before * (deviation ** (kept - 1.0) if deviation else 1.0)

    def kernels_of(self, events: Sequence[DeviceEvent]) -> list[Kernel]:
        """What each event of the op computes: the described kernels in order, where there are as
        many; else the next one of its class. What only helps that one has its size, without FLOPs.
        """
        if len(events) == len(self.there):
            return [kernel for kernel, _ in self.there]
        left = [kernel for kernel, _ in self.there]
        found = []
        for event in events:
            kind = class_of_name(event.name)
            kernel = next((kernel for kernel in left if kernel.kernel_class is kind), None)
            if kernel is not None:
                left.remove(kernel)
                found.append(kernel)
            else:
                found.append(replace(self._main(kind), flops=0, name=event.name))
        return found

    def _main(self, kind: KernelClass) -> Kernel:
        kernels = [kernel for kernel, _ in self.there]
        return next((kernel for kernel in kernels if kernel.kernel_class is kind), kernels[0])


def keeps_implementation(name: str) -> bool:
    """Whether other GPUs run a kernel of that name as it is.

    >>> keeps_implementation("void at::native::vectorized_elementwise_kernel<4, ...>")
    True
    >>> keeps_implementation("volta_sgemm_128x64_nt")
    False
    """
    return _CHOSEN_AGAIN.search(name) is None


def carried_kernels(
    profile: Profile, *, source: GPU, target: GPU, predictor: Predictor
) -> list[CarriedKernel]:
    """Each kernel, copy and memset of the profile on the target, in the profile's order.

    The profile must have been read with `keep_arguments=True`.
    """
    owners = outermost_ops(profile)
    by_op: dict[int, list[DeviceEvent]] = defaultdict(list)
    for event in profile.events:
        by_op[_owner(event, owners)].append(event)
    calls = {
        position: call_of(profile, position, events)
        for position, events in by_op.items()
        if position >= 0
    }
    described = _described(
        list(dict.fromkeys(call for call in calls.values() if call is not None)),
        source=source,
        target=target,
        predictor=predictor,
    )
    carrying = _Carrying(source, target, is_by_waves=isinstance(predictor, Habitat))
    places = dict.fromkeys(by_op, 0)
    found = []
    for event in profile.events:
        position = _owner(event, owners)
        index, places[position] = places[position], places[position] + 1
        call = calls.get(position)
        known = None if call is None else described.get(call)
        if known is None:
            op = profile.op_of(event)
            name = event.name if op is None else op.name
            found.append(carrying.nameless(event, position, name))
        else:
            found.append(carrying.kernel(event, position, known, by_op[position], index))
    return found


def _owner(event: DeviceEvent, owners: Sequence[int]) -> int:
    return owners[event.op] if event.op >= 0 else -1


def _described(
    calls: Sequence[RecordedCall], *, source: GPU, target: GPU, predictor: Predictor
) -> Mapping[RecordedCall, _Described]:
    """What we know of each call, on both GPUs; calls that cannot be made again are left out."""
    both = [
        (call, there, here)
        for call, there, here in zip(
            calls, ops_of_calls(calls, source), ops_of_calls(calls, target), strict=True
        )
        if not isinstance(there, str) and not isinstance(here, str) and there and here
    ]
    kernels_there = [_kernels_of(there) for _, there, _ in both]
    kernels_here = [_kernels_of(here) for _, _, here in both]
    prices_there = _prices(kernels_there, source, predictor)
    prices_here = _prices(kernels_here, target, predictor)
    return {
        call: _Described(
            here[0],
            tuple((kernel, prices_there[kernel]) for kernel in before),
            tuple((kernel, prices_here[kernel]) for kernel in after),
        )
        for (call, _, here), before, after in zip(both, kernels_there, kernels_here, strict=True)
        if before and after
    }


def _kernels_of(ops: Sequence[OpCall]) -> tuple[Kernel, ...]:
    """The kernels of ops that are described; none where one of them is not."""
    mappings = [map_op(op.signature, op.math) for op in ops]
    if not all(mapping.is_mapped for mapping in mappings):
        return ()
    return tuple(kernel for mapping in mappings for kernel in mapping.kernels)


def _prices(
    kernels: Sequence[Sequence[Kernel]], gpu: GPU, predictor: Predictor
) -> dict[Kernel, Estimate]:
    distinct = list(dict.fromkeys(kernel for some in kernels for kernel in some))
    for kernel in distinct:  # by name, before the predictor refuses them all
        _require_unit(kernel, gpu)
    return dict(zip(distinct, predictor.predict(distinct, gpu), strict=True))


def _require_unit(kernel: Kernel, gpu: GPU) -> None:
    """UnsupportedKernelError where the GPU has no unit that computes the kernel."""
    if not kernel.flops:
        return
    try:
        gpu.peak_flops(kernel.compute)
    except UnsupportedKernelError as error:
        raise UnsupportedKernelError(
            f"The profile runs {kernel.name} in {kernel.dtype}, which does not exist there: {error}"
        ) from error


class _Carrying:
    """Carries single kernels from one GPU to another."""

    def __init__(self, source: GPU, target: GPU, *, is_by_waves: bool) -> None:
        self._source = source
        self._target = target
        self._is_by_waves = is_by_waves

    def nameless(self, event: DeviceEvent, position: int, op: str) -> CarriedKernel:
        """An event of which only the name is known, carried by what moves its bytes."""
        kernel = _named(event)
        way: Way = "link" if _is_carried_by_link(event) else "bandwidth"
        us = event.duration_ns / _NS_PER_US
        spread = _BANDWIDTH_SPREAD
        if self._source == self._target:
            way, spread = "measured", 0.0
        else:
            us *= (
                self._link_ratio()
                if way == "link"
                else _bandwidth(self._source) / _bandwidth(self._target)
            )
        estimate = _estimate(us, us / (1.0 + spread), us * (1.0 + spread), way)
        call = OpCall(OpSignature(op, "default", (), ()), MathMode())
        return CarriedKernel(event, position, kernel, call, estimate, way)

    def kernel(
        self,
        event: DeviceEvent,
        position: int,
        known: _Described,
        events: Sequence[DeviceEvent],
        index: int,
    ) -> CarriedKernel:
        """The `index`-th of the events of an op that we describe."""
        kernel = known.kernels_of(events)[index]
        us = event.duration_ns / _NS_PER_US
        way: Way = "measured"
        if self._source == self._target:
            estimate = _estimate(us, us, us, way)
        elif self._source.vendor != self._target.vendor:
            way, estimate = "forecast", _across_vendors(us, known, events)
        else:
            way, estimate = self._with_deviation(event, kernel, known, events, index)
        return CarriedKernel(event, position, kernel, known.call, estimate, way)

    def _with_deviation(
        self,
        event: DeviceEvent,
        kernel: Kernel,
        known: _Described,
        events: Sequence[DeviceEvent],
        index: int,
    ) -> tuple[Way, Estimate]:
        """What is forecast on the target, with a share of the deviation from the forecast here."""
        measured_us = event.duration_ns / _NS_PER_US
        kept = KEPT_BY_RELATED if self._are_related else KEPT_BY_OTHERS
        us = measured_us * known.scale(events, index, kept=kept)
        spread = 1.0 + self._spread(kernel)
        low, high = us / spread, us * spread
        if event.size is None or not keeps_implementation(event.name) or not kernel.flops:
            return "prices", _estimate(us, low, high, "prices")
        by_waves = self._by_waves(measured_us, event.size, kernel)
        low, high = min(low, by_waves), max(high, by_waves)
        if self._is_by_waves:
            return "waves", _estimate(by_waves, low, high, "waves")
        return "prices and waves", _estimate(us, low, high, "prices and waves")

    @property
    def _are_related(self) -> bool:
        return self._source.compute_capability == self._target.compute_capability

    def _spread(self, kernel: Kernel) -> float:
        if self._are_related:
            return _RELATED_SPREAD
        return _PRICES_SPREAD.get(kernel.kernel_class, _OTHER_SPREAD)

    def _by_waves(self, us: float, launch: LaunchSize, kernel: Kernel) -> float:
        return wave_scaled_us(
            us,
            launch,
            source=self._source,
            target=self._target,
            intensity=kernel.flops / max(1, kernel.num_bytes),
            compute=kernel.compute,
        )

    def _link_ratio(self) -> float:
        before = self._source.pcie_gbps or self._target.pcie_gbps
        return before / (self._target.pcie_gbps or before) if before else 1.0


def _across_vendors(us: float, known: _Described, events: Sequence[DeviceEvent]) -> Estimate:
    """One of the events of an op on another vendor's GPU: its share of what is forecast there."""
    measured_us = sum(event.duration_ns for event in events) / _NS_PER_US
    us *= known.here_us / (measured_us or 1.0)
    spread = 1.0 + _ACROSS_VENDORS_SPREAD
    return _estimate(us, us / spread, us * spread, "forecast")


def _bandwidth(gpu: GPU) -> float:
    return gpu.bandwidth_gbps * (gpu.stream_utilization or gpu.bandwidth_utilization)


def _is_carried_by_link(event: DeviceEvent) -> bool:
    crosses = any(word in event.name for word in ("HtoD", "DtoH"))
    return crosses or class_of_name(event.name) is KernelClass.COLLECTIVE


def _named(event: DeviceEvent) -> Kernel:
    """A kernel of which only the name is known."""
    kind = class_of_name(event.name)
    if kind in _MATRIX_LIKE:  # their sizes are not those of rows
        kind = KernelClass.UNKNOWN
    return Kernel.rows(
        kind, event.name, 1, 1, dtype="float32", bytes_read=0, bytes_written=event.num_bytes
    )


_MATRIX_LIKE = frozenset(
    {KernelClass.GEMM, KernelClass.CONVOLUTION, KernelClass.ATTENTION, KernelClass.COLLECTIVE}
)


def _estimate(us: float, low: float, high: float, way: Way) -> Estimate:
    return Estimate(
        latency_us=whole_nanoseconds(us) if us else 0.0,
        low_us=whole_nanoseconds(low) if low else 0.0,
        high_us=whole_nanoseconds(high) if high else 0.0,
        bound="memory",
        origin="fallback" if way in ("bandwidth", "link") else "physics",
        predictor="carried",
    )
