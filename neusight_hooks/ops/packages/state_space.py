"""Scans of state-space models: Mamba's selective scan, and Mamba 2's scan in chunks by products."""

from __future__ import annotations

from neusight.ops.operands import ceil_div, gpu_tensors, num_bytes, written_tensors
from neusight.ops.registry import register_op
from neusight.predictors.kernel import Kernel, KernelClass, Variant
from neusight.recording.recording import Argument, OpSignature, TensorSpec

#: Instructions of a thread for one state and step of the selective scan: an exponential (8 slots of
#: 128 a clock), what it is made of and what follows (4), the scan over a CTA's threads (8).
#: Backward makes the forward again and scans the other way. Counted in its sources: a prior.
_SCAN_INSTRUCTIONS = 20
_BACKWARD_TIMES = 3

#: FLOPs of the same: exponential, decay, input, product with the output's factor.
_SCAN_FLOPS = 9


@register_op("mamba_ssm::selective_scan", "mamba_ssm::selective_scan_backward")
def selective_scan(
    call: OpSignature, *, u: TensorSpec, A: TensorSpec, **others: Argument
) -> list[Kernel]:
    """One kernel, a CTA for each channel; states stay in registers."""
    rows, width = u.shape[0] * u.shape[1], u.shape[2]
    steps = u.numel * A.shape[-1]
    if not steps:
        return []
    times = _BACKWARD_TIMES if call.op.endswith("_backward") else 1
    return [
        Kernel.rows(
            KernelClass.REDUCTION,
            call.op.partition("::")[2],
            *(rows, width),
            dtype=u.dtype,
            bytes_read=num_bytes(gpu_tensors(call.input_tensors)),
            bytes_written=num_bytes(written_tensors(call)),
            flops=steps * _SCAN_FLOPS * times,
            variant="state_space",
            is_backward=times > 1,
            num_instructions=steps * _SCAN_INSTRUCTIONS * times,
        )
    ]


@register_op("mamba_ssm::chunk_scan", "mamba_ssm::chunk_scan_backward")
def chunk_scan(
    call: OpSignature, *, x: TensorSpec, B: TensorSpec, chunk_size: int, **others: Argument
) -> list[Kernel]:
    """The kernels of ssd_combined.py: cumulated decays, states of the chunks, their passing on,
    C Bᵀ of each chunk, its product with x and what the state before adds. Backward has the first
    three again and two gradients of each product."""
    scan = _Chunks(x, B.shape[-2], B.shape[-1], chunk_size)
    if not scan.each * scan.width * scan.states:
        return []
    passing = scan.cumsum(), scan.state_passing()
    chunk_state, *rest = products = scan.products()
    if not call.op.endswith("_backward"):
        return [passing[0], chunk_state, passing[1], *rest]
    twice = [kernel for kernel in products for _ in range(2)]
    return [passing[0], chunk_state, passing[1], *twice]


class _Chunks:
    """A scan in chunks: its sizes, and the kernels that they give."""

    def __init__(self, x: TensorSpec, groups: int, states: int, chunk_size: int) -> None:
        self.batch, self.length, self.heads, self.width = x.shape
        self.groups, self.states, self.dtype = groups, states, x.dtype
        self.size = max(1, min(chunk_size, self.length))
        self.chunks = ceil_div(self.length, self.size)
        self.each = self.batch * self.chunks * self.heads

    def products(self) -> list[Kernel]:
        """The four products of the forward pass."""
        size, width, states = self.size, self.width, self.states
        joint = self.batch * self.chunks * self.groups
        return [
            self._product("chunk_state", self.each, width, states, size),
            self._product("chunk_bmm", joint, size, size, states),
            self._product("chunk_scan", self.each, size, width, size),
            self._product("chunk_scan_state", self.each, size, width, states),
        ]

    def _product(self, name: str, count: int, m: int, n: int, k: int) -> Kernel:
        return Kernel.gemm(m, n, k, batch=count, dtype=self.dtype, layout="nn", name=name)

    def cumsum(self) -> Kernel:
        """Decays, added up along each chunk."""
        return _passing("chunk_cumsum", self.each, self.size, "scan")

    def state_passing(self) -> Kernel:
        """States, handed from chunk to chunk; each element by itself."""
        return _passing("state_passing", self.each, self.width * self.states)


def _passing(name: str, rows: int, width: int, variant: Variant = "") -> Kernel:
    """A small kernel that reads and writes float32."""
    return Kernel.rows(
        KernelClass.REDUCTION if variant else KernelClass.ELEMENTWISE,
        name,
        rows,
        width,
        dtype="float32",
        bytes_read=4 * rows * width,
        bytes_written=4 * rows * width,
        variant=variant,
    )
