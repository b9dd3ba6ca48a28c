"""How far a forecast peak of memory may be off, and what that makes of the verdict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from neusight.memory.allocator_settings import MIB
from neusight.recording.recording import OpCall, OpSignature, Recording, release_of

#: "close" is what lies within the spread: it may turn out either way. "unknown" is what
#: was not recorded, as memory in most profiles.
MemoryVerdict = Literal["fits", "close", "does not fit", "unknown"]

#: Shares by which allocated and reserved peaks may be less or more. benchmarks/memory.py, 101 peaks
#: of real GPUs: allocated within -0.66 % and +0.27 % of what was measured, reserved within -1.99 %
#: and +0.10 %, reserved and context within -2.84 % (FP16 training of BERT-large on a V100) and
#: +2.13 %. What is more there than forecast is rounded up.
ALLOCATED_LESS, ALLOCATED_MORE = 0.005, 0.01
RESERVED_LESS, RESERVED_MORE = 0.01, 0.03
#: The context is a figure for each GPU, not verified. It grows with the kernels that are
#: loaded: those of cuBLAS and cuDNN come beside torch's own (a judgement, not measured).
CONTEXT_LESS = 0.25
CONTEXT_MORE_BYTES = 350 * MIB
#: Until torch 1.13 (CUDA 11.7, which loads kernels when they are called) all of them were loaded at
#: once: transformers' page on training with one GPU states 1343 MiB on a V100, 993 more than ours.
EAGER_CONTEXT_MORE_BYTES = 1000 * MIB
_LOADS_LAZILY_SINCE = (1, 13)

#: cuDNN's workspace of a convolution, where it is not one of those known: at most as much as its
#: tensors, which is what a copy of them in another layout takes. In benchmark mode cuDNN tries what
#: takes more. Where memory lacks, PyTorch takes the next kernel, which needs less
#: (aten/src/ATen/native/cudnn/Conv_v8.cpp, try_configs): so it makes a peak and fails no program.
_BENCHMARK_COPIES = 2
_MOST_OPTIONAL_BYTES = 1024 * MIB
#: A recurrent network's workspace holds the four gates of an LSTM for what it reads and writes.
_RECURRENT_COPIES = 4


class PeakRange(NamedTuple):
    """Bytes: not less than `low`, not more than `high`, as far as is known."""

    low: int
    high: int


class Spread(NamedTuple):
    """What a peak of this program may be off by: shares of what is allocated and reserved, bytes of
    workspaces that are not known, and of the context. `optional_bytes` are of workspaces that
    nothing fails without."""

    workspace_bytes: int = 0
    optional_bytes: int = 0
    context_more_bytes: int = CONTEXT_MORE_BYTES

    def allocated(self, peak_bytes: int) -> PeakRange:
        """Of the bytes that are allocated at once.

        >>> Spread().allocated(1000)
        PeakRange(low=995, high=1010)
        """
        more = int(peak_bytes * ALLOCATED_MORE) + self.workspace_bytes + self.optional_bytes
        return PeakRange(int(peak_bytes * (1 - ALLOCATED_LESS)), peak_bytes + more)

    def needed(self, reserved_bytes: int, context_bytes: int) -> PeakRange:
        """Of what the GPU has to have: reserved and context."""
        low = int(reserved_bytes * (1 - RESERVED_LESS)) + int(context_bytes * (1 - CONTEXT_LESS))
        more = int(reserved_bytes * RESERVED_MORE) + self.workspace_bytes
        return PeakRange(low, reserved_bytes + more + context_bytes + self.context_more_bytes)


def spread_of(recording: Recording) -> Spread:
    """By what the program holds: convolutions, recurrent networks, and the release of torch."""
    calls = {
        id(entry.signature): entry
        for step in recording.steps
        for entry in step.entries
        if isinstance(entry, OpCall)
    }
    workspace = optional = 0
    for call in calls.values():
        if "convolution" in call.signature.op:
            copies = _BENCHMARK_COPIES if call.math.cudnn_benchmark else 1
            optional = max(optional, copies * _bytes_of(call.signature))
        elif "rnn" in call.signature.op:
            workspace = max(workspace, _RECURRENT_COPIES * _bytes_of(call.signature))
    is_lazy = release_of(recording.torch_version) >= _LOADS_LAZILY_SINCE
    more = CONTEXT_MORE_BYTES if is_lazy else EAGER_CONTEXT_MORE_BYTES
    return Spread(workspace, min(optional, _MOST_OPTIONAL_BYTES), more)


def _bytes_of(signature: OpSignature) -> int:
    """Of all tensors that an op reads and writes on the GPU."""
    specs = signature.input_tensors + signature.output_tensors
    return sum(spec.num_bytes for spec in specs if spec.device == "cuda")


def verdict_of_memory(
    *,
    fits: bool,
    needed_bytes: int,
    needed: PeakRange,
    capacity_bytes: int,
    fits_into: Callable[[int], bool],
) -> MemoryVerdict:
    """Three ways: it fits also with the upper end, not even with the lower, or neither is sure.

    `fits` is so with what is forecast, which needs `needed_bytes` where nothing limits it, or as
    much as there is. `fits_into` says so of another capacity; it is called where the sum alone does
    not decide, since the allocator gives cached memory back before it fails.
    """
    if fits:
        if needed.high <= capacity_bytes:
            return "fits"
        return "fits" if fits_into(capacity_bytes - (needed.high - needed_bytes)) else "close"
    may_fit = fits_into(capacity_bytes + (needed_bytes - needed.low))
    return "close" if may_fit else "does not fit"
