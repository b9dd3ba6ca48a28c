"""What the overlay needs done at real paths is done by whoever listens, errors and all."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from neusight.fake_cuda.store.hands import (
    SOCKET,
    Hands,
    HandsServer,
    OwnHands,
    RemoteHands,
    hands_of,
)


class Server:
    """A server in a thread, as the process beside would be."""

    def __init__(self, folder: Path) -> None:
        self.hands = HandsServer(str(folder))
        self._end, self._ended = socket.socketpair()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        import select

        while True:
            ready, _, _ = select.select([self._ended, *self.hands.sockets], [], [])
            if self._ended in ready:
                return
            for one in ready:
                self.hands.serve(one)

    def close(self) -> None:
        self._end.close()
        self._thread.join()
        self._ended.close()
        self.hands.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    # Longer than the 108 bytes that a socket's path may have.
    folder = tmp_path / ("store" * 30)
    folder.mkdir()
    server = Server(folder)
    yield server
    server.close()


@pytest.fixture(params=["own", "remote"])
def hands(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Hands]:
    if request.param == "own":
        yield hands_of(str(tmp_path))
        return
    request.getfixturevalue("server")
    remote = hands_of(str(tmp_path / ("store" * 30)))
    assert isinstance(remote, RemoteHands)
    yield remote
    remote.close()


def test_a_folder_without_a_socket_has_ones_own(tmp_path: Path) -> None:
    (tmp_path / SOCKET).touch()

    assert isinstance(hands_of(str(tmp_path)), OwnHands)
    assert isinstance(hands_of(str(tmp_path / "not there")), OwnHands)


def test_every_operation_is_done(hands: Hands, tmp_path: Path) -> None:
    folder, file = str(tmp_path / "folder"), str(tmp_path / "földer" / "file\udcff")

    hands.mkdir(folder)
    hands.rename(folder, str(tmp_path / "földer"))
    descriptor = hands.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.write(descriptor, b"words")
    os.close(descriptor)
    hands.symlink("folder", str(tmp_path / "symlink"))
    hands.link(file, str(tmp_path / "link"))

    assert (tmp_path / "link").read_bytes() == b"words"
    assert (tmp_path / "symlink").readlink() == Path("folder")
    hands.unlink(file)
    hands.rmdir(str(tmp_path / "földer"))
    assert not (tmp_path / "földer").exists()


def test_errors_are_those_of_os(hands: Hands, tmp_path: Path) -> None:
    missing, other = str(tmp_path / "missing"), str(tmp_path / "other")

    with pytest.raises(FileNotFoundError) as caught:
        hands.open(missing, os.O_RDONLY)
    with pytest.raises(FileNotFoundError) as moved:
        hands.rename(missing, other)
    with pytest.raises(FileExistsError):
        hands.mkdir(str(tmp_path))

    assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, missing)
    assert caught.value.strerror == os.strerror(errno.ENOENT)
    assert (moved.value.filename, moved.value.filename2) == (missing, other)


def test_new_files_get_the_askers_umask(hands: Hands, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        os.close(hands.open(str(tmp_path / "file"), os.O_WRONLY | os.O_CREAT, 0o666))
        hands.mkdir(str(tmp_path / "folder"))
    finally:
        os.umask(before)

    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o750


def test_descriptors_are_inherited_by_no_program(hands: Hands, tmp_path: Path) -> None:
    descriptor = hands.open(str(tmp_path), os.O_RDONLY)

    assert not os.get_inheritable(descriptor)
    assert os.get_blocking(descriptor)
    os.close(descriptor)


def test_a_pipe_without_a_reader_holds_nobody_up(server: Server, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    hands = hands_of(str(tmp_path / ("store" * 30)))

    with pytest.raises(OSError, match="No such device"):
        hands.open(str(tmp_path / "pipe"), os.O_WRONLY)

    hands.mkdir(str(tmp_path / "folder"))  # it goes on


def test_patching_os_later_changes_nothing(
    hands: Hands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("open", "close", "read", "getpid", "mkdir", "unlink"):
        monkeypatch.setattr(os, name, None)

    hands.mkdir(str(tmp_path / "folder"))

    monkeypatch.undo()
    assert (tmp_path / "folder").is_dir()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # the server's thread stays behind
def test_threads_and_forked_processes_share_one_pair_of_hands(
    server: Server, tmp_path: Path
) -> None:
    hands = hands_of(str(tmp_path / ("store" * 30)))
    hands.mkdir(str(tmp_path / "first"))

    def work(name: str) -> None:
        for number in range(50):
            path = str(tmp_path / f"{name}-{number}")
            descriptor = hands.open(path, os.O_WRONLY | os.O_CREAT)
            assert os.path.samestat(os.fstat(descriptor), Path(path).stat())
            os.close(descriptor)

    threads = [threading.Thread(target=work, args=(f"thread{number}",)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work("child")
            code = 0
        finally:
            os._exit(code)
    work("parent")

    assert os.waitpid(child, 0)[1] == 0
    assert len(list(tmp_path.glob("*-*"))) == 250


def test_a_script_that_closes_every_descriptor_loses_nothing(
    server: Server, tmp_path: Path
) -> None:
    hands = hands_of(str(tmp_path / ("store" * 30)))
    assert isinstance(hands, RemoteHands)
    hands.mkdir(str(tmp_path / "first"))
    connection = hands._line.socket
    assert connection is not None
    os.close(connection.fileno())

    hands.mkdir(str(tmp_path / "second"))

    assert (tmp_path / "second").is_dir()


def test_a_server_that_has_gone_is_an_error(tmp_path: Path) -> None:
    server = Server(tmp_path)
    hands = hands_of(str(tmp_path))
    hands.mkdir(str(tmp_path / "first"))
    server.close()

    with pytest.raises(OSError):
        hands.mkdir(str(tmp_path / "second"))


def test_what_is_no_request_ends_the_connection_only(server: Server, tmp_path: Path) -> None:
    folder = os.open(tmp_path / ("store" * 30), os.O_PATH)
    for words in (b"{", b"[]", b'["format", "/"]', b'["open"]', b"7"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
            stranger.connect(f"/proc/self/fd/{folder}/{SOCKET}")
            stranger.send(words)
            assert stranger.recv(100) == b""
    os.close(folder)

    hands_of(str(tmp_path / ("store" * 30))).mkdir(str(tmp_path / "folder"))


def test_a_descriptor_can_be_given(server: Server, tmp_path: Path) -> None:
    hands = hands_of(str(tmp_path / ("store" * 30)))
    assert isinstance(hands, RemoteHands)
    (tmp_path / "answer").write_text("words")
    descriptor = os.open(tmp_path / "answer", os.O_RDONLY)

    hands.give(descriptor)
    os.close(descriptor)

    assert server.hands.taken is not None
    with os.fdopen(server.hands.taken) as file:
        assert file.read() == "words"
