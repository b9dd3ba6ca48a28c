"""An op of one's own: how PyTorch learns its shapes, and neusight its kernel.

python examples/custom_op.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import neusight
from neusight.predictors import Kernel
from neusight.recording.recording import MathMode, OpSignature, TensorSpec


# What a package with a CUDA kernel does: an op with a name. Here the body is plain PyTorch.
@torch.library.custom_op("example::swiglu", mutates_args=())
def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up in one kernel."""
    return nn.functional.silu(gate) * up


@swiglu.register_fake
def _(gate: Tensor, up: Tensor) -> Tensor:
    return torch.empty_like(gate)


# What neusight needs to know: which kernels one call launches. Without this the op is priced by its
# bytes over the bandwidth, counted as unmapped and named in every summary. After the `*` stand the
# op's arguments, by name: one that the op does not have, or a tensor left out, is an error at once.
@neusight.register_op("example::swiglu")
def swiglu_kernels(
    call: OpSignature, math: MathMode, *, gate: TensorSpec, up: TensorSpec
) -> list[Kernel]:
    """One pass: two tensors read, one written."""
    return [Kernel.elementwise("swiglu", gate.numel, dtype=gate.dtype, num_inputs=2)]


def main() -> None:
    with neusight.forecast_on("H100", strict=True) as forecast:  # strict: unmapped ops raise
        gate, up = (torch.randn(8192, 11008, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        for _ in range(3):
            swiglu(gate, up)
            forecast.step()

    [(kernel, estimate)] = set(forecast.kernels[-1:])
    print(f"{kernel.name}: {estimate.latency_us:.1f} us, {estimate.bound}-bound")
    print(f"unmapped ops: {forecast.unmapped}")


if __name__ == "__main__":
    main()
