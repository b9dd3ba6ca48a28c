"""Generators of random numbers on the GPU: their seeds and states; no number is ever drawn."""

from __future__ import annotations

import secrets
import weakref
from typing import Any

import torch

from neusight.fake_cuda.patching import Patches
from neusight.recording.dispatch.fake_kernels import Devices

#: What a generator begins with (c10::detail: default_rng_seed_val, c10/core/GeneratorImpl.h).
_FIRST_SEED = 67280421310721

#: Bytes of a seed, and of how far the numbers behind it were drawn: the state of a CUDA generator
#: (aten/src/ATen/cuda/CUDAGeneratorImpl.cpp).
_WORD_BYTES = 8

_WORD = 1 << 8 * _WORD_BYTES

_Plain = torch.Generator


class _CudaGenerator(_Plain):
    """A generator of a GPU. Its states come apart and together, as compiled code needs them."""

    def __new__(cls, index: int) -> _CudaGenerator:
        return super().__new__(cls, "cpu")  # type: ignore[call-arg]

    def __init__(self, index: int) -> None:
        self._index = index
        self._seed, self._offset = _FIRST_SEED, 0

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # torch's is read-only too
        return torch.device("cuda", self._index)

    def manual_seed(self, seed: int) -> _CudaGenerator:
        self._seed, self._offset = int(seed) % _WORD, 0
        return self

    def seed(self) -> int:
        self.manual_seed(secrets.randbits(8 * _WORD_BYTES - 11))  # fits a double, as torch's do
        return self._seed

    def initial_seed(self) -> int:
        return self._seed

    def get_offset(self) -> int:
        return self._offset

    def set_offset(self, offset: int) -> _CudaGenerator:
        if offset % 4:
            raise RuntimeError("offset must be a multiple of 4")
        self._offset = offset
        return self

    def get_state(self) -> torch.Tensor:
        words = (self._seed, self._offset % _WORD)
        state = b"".join(word.to_bytes(_WORD_BYTES, "little") for word in words)
        return torch.tensor(list(state), dtype=torch.uint8, device="cpu")

    def set_state(self, new_state: torch.Tensor) -> _CudaGenerator:
        if new_state.device.type != "cpu" or new_state.dtype != torch.uint8:
            raise TypeError("RNG state must be a torch.ByteTensor")
        if new_state.numel() not in (_WORD_BYTES, 2 * _WORD_BYTES):
            raise RuntimeError("RNG state is wrong size")
        state = bytes(new_state.tolist())
        self._seed = int.from_bytes(state[:_WORD_BYTES], "little")
        self._offset = int.from_bytes(state[_WORD_BYTES:], "little")
        return self

    def clone_state(self) -> Any:
        copied: Any = torch.Generator(self.device)
        copied._seed, copied._offset = self._seed, self._offset
        return copied

    def graphsafe_get_state(self) -> _CudaGenerator:
        return self

    def graphsafe_set_state(self, state: Any) -> _CudaGenerator:
        self._seed, self._offset = state._seed, state._offset
        return self


class _GeneratorType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _Plain)


def install_generators(patches: Patches, devices: Devices, of_gpus: set[int]) -> None:
    """torch.Generator("cuda") and the GPUs' own exist until `patches.restore()`; what torch.cuda
    seeds and saves are those. `of_gpus` has the address of each."""

    def made(index: int) -> _CudaGenerator:
        generator = _CudaGenerator(index)
        place: int = generator._cdata  # type: ignore[attr-defined]  # not in torch's stub
        of_gpus.add(place)
        weakref.finalize(generator, of_gpus.discard, place)
        return generator

    class Generator(metaclass=_GeneratorType):
        """torch.Generator, on a GPU too."""

        def __new__(cls, device: Any = "cpu") -> Any:
            where = torch.device(device)
            if where.type != "cuda":
                return _Plain(where)
            return made(devices.checked(where).index)

    patches.set(torch, "Generator", Generator)
    generators = tuple(map(made, range(devices.count)))
    patches.set(torch.cuda, "default_generators", generators)
