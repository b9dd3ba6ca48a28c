"""A rank's line: what it asks goes out as a message, and an answer may be an error."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from neusight.fake_cuda.distributed.peers.link import RemoteLink, SingleRankLink, receive, send
from neusight.fake_cuda.distributed.peers.message_server import Inbox, Messages, Reply, StoreKeys
from neusight.predictors.errors import HangError, UnansweredRankError
from neusight.recording.tape import EnoughSteps

BOX = Inbox("objects sent", "world", 1, 0)


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    own, other = socket.socketpair()
    with own, other:
        yield own, other


def test_a_question_is_a_message_and_so_is_its_answer(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    own, other = sockets
    send(other, Reply("value", {1: b"hello"}))

    found = RemoteLink(own).take([BOX])
    operation, wanted, site = receive(other)

    assert found == {1: b"hello"}
    assert (operation, wanted) == ("want", Messages((BOX,)))
    assert site.startswith("test_link.py:")


def test_a_rank_is_met_once(sockets: tuple[socket.socket, socket.socket]) -> None:
    own, other = sockets
    link = RemoteLink(own)
    for _ in range(2):
        send(other, Reply("value"))

    link.require_rank(3)
    link.require_rank(3)
    link.post({BOX: b"hello"})

    assert receive(other) == ("require_rank", 3)
    assert receive(other) == ("post", ((BOX, b"hello"),))


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("unanswered", UnansweredRankError),
        ("hang", HangError),
        ("interrupt", KeyboardInterrupt),
        ("stop", EnoughSteps),
    ],
)
def test_an_answer_without_a_value_is_raised(
    sockets: tuple[socket.socket, socket.socket], kind: str, error: type[BaseException]
) -> None:
    own, other = sockets
    link = RemoteLink(own)
    send(other, Reply(kind, "why"))  # type: ignore[arg-type]

    with pytest.raises(error):
        link.wait(["ready"])

    assert receive(other)[1] == StoreKeys(("ready",))
    assert link.was_stopped == (kind == "stop")


def test_where_the_other_end_is_gone_there_is_no_message() -> None:
    own, other = socket.socketpair()
    other.sendall(b"\x08")  # the beginning of a length
    other.close()

    with own:
        assert receive(own) is None


def test_a_rank_whose_others_are_gone_ends_as_one_that_was_stopped() -> None:
    own, other = socket.socketpair()
    other.close()

    with own, pytest.raises(EnoughSteps):
        RemoteLink(own).post({BOX: b"for nobody"})


def test_a_rank_alone_does_without_others() -> None:
    link = SingleRankLink(0)
    link.post({BOX._replace(source=0, target=1): b"for nobody"})

    assert link.take([BOX], may_be_missing=True) == {}
    with pytest.raises(UnansweredRankError, match="by rank 1, which is not run"):
        link.take([BOX])
