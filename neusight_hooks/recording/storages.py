"""Storages on the GPU, followed from the op that makes each to its end."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from neusight.recording.attribution import Attribution
from neusight.recording.call_stack import CallStack
from neusight.recording.recording import Phase
from neusight.recording.tape import Listeners, Tape, TapedAlloc, TapedFree, TapedOp
from neusight.recording.tensor import ForecastTensor


class _StorageRef(weakref.ref):  # type: ignore[type-arg]
    """A weak reference to a storage that keeps the storage's key."""

    __slots__ = ("key",)
    key: int


class StorageWatch:
    """Records allocations and frees on the tape, and the kind of each storage.

    Storages have numbers, which count through all of the program.
    """

    def __init__(self, tape: Tape, attribution: Attribution) -> None:
        #: Called with the bytes of each allocation, which it may refuse by an error; and before
        #: the first of all.
        self.on_alloc = Listeners[[int]]()
        self.on_first_alloc = Listeners[[]]()
        #: Called where the storage behind this address has ended.
        self.on_death = Listeners[[int]]()
        #: Called with the number of a storage that turned out to be for this.
        self.on_kind = Listeners[[int, str]]()
        #: The pool of CUDA graphs that allocations come from now; 0 is the one of all others.
        self.pool = 0
        #: Whether a captured CUDA graph runs: what it makes has its memory since it was captured.
        self.is_replaying = False
        self._tape = tape
        self._attribution = attribution
        self._numbers: dict[int, int] = {}
        self._alive: dict[int, Phase] = {}  # by what made them
        self._watches: dict[int, _StorageRef] = {}
        self._kinds: dict[int, str] = {}
        #: What the storages were for that live on without memory.
        self._emptied: dict[int, str | None] = {}
        #: Those whose memory belongs to a captured CUDA graph, which no allocator is called for.
        self._in_graphs: set[int] = set()
        self._next = 0
        self._num_pools = 0

    def follow(self, tensor: ForecastTensor, op: TapedOp) -> None:
        """Follows the storage of a tensor that the op returned, if it is new."""
        if tensor._fake_device.type != "cuda":
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._numbers and key not in self._emptied and key not in self._in_graphs:
            self._follow(storage, op.signature.op, op.module, op.phase, op.stack)

    def made(self, tensor: ForecastTensor, op: str) -> None:
        """Follows the storage of a tensor that was made without an op, in the name of one."""
        self._made(tensor.untyped_storage(), op)

    def _made(self, storage: Any, op: str) -> None:
        who = self._attribution
        self._follow(storage, op, who.module, who.phase, who.stack)

    def mark(self, tensor: torch.Tensor, kind: str) -> None:
        """Sets the kind of a storage: parameter, gradient, buffer, optimizer_state; of a DTensor
        that of its part on this rank."""
        if not isinstance(tensor, ForecastTensor):
            tensor = getattr(tensor, "_local_tensor", tensor)
        if not isinstance(tensor, ForecastTensor) or tensor._fake_device.type != "cuda":
            return
        storage = tensor.untyped_storage()
        number = self._numbers.get(storage._cdata)
        if number is not None:
            self._kinds[number] = kind
            self.on_kind(number, kind)
            return
        if storage._cdata in self._in_graphs:
            return
        self._kinds[self._next] = kind
        self._made(storage, "aten::empty")

    def resized(self, storage: Any) -> None:
        """A storage gave its memory back, or got some, while its tensors live on: as sharded
        parameters do between the passes."""
        key = storage._cdata
        number = self._free(key)
        if number is not None:
            self._emptied[key] = self._kinds.get(number)
        if key not in self._emptied or not storage.nbytes():
            return
        kind = self._emptied.pop(key)
        if kind is not None:
            self._kinds[self._next] = kind
        self._made(storage, "aten::resize_")

    # -- CUDA graphs ------------------------------------------------------------------------------

    def new_pool(self) -> int:
        """The number of a private pool for CUDA graphs."""
        self._num_pools += 1
        return self._num_pools

    def leave_to_graph(self, storage: Any) -> None:
        """The graph that wrote a storage may do so again: its memory counts as free, while tensors
        of it live on."""
        if self._free(storage._cdata) is not None:
            self._in_graphs.add(storage._cdata)

    def take_from_graph(self, storage: Any) -> None:
        """What a replayed graph wrote is kept while another one is captured."""
        if storage._cdata in self._in_graphs:
            self._in_graphs.discard(storage._cdata)
            self._made(storage, "aten::empty_strided")

    def _follow(self, storage: Any, op: str, module: str, phase: Phase, stack: CallStack) -> None:
        number, key = self._next, storage._cdata
        if self.is_replaying:
            self._in_graphs.add(key)
            self._watch(storage)
            return
        if number == 0:
            self.on_first_alloc()
        self._next = number + 1
        self._numbers[key] = number
        self._alive[number] = phase
        self._watch(storage)
        num_bytes = storage.nbytes()
        alloc = TapedAlloc(number, num_bytes, module, op, phase, stack, self.pool)
        self._tape.entries.append(alloc)
        self.on_alloc(num_bytes)

    def _watch(self, storage: Any) -> None:
        reference = _StorageRef(storage, self._died)
        reference.key = storage._cdata
        self._watches[reference.key] = reference

    def _died(self, reference: _StorageRef) -> None:
        key = reference.key
        self._watches.pop(key, None)
        self._emptied.pop(key, None)
        self._in_graphs.discard(key)
        self.on_death(key)
        self._free(key)

    def _free(self, key: int) -> int | None:
        """Records that a storage freed its memory; the number that it had."""
        number = self._numbers.pop(key, None)
        if number is not None:
            self._alive.pop(number, None)
            if self._tape.is_open:
                self._tape.entries.append(TapedFree(number))
        return number

    def refuse(self, number: int) -> None:
        """Removes the newest storage, whose allocation failed."""
        for key, known in list(self._numbers.items()):
            if known == number:
                del self._numbers[key]
                self._watches.pop(key, None)
        self._alive.pop(number, None)

    def alive(self) -> list[TapedAlloc]:
        """The storages that exist now, in the order in which they were made."""
        storages = {number: self._watches[key]() for key, number in self._numbers.items()}
        return [
            TapedAlloc(number, storage.nbytes(), phase=self._alive.get(number, "forward"))
            for number, storage in sorted(storages.items())
            if storage is not None
        ]

    def is_alive(self, number: int) -> bool:
        """Whether the storage of that number still exists."""
        return number in self._alive

    @property
    def next_number(self) -> int:
        """The number that the next storage gets: how many there were so far."""
        return self._next

    def adopt(self, tensor: ForecastTensor) -> int:
        """From now on a storage of which the tape says already that it was made; its number."""
        number, storage = self._next, tensor.untyped_storage()
        self._next = number + 1
        self._numbers[storage._cdata] = number
        self._alive[number] = "forward"
        self._watch(storage)
        return number

    def number_of(self, tensor: torch.Tensor) -> int | None:
        """The number of a tensor's storage; None where it is not followed."""
        return self._numbers.get(tensor.untyped_storage()._cdata)

    def kind_of(self, number: int) -> str | None:
        """What the storage is for, where that is known."""
        return self._kinds.get(number)

    def forget_kind(self, number: int) -> None:
        """Forgets a storage that has ended."""
        self._kinds.pop(number, None)
