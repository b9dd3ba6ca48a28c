"""The connection of one rank to the others that run."""

from __future__ import annotations

import pickle
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from neusight.fake_cuda.distributed.peers.message_server import (
    Inbox,
    Messages,
    MessageServer,
    Reply,
    StoreKeys,
    Wanted,
)
from neusight.predictors.errors import HangError, UnansweredRankError
from neusight.recording.call_stack import call_site
from neusight.recording.tape import EnoughSteps

#: A message: its length in 8 bytes, and a pickle. Both ends are processes of this program.
_LENGTH = struct.Struct("<Q")


class Link:
    """How a rank reaches the others, by one question and its answer. Whatever waits raises
    UnansweredRankError where no rank will ever answer, HangError where ranks wait for each other,
    EnoughSteps where it is to stop because others did."""

    #: Whether no other rank runs, nor will.
    is_alone = False

    def __init__(self) -> None:
        #: Whether it was stopped in the midst of a step.
        self.was_stopped = False
        #: Called with a key that was looked for and is not there.
        self.on_missing: Callable[[str], None] | None = None
        self._met: set[int] = set()

    def _answered(self, request: tuple[Any, ...]) -> Reply:
        raise NotImplementedError

    def require_rank(self, rank: int) -> None:
        """This rank exchanges something with that one."""
        if rank not in self._met:
            self._met.add(rank)
            self._value(("require_rank", rank))

    def post(self, messages: Mapping[Inbox, bytes]) -> None:
        """Leaves messages."""
        self._value(("post", tuple(messages.items())))

    def take(
        self, inboxes: Iterable[Inbox], *, is_any: bool = False, may_be_missing: bool = False
    ) -> dict[int, bytes]:
        """A message of each inbox, by its sender; of ranks that are not run none, where that may
        be."""
        wanted = Messages(tuple(inboxes), is_any, may_be_missing)
        found: dict[int, bytes] = self._value(("want", wanted, call_site()))
        return found

    def wait(self, keys: Iterable[str]) -> list[bytes]:
        """What these keys of the store have, as soon as they are there."""
        found: list[bytes] = self._value(("want", StoreKeys(tuple(keys)), call_site()))
        return found

    def ask(self, operation: str, *arguments: Any) -> Any:
        """An operation of the store that does not wait."""
        return self._value((operation, *arguments))

    def _value(self, request: tuple[Any, ...]) -> Any:
        answer = self._answered(request)
        if answer.kind == "stop":
            self.was_stopped = True
            raise EnoughSteps
        if answer.kind == "interrupt":
            raise KeyboardInterrupt
        if answer.kind == "unanswered":
            raise UnansweredRankError(answer.value)
        if answer.kind == "hang":
            raise HangError(answer.value)
        return answer.value


def handled(exchange: MessageServer, rank: int, request: tuple[Any, ...]) -> None:
    """Does what a rank asks; the answer is among the exchange's, now or later."""
    operation, *arguments = request
    if operation == "want":
        wanted: Wanted = arguments[0]
        exchange.want(rank, wanted, arguments[1])
        return
    found = getattr(exchange, operation)(*arguments)
    exchange.answers.append((rank, Reply("value", found)))


class SingleRankLink(Link):
    """Of a rank that runs alone: what others would send is not there."""

    is_alone = True

    def __init__(self, rank: int) -> None:
        super().__init__()
        self._rank = rank
        self._exchange = MessageServer()
        self._exchange.begin(rank)
        self._lock = threading.Lock()

    def post(self, messages: Mapping[Inbox, bytes]) -> None:
        """Does nothing: no rank reads them."""

    def _answered(self, request: tuple[Any, ...]) -> Reply:
        with self._lock:
            handled(self._exchange, self._rank, request)
            answers, self._exchange.answers = self._exchange.answers, []
            [(_, answer)] = answers
            return answer


class RemoteLink(Link):
    """Of a rank that runs beside others: the exchange is in another process."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__()
        self._connection = connection
        self._lock = threading.Lock()

    def _answered(self, request: tuple[Any, ...]) -> Reply:
        answer: Any = None
        with self._lock, suppress(BrokenPipeError):
            send(self._connection, request)
            answer = receive(self._connection)
        if answer is None:  # the process above is being ended, and this one with it
            raise EnoughSteps
        assert isinstance(answer, Reply)
        return answer


def send(connection: socket.socket, message: object) -> None:
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive(connection: socket.socket) -> Any:
    """The next value that the other process sent; None where it has ended."""
    head = _received(connection, _LENGTH.size)
    data = None if head is None else _received(connection, _LENGTH.unpack(head)[0])
    return None if data is None else pickle.loads(data)


def _received(connection: socket.socket, num_bytes: int) -> bytes | None:
    buffer = bytearray(num_bytes)
    view, position = memoryview(buffer), 0
    while position < num_bytes:
        try:
            count = connection.recv_into(view[position:])
        except ConnectionResetError:
            return None
        if not count:
            return None
        position += count
    return bytes(buffer)
