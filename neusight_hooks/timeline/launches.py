"""What an op of one signature always costs the host, and the kernels that it always launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from neusight.predictors.kernel import COPY_ENGINE_KERNELS, RECURRENT, Kernel, KernelClass
from neusight.predictors.predictor import Estimate
from neusight.recording.recording import Mark, MathMode, OpCall, OpSignature, Phase
from neusight.timeline.host import HostProfile, dispatch_us

#: The kernels that an op launches, in order, with their estimates. It must answer equal calls
#: equally; it is asked once for each (signature, math mode, phase).
Pricing = Callable[[OpCall], tuple[tuple[Kernel, Estimate], ...]]

#: Bytes of a copy from pageable memory that the driver takes over at once; of a larger one the
#: host's call lasts as long as the copy (CUDA's "API synchronization behavior"; V100, 19.3 MB: the
#: call takes 2.02 ms, the copy 1.94).
STAGED_BYTES = 2**16
#: Share of `HostProfile.loop_us` that is the call of the runtime (H200, `small_programs/lstm` in
#: benchmarks/measured: 7.4 of 11.7 us).
LOOP_CALL_SHARE = 0.63

#: Classes of kernels that cuBLAS and cuDNN choose and launch.
_OF_LIBRARIES = frozenset({KernelClass.GEMM, KernelClass.CONVOLUTION})

#: The call of the driver by which Triton launches its kernels.
DRIVER_LAUNCH = "cuLaunchKernel"

#: Share of an op's dispatch that lies before its first launch (aten::add on H100: 6.5 of 7.6 us).
DISPATCH_BEFORE_LAUNCH = 0.85


class Launch(NamedTuple):
    """A kernel as an op of one signature always launches it: `name` is the runtime's call, which
    takes the host `call_ns`."""

    kernel: Kernel
    estimate: Estimate
    duration_ns: int
    call_ns: int
    name: str
    is_staged: bool  # the host itself brings the bytes to where the GPU can copy them


class OpPlan(NamedTuple):
    """What an op of one signature always costs the host before, between and after its launches.

    It keeps alive what its key in `OpPlans` identifies: the signature and the math mode.
    """

    before_ns: int
    between_ns: int
    after_ns: int
    launches: tuple[Launch, ...]
    num_branches: int
    library: KernelClass | None  # of products or convolutions, where a library runs them
    signature: OpSignature
    math: MathMode


class OpPlans:
    """The plan of each op call, made once for equal calls."""

    def __init__(self, price: Pricing, host: HostProfile) -> None:
        self._price = price
        self._host = host
        self._plans: dict[tuple[int, int, Phase, bool], OpPlan] = {}
        self._launch_ns = nanoseconds(host.launch_us)
        self._loop_ns = nanoseconds(host.loop_us * LOOP_CALL_SHARE)
        self._memcpy_ns = nanoseconds(host.memcpy_us)

    def plan_of(self, call: OpCall, *, is_compiled: bool = False) -> OpPlan:
        """What the call costs, in eager or compiled code, and what it launches."""
        key = (id(call.signature), id(call.math), call.phase, is_compiled)
        if key not in self._plans:
            self._plans[key] = self._plan(call, is_compiled=is_compiled)
        return self._plans[key]

    def _plan(self, call: OpCall, *, is_compiled: bool) -> OpPlan:
        priced = self._price(call)
        is_loop = any(kernel.name == RECURRENT for kernel, _ in priced)
        classes = tuple(kernel.kernel_class for kernel, _ in priced)
        extra_ns = nanoseconds(self._host.extra_kernel_us) if len(priced) > 1 else 0
        dispatch_ns = nanoseconds(
            dispatch_us(call, classes, host=self._host, is_compiled=is_compiled)
        )
        total_ns = dispatch_ns - extra_ns * (len(priced) - 1)
        if is_loop:
            extra_ns = nanoseconds(self._host.loop_us * (1.0 - LOOP_CALL_SHARE))
        before_ns = round(total_ns * DISPATCH_BEFORE_LAUNCH)
        return OpPlan(
            before_ns=before_ns,
            between_ns=extra_ns,
            after_ns=total_ns - before_ns,
            launches=tuple(
                self._launch(kernel, estimate, call.signature, is_loop=is_loop)
                for kernel, estimate in priced
            ),
            num_branches=max((max(kernel.branches, default=0) for kernel, _ in priced), default=0),
            library=next((item for item in classes if item in _OF_LIBRARIES), None),
            signature=call.signature,
            math=call.math,
        )

    def _launch(
        self, kernel: Kernel, estimate: Estimate, signature: OpSignature, *, is_loop: bool
    ) -> Launch:
        copies = kernel.name in COPY_ENGINE_KERNELS
        launch_ns = self._loop_ns if is_loop else self._launch_ns
        is_staged = (
            kernel.name == "memcpy_h2d"
            and kernel.bytes_read > STAGED_BYTES
            and not is_pinned_copy(signature)
        )
        staging_us = kernel.bytes_read / 1e6 * self._host.pageable_mb_us if is_staged else 0.0
        return Launch(
            kernel=kernel,
            estimate=estimate,
            duration_ns=max(1, nanoseconds(max(estimate.latency_us, staging_us))),
            call_ns=self._memcpy_ns if copies else launch_ns,
            name=_runtime_call(kernel),
            is_staged=is_staged,
        )


def graph_call_ns(mark: Mark, host: HostProfile) -> int:
    """What torch's trees cost the host before they launch a graph and after: which one, and are its
    inputs where they were? 0 where the program launches one itself."""
    if not mark.detail.isdecimal():
        return 0
    num_tensors = int(mark.detail) if mark.kind == "graph_begin" else 0
    return nanoseconds(host.graph_tree_us / 2 + num_tensors * host.graph_tensor_us)


def nanoseconds(microseconds: float) -> int:
    """Whole nanoseconds, the unit of a timeline."""
    return round(microseconds * 1000)


def _runtime_call(kernel: Kernel) -> str:
    """The CUDA runtime's function that launches the kernel, as profiles show it."""
    if kernel.name in COPY_ENGINE_KERNELS:
        return "cudaMemsetAsync" if kernel.name == "memset" else "cudaMemcpyAsync"
    if kernel.name.startswith("triton_"):
        return DRIVER_LAUNCH
    if kernel.kernel_class in (KernelClass.GEMM, KernelClass.COLLECTIVE):
        return "cudaLaunchKernelExC"
    return "cudaLaunchKernel"


def is_pinned_copy(signature: OpSignature) -> bool:
    """Whether the host's side of a copy is pinned memory, as far as the op says.

    A move to the CPU that does not block gets pinned memory from PyTorch (`_to_copy`), and item()
    reads through such.
    """
    if signature.op.endswith("_local_scalar_dense"):
        return True
    inputs = signature.input_tensors
    if any(spec.device == "cpu" for spec in inputs):
        return any(spec.is_pinned for spec in inputs)
    return signature.by_name.get("non_blocking") is True
