"""Collectives as work on streams: when they begin, who waits for them, what they still write."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from neusight.fake_cuda.distributed.groups import Groups
from neusight.fake_cuda.distributed.invalid_calls import refuse_other_device
from neusight.recording.call_stack import CallStack, call_site
from neusight.recording.recorder import Recorder
from neusight.recording.recording import (
    DEVICES_OPTION,
    IN_ORDER_OPTION,
    NO_CHOICE_OPTION,
    flattened,
)
from neusight.recording.tape import TapedOp
from neusight.recording.tensor import ForecastTensor

#: Works that C++ may still hold although Python has dropped them.
_KEPT_WORKS = 8

# A library that is dropped takes its ops with it.
_keep_alive: list[object] = []


def _batch_op() -> Any:
    """How a batch of transfers is recorded, whatever requested it: an op of torch 2.12, which
    nothing else in 2.11 looks for."""
    if not hasattr(torch.ops._c10d_functional, "batch_p2p_ops"):
        torch_library: Any = torch.library  # has no annotations
        library = torch_library.Library("_c10d_functional", "FRAGMENT")
        _keep_alive.append(library)
        library.define(
            "batch_p2p_ops(str[] op_list, int[] peer_list, int[] tag_list, Tensor[] tensors, "
            "str group_name) -> Tensor[]"
        )
    return torch.ops._c10d_functional.batch_p2p_ops.default


_BATCH = _batch_op()

#: Callbacks of a future run on streams of their own, which count from here.
_FIRST_CALLBACK_STREAM = 1000


class _Unfinished(NamedTuple):
    """A collective that still writes a storage: the event at its end, its stream, its name and
    line, and whether it is awaited where that cannot be seen (DDP's reducer, in C++)."""

    event: int
    stream: int
    op: str
    site: str
    work: PendingWork | None


#: What says which GPUs a process sees.
_VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


class Transfer(NamedTuple):
    """A tensor sent ("isend") to a peer or received ("irecv") from one."""

    kind: str
    peer: int
    tag: int
    tensor: ForecastTensor


class Communication:
    """Writes collectives on the tape, and lets streams wait for them.

    A storage that an unfinished collective writes is followed: the first op on another stream that
    touches it waits if the collective is awaited unseen, else it is reported. `require_rank`
    is called with each rank that something is sent to or received from.
    """

    def __init__(
        self,
        recorder: Recorder,
        groups: Groups,
        require_rank: Callable[[int], None] = lambda rank: None,
        backend_of: Callable[[Any], str] = lambda group: "nccl",
    ) -> None:
        self.groups = groups
        self._meet = require_rank
        self._backend_of = backend_of
        self.recorder = recorder
        self._unfinished: dict[int, _Unfinished] = {}
        self._works: deque[PendingWork] = deque(maxlen=_KEPT_WORKS)
        self._batch: _Batch | None = None
        self._devices: set[int] = set()
        #: The GPU given to init_process_group.
        self.bound_device: torch.device | None = None
        self._stacks: dict[str, CallStack] = {}  # equal lines are one object
        #: Ends that each op is looked at, while one is.
        self._stop_watching: Callable[[], None] | None = None
        # A storage that ended is no longer written, and its address may be reused.
        recorder.storages.on_death.subscribe(self._forget)

    def _record_unfinished(self, tensors: Sequence[ForecastTensor], owner: _Unfinished) -> None:
        for tensor in tensors:
            self._unfinished[_storage_of(tensor)] = owner
        if self._stop_watching is None:
            self._stop_watching = self.recorder.before_op.subscribe(self.touched)

    def _forget(self, storage: int) -> _Unfinished | None:
        found = self._unfinished.pop(storage, None)
        if not self._unfinished and self._stop_watching is not None:
            self._stop_watching()  # an op costs nothing more
            self._stop_watching = None
        return found

    def put_first(self, group: Any) -> None:
        """The group's collectives have a stream of high priority."""
        self.recorder.record_urgent(self.groups.stream_of(group))

    # -- running

    def run(
        self,
        record: Callable[[], object],
        group: Any,
        *,
        op: str,
        written: Sequence[ForecastTensor],
        held: Sequence[ForecastTensor],
        transfer: Transfer | None = None,
        is_asynchronous: bool = True,
    ) -> PendingWork:
        """One collective, or a transfer, that `record` puts on the tape. It writes `written`, and
        holds `held` until it is waited for."""
        if transfer is not None:
            self._meet(transfer.peer)
        if self._backend_of(group) == "nccl":  # another backend shares a GPU among ranks
            refuse_other_device(self.bound_device, held or written)
            self._record_devices(held or written)
        batch = self._batch
        if batch is not None:
            batch.records.append(record)
            batch.transfers += [] if transfer is None else [transfer]
            batch.written += written
            batch.held += held
            return self._kept(PendingWork(self, (), None, batch.stream))
        if not is_asynchronous:  # since torch 2.8 on the stream that is current
            self._record(record)
            return self._kept(PendingWork(self, (), None, self.recorder.current_stream))
        stream = self.groups.stream_of(group, None if transfer is None else transfer.peer)
        with self.on_stream(stream):
            self._record(record)
        work = PendingWork(self, held, self.recorder.tape.record_event(stream), stream)
        self._own(written, work, op)
        return self._kept(work)

    def _record_devices(self, tensors: Sequence[ForecastTensor]) -> None:
        """Keeps which of the GPUs that the program sees its collectives run on."""
        for visible in map(os.environ.get, _VISIBLE_DEVICES):
            if visible and "," not in visible:
                return  # the program's first GPU is whichever its launcher chose
        found = {tensor.device.index or 0 for tensor in tensors} - self._devices
        if found:
            if os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1":
                self.recorder.options[IN_ORDER_OPTION] = "yes"
            self._devices |= found
            names = ",".join(f"cuda:{index}" for index in sorted(self._devices))
            self.recorder.options[DEVICES_OPTION] = names
            if not self.recorder.devices.is_chosen:
                self.recorder.options[NO_CHOICE_OPTION] = "yes"

    def _record(self, record: Callable[[], object]) -> None:
        """Puts a collective on the tape, always with the program's line: what ranks do not agree
        about is shown by it."""
        entries = self.recorder.tape.entries
        first = len(entries)
        record()
        for entry in entries[first:]:
            if isinstance(entry, TapedOp) and not entry.stack:
                site = call_site()
                entry.stack = self._stacks.setdefault(site, (site,))

    @contextmanager
    def on_stream(self, stream: int) -> Iterator[None]:
        """What is recorded meanwhile runs on another stream, after what the current one holds."""
        recorder = self.recorder
        before = recorder.current_stream
        recorder.tape.wait_for_event(recorder.tape.record_event(before), stream)
        recorder.current_stream = stream
        try:
            yield
        finally:
            recorder.current_stream = before

    def begin_batch(self, group: Any) -> None:
        """Collectives and transfers from here on are launched as one."""
        self._batch = _Batch(group, self.groups.stream_of(group))

    def end_batch(self) -> PendingWork:
        batch, self._batch = self._batch, None
        if batch is None or not batch.records:
            return self._kept(PendingWork(self, (), None, self.recorder.current_stream))
        tape = self.recorder.tape
        with self.on_stream(batch.stream):
            if batch.is_of_transfers:
                self._record(partial(self._record_transfers, batch))
            else:
                for record in batch.records:
                    self._record(record)
        work = PendingWork(self, batch.held, tape.record_event(batch.stream), batch.stream)
        self._own(batch.written, work, "batch of transfers")
        return self._kept(work)

    def _record_transfers(self, batch: _Batch) -> None:
        """All transfers of a batch are one kernel: neighbours would wait for each other."""
        kinds, peers, tags, tensors = zip(*batch.transfers, strict=True)
        between = tuple(sorted({dist.get_rank(), *peers}))
        text = self.groups.text_of(batch.group, between)
        lists = (list(kinds), list(peers), list(tags), list(tensors))
        self.recorder.record_handled(_BATCH, (*lists, text), {}, None)

    def _own(self, written: Sequence[ForecastTensor], work: PendingWork, op: str) -> None:
        assert work.event is not None
        self._record_unfinished(
            written, _Unfinished(work.event, work.stream, op, call_site(), work)
        )

    def _kept(self, work: PendingWork) -> PendingWork:
        self._works.append(work)
        return work

    # -- waiting

    def wait_for(self, event: int | None, stream: int, tensors: Sequence[ForecastTensor]) -> None:
        """The current stream waits for what runs on `stream` up to the event."""
        current = self.recorder.current_stream
        if event is not None and stream != current:
            self.recorder.tape.wait_for_event(event, current)
        for tensor in tensors:
            found = self._unfinished.get(_storage_of(tensor))
            if found is not None and found.event == event:
                self._forget(_storage_of(tensor))

    def wait_for_tensor(self, tensor: ForecastTensor) -> None:
        """The current stream waits for the collective that writes this tensor, if one does."""
        found = self._forget(_storage_of(tensor))
        if found is not None and found.stream != self.recorder.current_stream:
            self.recorder.tape.wait_for_event(found.event, self.recorder.current_stream)

    def follow(self, tensors: Sequence[ForecastTensor], event: int, stream: int, op: str) -> None:
        """These are ready at the event; an op that uses them earlier waits."""
        self._record_unfinished(tensors, _Unfinished(event, stream, op, call_site(), None))

    def touched(self, func: Any, args: Sequence[Any], kwargs: Any) -> None:
        """An op is about to read or write these; called while something is unfinished."""
        if getattr(func, "is_view", False):
            return
        for tensor in tensors_in((*args, *kwargs.values())):
            found = self._unfinished.get(_storage_of(tensor))
            if found is None:
                continue
            self._forget(_storage_of(tensor))
            if found.stream == self.recorder.current_stream:
                continue
            if found.work is None or found.work.is_awaited_unseen:
                self.recorder.tape.wait_for_event(found.event, self.recorder.current_stream)
            else:
                self.recorder.warn_once(
                    f"{func._schema.name} at {call_site()} uses a tensor that {found.op} at "
                    f"{found.site} may still write: wait for what that returned"
                )


@dataclass
class _Batch:
    """Transfers between the begin and the end of a group of calls."""

    group: Any
    stream: int
    records: list[Callable[[], object]] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    written: list[ForecastTensor] = field(default_factory=list)
    held: list[ForecastTensor] = field(default_factory=list)

    @property
    def is_of_transfers(self) -> bool:
        """Whether there is nothing else in it."""
        return len(self.transfers) == len(self.records)


class PendingWork(dist.Work):
    """What a collective returns; the stream that waits for it goes on after its event."""

    def __init__(
        self,
        communication: Communication,
        tensors: Sequence[ForecastTensor],
        event: int | None,
        stream: int,
    ) -> None:
        super().__init__()
        self.event = event
        self.stream = stream
        self.is_awaited_unseen = False
        self._communication = communication
        self._tensors = list(tensors)

    def wait(self, timeout: object = None) -> bool:
        """The current stream waits; the tensors that the collective held are let go."""
        tensors, self._tensors = self._tensors, []
        self._communication.wait_for(self.event, self.stream, tensors)
        return True

    def synchronize(self) -> None:
        self.wait()

    block_current_stream = synchronize

    def is_completed(self) -> bool:
        """Always true: a loop that polls it must end."""
        return True

    def is_success(self) -> bool:
        return True

    def _source_rank(self) -> int:
        """Who sent what was received from anyone: the first of the others."""
        return int(dist.get_rank() == 0)

    def exception(self) -> None:
        """None: it did not fail."""

    def result(self) -> list[torch.Tensor]:
        return list(self._tensors)

    def get_future(self) -> torch.futures.Future[Any]:
        """A finished future of the tensors; its owner waits where that cannot be seen."""
        self.is_awaited_unseen = True
        tensors, self._tensors = self._tensors, []
        future = _Future(self._communication, self.event, self.stream)
        future.set_result(tensors)
        return future


class _Future(torch.futures.Future[Any]):
    """A finished future whose callbacks run on a stream of their own, after the collective."""

    def __new__(cls, *arguments: object) -> _Future:
        return super().__new__(cls)

    def __init__(self, communication: Communication, event: int | None, stream: int) -> None:
        super().__init__()
        self._communication = communication
        self._event = event
        self._stream = stream

    def wait(self) -> Any:
        """The value; the current stream waits."""
        self._communication.wait_for(self._event, self._stream, ())
        return super().wait()

    def then(self, callback: Callable[[Any], Any]) -> _Future:
        """Runs the callback on the stream of callbacks; what it returns is ready when that is."""
        communication, recorder = self._communication, self._communication.recorder
        side = _FIRST_CALLBACK_STREAM + self._stream
        before, recorder.current_stream = recorder.current_stream, side
        try:
            communication.wait_for(self._event, self._stream, ())
            value = callback(self)
            event = recorder.tape.record_event(side)
        finally:
            recorder.current_stream = before
        communication.follow(tensors_in(value), event, side, "a communication hook")
        future = _Future(communication, event, side)
        future.set_result(value)
        return future


def tensors_in(values: object) -> list[ForecastTensor]:
    """The forecast tensors on a GPU among these, lists of lists included."""
    return [t for t in flattened(values, ForecastTensor) if t._fake_device.type == "cuda"]


def _storage_of(tensor: ForecastTensor) -> int:
    return int(tensor.untyped_storage()._cdata)
