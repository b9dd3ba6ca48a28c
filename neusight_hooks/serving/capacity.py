"""How many tokens a GPU's memory keeps for a served model."""

from __future__ import annotations

from dataclasses import dataclass

from neusight.predictors.errors import OptionError
from neusight.predictors.formatting import bytes_text
from neusight.predictors.gpu import GPU
from neusight.serving.prices import StepProgram

#: Bytes of one word's logit for a sequence: as computed, as float32, and sorted or exponentiated.
_LOGIT_BYTES = 10
#: Bytes of an activation.
_ACTIVATION_BYTES = 2


@dataclass(frozen=True)
class Capacity:
    """One GPU's memory in bytes: all that the server may use, and what of it is for what.
    `state_bytes` are kept of each sequence, in blocks of their own; where nothing else is kept,
    a block holds a sequence of any length."""

    usable_bytes: int
    weight_bytes: int
    activation_bytes: int
    context_bytes: int
    kv_bytes: int
    kv_bytes_per_token: int
    block_size: int
    state_bytes: int = 0

    @property
    def _block_bytes(self) -> int:
        return self.kv_bytes_per_token * self.block_size or self.state_bytes or 1

    @property
    def num_blocks(self) -> int:
        """Blocks of the cache."""
        return self.kv_bytes // self._block_bytes

    @property
    def state_blocks(self) -> int:
        """Blocks of a sequence's state, beside those of its tokens."""
        return -(-self.state_bytes // self._block_bytes) if self.kv_bytes_per_token else 0

    @property
    def num_tokens(self) -> int:
        """Tokens that the cache holds."""
        return self.num_blocks * self.block_size


#: Sequences that fit where nothing is kept of any, and tokens of one where none are.
_UNLIMITED_BLOCKS = 1 << 24
_ANY_LENGTH = 1 << 31


def capacity_of(
    program: StepProgram,
    gpu: GPU,
    *,
    utilization: float,
    max_tokens: int,
    max_seqs: int,
    block_size: int,
    num_blocks: int | None = None,
) -> Capacity:
    """What is left for the cache beside weights, the CUDA context, and the activations of the
    largest step; OptionError where not even a block is left."""
    usable = int(gpu.memory_bytes * utilization)
    activations = max_tokens * program.widest * _ACTIVATION_BYTES
    activations += max_seqs * program.vocabulary * _LOGIT_BYTES
    left = usable - program.weight_bytes - activations - gpu.context_bytes
    if not program.kv_bytes_per_token:
        block_size = _ANY_LENGTH
    a_block = program.kv_bytes_per_token * block_size or program.state_bytes
    if num_blocks is not None:
        left = num_blocks * a_block
    elif not a_block:
        left, a_block = _UNLIMITED_BLOCKS, 1
    if left < a_block:
        raise OptionError(
            f"the model does not fit into {gpu.name}: of {bytes_text(gpu.memory_bytes)} the server "
            f"may use {bytes_text(usable)}, its weights take {bytes_text(program.weight_bytes)} "
            f"and a step {bytes_text(activations + gpu.context_bytes)}, which leaves no space for "
            "a KV cache. Use more GPUs (--tp), a larger GPU or fewer bits (--quantization)."
        )
    return Capacity(
        usable_bytes=usable,
        weight_bytes=program.weight_bytes,
        activation_bytes=activations,
        context_bytes=gpu.context_bytes,
        kv_bytes=left,
        kv_bytes_per_token=program.kv_bytes_per_token,
        block_size=block_size,
        state_bytes=program.state_bytes,
    )
