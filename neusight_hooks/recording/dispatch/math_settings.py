"""The switches of torch that decide which kernels run, read for each op that they matter to."""

from __future__ import annotations

import torch

from neusight.recording.recording import MathMode, OpSignature, release_of

#: Ops whose kernel depends on the switches in `MathMode`; reading those costs time.
_MATH_OPS = (
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "addbmm",
    "addmv",
    "mv",
    "dot",
    "conv",
    "attention",
    "rnn",
)


def needs_math(signature: OpSignature) -> bool:
    """Whether the op's kernels depend on the switches."""
    return any(part in signature.op for part in _MATH_OPS)


class MathSettings:
    """Gives one object for equal switches. (By torch's private questions: the public ones cost as
    much as an op; `signature.math_mode` asks those.)"""

    def __init__(self, torch_version: str = torch.__version__) -> None:
        #: For ops to which they do not matter.
        self.default = MathMode(torch=release_of(torch_version))
        self._modes: dict[tuple[bool, ...], MathMode] = {}

    def now(self) -> MathMode:
        """The switches as they stand."""
        cudnn = torch._C
        key = (
            _matmul_tf32(),
            bool(cudnn._get_cudnn_allow_tf32()),
            bool(cudnn._get_cudnn_benchmark()),
            bool(cudnn._get_deterministic_algorithms()),
            bool(cudnn._get_cudnn_enabled()),
        )
        mode = self._modes.get(key)
        if mode is None:
            mode = self._modes[key] = MathMode(*key, torch=self.default.torch)
        return mode


def _matmul_tf32() -> bool:
    try:
        return bool(torch._C._get_cublas_allow_tf32())
    except RuntimeError:  # set through the newer fp32_precision, which refuses the old question
        return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")
