"""Layers that keep a state of each sequence, as Mamba's scans do, and their kernels."""

from __future__ import annotations

from typing import NamedTuple

from neusight.ops import map_op
from neusight.predictors.errors import OptionError
from neusight.predictors.kernel import DTYPE_BYTES, Kernel, KernelClass
from neusight.recording.recording import (
    Argument,
    MathMode,
    OpSignature,
    TensorSpec,
    contiguous_strides,
)

#: Tokens of a chunk in which a scan is computed by products (Mamba 2's `chunk_size`,
#: ssd_combined.py of mamba_ssm).
_CHUNK = 256


class RecurrentLayer(NamedTuple):
    """The state of a layer: of `heads`, each `width` x `states`, and the last `taps` inputs of a
    convolution over `channels`. A `width` of 1 is Mamba 1's, whose scan is of each channel by
    itself; others are scanned in chunks by products, as Mamba 2's.

    >>> RecurrentLayer(80, 64, 128, 5376, 4, "bfloat16", "float32").state_bytes
    2664448
    """

    heads: int
    width: int
    states: int
    channels: int
    taps: int
    dtype: str
    state_dtype: str

    @property
    def state_bytes(self) -> int:
        """Bytes that are kept of each sequence."""
        state = self.heads * self.width * self.states * DTYPE_BYTES[self.state_dtype]
        return int(state + self.channels * self.taps * DTYPE_BYTES[self.dtype])

    def shared(self, ranks: int) -> RecurrentLayer:
        """The part of one of several GPUs: its heads; OptionError where they are not even."""
        if self.heads % ranks:
            raise OptionError(
                f"--tp {ranks} does not share {self.heads} heads of a recurrent layer evenly. "
                "Choose a divisor."
            )
        return self._replace(heads=self.heads // ranks, channels=-(-self.channels // ranks))

    def of_tokens(self, tokens: int) -> tuple[Kernel, ...]:
        """The kernels of prompts, of so many tokens together."""
        inner, groups = self.heads * self.width, self._groups
        convolution: tuple[Kernel, ...] = ()
        if self.channels:
            x = self._tensor(1, self.channels, tokens)
            weight = self._tensor(self.channels, self.taps)
            convolution = _kernels("causal_conv1d::conv", (x,), x=x, weight=weight, bias=None)
        if self.width == 1:
            u, out = self._tensor(1, inner, tokens), self._tensor(1, inner, tokens)
            scan = _kernels(
                "mamba_ssm::selective_scan", (out,),
                u=u, delta=u, A=self._tensor(inner, self.states, dtype="float32"),
                B=self._tensor(1, self.states, tokens), C=self._tensor(1, self.states, tokens),
                D=None, z=u, delta_bias=None,
            )  # fmt: skip
        else:
            rows = self._tensor(1, tokens, self.heads, self.width)
            factors = self._tensor(1, tokens, groups, self.states)
            decays = self._tensor(1, tokens, self.heads)
            scan = _kernels(
                "mamba_ssm::chunk_scan", (rows,),
                x=rows, dt=decays, A=self._tensor(self.heads), B=factors, C=factors,
                D=None, z=None, dt_bias=None, chunk_size=_CHUNK,
            )  # fmt: skip
        return (*convolution, *scan)

    def of_sequences(self, count: int) -> tuple[Kernel, ...]:
        """The kernels of one token of each of so many sequences: the convolution's inputs move on,
        and each state is read, changed and written."""
        item, inner = DTYPE_BYTES[self.dtype], self.heads * self.width
        inputs = int(count * self.channels * self.taps * item)
        entering = int(count * self.channels * item)
        state = int(count * inner * self.states * DTYPE_BYTES[self.state_dtype])
        written = int(count * inner * item)  # as many as enter from the gate
        moved = self._pass("conv_update", inputs + entering, inputs + entering, entering)
        changed = self._pass("state_update", state + entering + written, state + written, state)
        return (moved,) * bool(inputs) + (changed,) * bool(state)

    def _pass(self, name: str, read: int, written: int, elements: int) -> Kernel:
        return Kernel.rows(
            KernelClass.ELEMENTWISE, name, 1, elements,
            dtype=self.dtype, bytes_read=read, bytes_written=written,
        )  # fmt: skip

    @property
    def _groups(self) -> int:
        """Heads that share factors of the input and of the output (B and C, keys and queries): the
        convolution runs over them too."""
        return max(1, (self.channels - self.heads * self.width) // (2 * max(1, self.states)))

    def _tensor(self, *shape: int, dtype: str = "") -> TensorSpec:
        return TensorSpec(shape, contiguous_strides(shape), dtype or self.dtype)


def _kernels(op: str, outputs: tuple[TensorSpec, ...], **arguments: Argument) -> tuple[Kernel, ...]:
    signature = OpSignature(op, "default", tuple(arguments.items()), outputs)
    return tuple(map_op(signature, MathMode()).kernels)
