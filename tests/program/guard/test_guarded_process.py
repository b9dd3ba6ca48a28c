"""A program in a process of its own does as ever, and cannot touch what is not its own."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from guarded_files import GUARDS, guard_by, work_in

from neusight.fake_cuda.store.leftovers import remove_leftovers
from neusight.integrations.cli.main import main
from neusight.integrations.program.guard.guarded_process import (
    Terminated,
    checked_keep_folder,
    ending_on_sigterm,
    in_guarded_process,
    is_guarded,
)
from neusight.integrations.program.guard.results import UnknownResultError
from neusight.interrupts import RELAY
from neusight.predictors.errors import OptionError
from warm_python import run_python

WORDS = ("train.py",)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return work_in(tmp_path, monkeypatch)


@pytest.fixture
def fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the kernel refuses a view of the file system."""
    guard_by("fallback", monkeypatch)


@pytest.fixture(params=GUARDS)
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to keep the user's files as they are."""
    guard_by(request.param, monkeypatch)
    return str(request.param)


def left_in_temporary(home: Path) -> list[str]:
    return sorted(path.name for path in (home.parent / "tmp").iterdir())


# -- the process ---------------------------------------------------------------------------------


def test_what_the_work_returns_comes_back(home: Path, either: str) -> None:
    ended = in_guarded_process(lambda store: {"pid": os.getpid(), "sum": 3}, WORDS)

    assert ended.answer is not None
    assert ended.answer["sum"] == 3
    assert ended.answer["pid"] != os.getpid()
    assert (ended.failure, ended.exit_code) == ("", 0)
    assert left_in_temporary(home) == []


def test_garbage_is_looked_for_in_what_the_work_makes_alone(home: Path) -> None:
    before = gc.get_freeze_count()

    ended = in_guarded_process(lambda store: (gc.isenabled(), gc.get_freeze_count()), WORDS)

    assert ended.answer is not None
    is_collecting, num_left_out = ended.answer
    assert is_collecting and num_left_out > 100_000
    assert gc.isenabled() and gc.get_freeze_count() == before


def test_what_the_work_raises_is_raised_with_its_frames(home: Path, either: str) -> None:
    def work(store: Any) -> None:
        raise OptionError("not like this")

    with pytest.raises(OptionError, match="not like this") as caught:
        in_guarded_process(work, WORDS)

    assert 'raise OptionError("not like this")' in str(caught.value.__cause__)
    assert left_in_temporary(home) == []


def test_what_cannot_be_sent_is_said_in_text(home: Path) -> None:
    class Local(Exception):
        pass

    def work(store: Any) -> None:
        raise Local("words")

    with pytest.raises(RuntimeError, match="Local: words"):
        in_guarded_process(work, WORDS)


@pytest.mark.parametrize(
    ("end", "failure", "code"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "was killed by SIGKILL (mostly", 137),
        (lambda: os.kill(os.getpid(), signal.SIGRTMIN + 3), "was killed by signal 37", 165),
        (lambda: os._exit(7), "ended its process at once, with status 7", 7),
        (lambda: os._exit(0), "ended its process at once, with status 0", 1),
        (lambda: os._exit(130), "interrupted", 130),
    ],
    ids=["kill", "real-time", "exit", "exit well", "interrupt"],
)
def test_a_process_that_ends_without_an_answer_is_shown_in_text(
    end: Callable[[], object], failure: str, code: int, home: Path, either: str
) -> None:
    def work(store: Any) -> None:
        Path(tempfile.mkdtemp()).joinpath("x").write_text("x")
        end()

    ended = in_guarded_process(work, WORDS)

    assert ended.answer is None
    assert failure in ended.failure
    assert ended.exit_code == code
    assert left_in_temporary(home) == []


def test_ctrl_c_is_the_childs(home: Path, either: str) -> None:
    def work(store: Any) -> str:
        signal.signal(RELAY, signal.SIG_IGN)  # as before a terminal, where both get it already
        try:
            os.kill(os.getppid(), signal.SIGINT)  # the terminal signals both
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            return "interrupted in its own way"
        return "nothing came"

    assert in_guarded_process(work, WORDS).answer == "interrupted in its own way"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_fork_that_runs_to_the_end_has_no_result(home: Path, either: str) -> None:
    def work(store: Any) -> str:
        child = os.fork()
        if child == 0:
            return "the fork's"
        os.waitpid(child, 0)
        return "the script's"

    assert in_guarded_process(work, WORDS).answer == "the script's"


def test_a_script_that_closes_every_descriptor_still_reports(home: Path, either: str) -> None:
    def work(store: Any) -> str:
        os.closerange(3, 256)
        return "answer"

    assert in_guarded_process(work, WORDS).answer == "answer"


def test_what_stands_stays_and_what_is_new_goes_but_from_caches(
    home: Path, fallback: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "given").mkdir()
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))  # it holds the working directory
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "given"))  # an argument lies in it
    places = {"home": home, **{name: tmp_path / name for name in ("given", "hub", "tmp")}}

    def work(store: Any) -> str:
        for folder in (*places.values(), Path(tempfile.gettempdir())):
            (folder / "file").write_text("x")
        for line in ("echo x >> mine.txt", "chmod 600 mine.txt", "mv mine.txt yours.txt"):
            subprocess.run(line, shell=True, check=True)
        Path("/dev/null").write_text("x")
        return Path("yours.txt").read_text()

    ended = in_guarded_process(work, ("train.py", str(tmp_path / "given" / "set")))

    assert (ended.answer, ended.refused) == ("minex\n", "")
    assert (home / "mine.txt").read_text() == "mine"
    assert {name for name, folder in places.items() if (folder / "file").exists()} == {"hub"}


def test_what_is_refused_is_listed_with_its_program(home: Path, fallback: None) -> None:
    def work(store: Any) -> tuple[list[int], int]:
        python = f'{sys.executable} -S -c \'import os; os.setxattr("folder", "user.k", b"v")\''
        lines = ("chmod 700 folder", "touch folder", python)
        done = [subprocess.run(line, stderr=subprocess.DEVNULL, shell=True) for line in lines]
        with contextlib.suppress(PermissionError):
            os.setxattr("mine.txt", "user.key", b"value")
        return [one.returncode for one in done], stat.S_IMODE(Path("folder").stat().st_mode)

    (home / "folder").mkdir()
    before = (home / "folder").stat()

    ended = in_guarded_process(work, WORDS)

    assert ended.answer == ([0, 0, 1], 0o700)
    assert (home / "folder").stat() == before
    program = Path(sys.executable).name
    assert ended.refused == (
        f"refused, to keep your files as they are: changes by {program} (folder), "
        "the script (mine.txt); --allow-writes lets them"
    )


def test_caches_that_stay_empty_are_not_left_behind(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "a" / "hub"))

    assert in_guarded_process(lambda store: os.environ["HF_HOME"], WORDS).answer

    assert not (tmp_path / "a").exists()


def test_what_any_program_makes_is_there_meanwhile_and_is_kept_where_asked(
    home: Path, fallback: None
) -> None:
    def work(store: Any) -> str:
        subprocess.run("mkdir a; echo words > a/new.txt; mv a b", shell=True, check=True)
        return Path("b/new.txt").read_text()

    kept = home.parent / "kept"

    assert in_guarded_process(work, WORDS, keep=str(kept)).answer == "words\n"

    assert [path.name for path in home.iterdir()] == ["mine.txt"]
    assert (kept / "b" / "new.txt").read_text() == "words\n"


@pytest.mark.parametrize(
    ("is_command_line", "allow_writes", "expected"),
    [(True, False, True), (True, True, False), (False, False, False)],
)
def test_only_the_command_line_is_guarded(
    is_command_line: bool, allow_writes: bool, expected: bool
) -> None:
    assert is_guarded(is_command_line=is_command_line, allow_writes=allow_writes) == expected


def test_a_folder_to_keep_writes_in_is_new_or_empty(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "train.py").write_text("1 / 0")
    (home / "empty").mkdir()
    checked_keep_folder(None)
    checked_keep_folder("empty")
    checked_keep_folder("new")

    assert main(["run", "--gpu", "H100", "--keep-writes", ".", "train.py"]) == 2
    assert main(["check", "--gpu", "H100", "--keep-writes", "mine.txt", "train.py"]) == 2

    assert main(["run", "--gpu", "H100", "--keep-writes", "new", "--allow-writes", "train.py"]) == 2

    reported = capsys.readouterr().err
    assert "leave one of them out" in reported
    assert "is not empty; name a new folder" in reported
    assert "mine.txt is a file" in reported
    assert "ZeroDivisionError" not in reported


def test_without_a_guard_the_same_options_hold(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "train.py").write_text(
        "import atexit, torch\nfrom pathlib import Path\ntorch.ones(3, device='cuda') + 1\n"
        "atexit.register(lambda: Path('mine.txt').write_text('mine!'))\n"
    )

    assert main(["run", "--gpu", "H100", "--keep-writes", "kept", "train.py"]) == 0
    assert (home / "mine.txt").read_text() == "mine"
    assert (home / "kept" / "mine.txt").read_text() == "mine!"
    assert "guarded by the overlay alone" in capsys.readouterr().out

    assert main(["run", "--gpu", "H100", "--quiet", "--allow-writes", "train.py"]) == 0
    assert (home / "mine.txt").read_text() == "mine!"


# -- the command line ----------------------------------------------------------------------------


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "neusight", *words]


def neusight(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    if not stdin:
        return run_python("-m", "neusight", *words)
    return subprocess.run(command(*words), capture_output=True, text=True, input=stdin)


MANY = """
import atexit, json, subprocess, sys, tempfile, threading
import neusight, torch
from neusight.predictors import Kernel
from torch.utils.data import DataLoader

said = {}
def at_exit():
    with open("said.json", "w") as file:
        json.dump(said, file)
atexit.register(at_exit)

@torch.library.custom_op("many::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2

@double.register_fake
def _(x):
    return torch.empty_like(x)

@neusight.register_op("many::double")
def kernels(call, math):
    return [Kernel.elementwise("double", call.tensor("x").numel, dtype="float32")]

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return torch.ones(3) * index

def main():
    said["asked"] = input("name? ")
    said["name"] = __name__
    said["arguments"] = sys.argv[1:]
    with tempfile.NamedTemporaryFile() as file:
        said["temporary"] = subprocess.run(["touch", file.name]).returncode
    for context in ("fork", "spawn"):
        loader = DataLoader(Data(), batch_size=2, num_workers=2, multiprocessing_context=context)
        said[context] = sum(batch.sum().item() for batch in loader)
    said["product"] = (torch.ones(300, 300) @ torch.ones(300, 300))[0, 0].item()
    thread = threading.Thread(target=lambda: said.update(thread=torch.ones(3).sum().item()))
    thread.start()
    x = torch.ones(1000, device="cuda")
    for _ in range(3):
        double(x)
    thread.join()
    print("to be seen")

if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
def test_a_script_does_as_ever_and_nothing_that_stood_there_changes(
    home: Path, fallback: None
) -> None:
    (home / "many.py").write_text(MANY)
    before = {path.name: path.read_bytes() for path in home.iterdir()}

    done = neusight(
        "run", "--gpu", "H100", "--strict", "--keep-writes", "kept", "--json", "o.json", "many.py",
        "--lr", "1", stdin="Ada\n",
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert "to be seen" in done.stdout
    assert "guarded by the overlay, and by the kernel behind it" in done.stdout
    after = {path.name: path.read_bytes() for path in home.iterdir() if path.is_file()}
    assert json.loads(after.pop("o.json"))["unmapped"] == []
    assert after == before
    assert json.loads((home / "kept" / "said.json").read_text()) == {
        "asked": "Ada", "name": "__main__", "arguments": ["--lr", "1"], "temporary": 0,
        "fork": 18.0, "spawn": 18.0, "product": 300.0, "thread": 3.0,
    }  # fmt: skip
    assert left_in_temporary(home) == []


def test_an_error_that_the_guard_made_says_so(home: Path, fallback: None) -> None:
    (home / "train.py").write_text(
        "import ctypes, torch\ntorch.ones(3, device='cuda') + 1\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "if libc.setxattr(b'mine.txt', b'user.k', b'v', 1, 0):\n"
        "    raise OSError(ctypes.get_errno(), 'no attributes')\n"
    )

    done = neusight("run", "--gpu", "H100", "train.py")

    assert done.returncode == 3
    assert "changes by the script (mine.txt); --allow-writes lets them" in done.stderr
    assert os.listxattr(home / "mine.txt") == []


def test_check_is_guarded_and_writes_its_baseline(home: Path, either: str) -> None:
    (home / "train.py").write_text(
        "import os, torch\nmodel = torch.nn.Linear(8, 8).cuda()\n"
        "for _ in range(3):\n    model(torch.ones(8, 8, device='cuda'))\n"
        "os.system('rm -f mine.txt')\n"
    )

    done = neusight("check", "--gpu", "H100", "--update", "train.py")

    assert done.returncode == 0, done.stderr
    assert "train.py on H100" in (home / "neusight.json").read_text()
    assert (home / "mine.txt").read_text() == "mine"
    assert left_in_temporary(home) == []


def test_a_script_whose_process_is_killed_has_failed(home: Path, either: str) -> None:
    (home / "train.py").write_text(
        "import os, torch\ntorch.ones(3, device='cuda')\nopen('new.txt', 'w').write('x')\n"
        "os.kill(os.getpid(), 9)\n"
    )

    done = neusight("run", "--gpu", "H100", "train.py")

    assert done.returncode == 3
    assert "neusight: the script failed: its process was killed by SIGKILL" in done.stderr
    assert left_in_temporary(home) == []
    assert not (home / "new.txt").exists()


#: Says that it has begun, then waits for what comes.
WAITING = """
import os, signal, torch
torch.ones(3, device="cuda")
open("new.txt", "w").write("x")
print(os.getpid(), flush=True)
while True:
    signal.pause()
"""


def begun(home: Path) -> tuple[subprocess.Popen[str], int]:
    """The command, and the process of its script, which waits."""
    (home / "train.py").write_text(WAITING)
    process = subprocess.Popen(
        command("run", "--gpu", "H100", "train.py"), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def test_sigterm_in_a_destructor_is_not_lost() -> None:
    class Destroyed:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            self.is_reached = True

    with pytest.raises(Terminated), ending_on_sigterm():
        Destroyed()
        while True:
            signal.pause()


def test_sigterm_leaves_nothing_behind(home: Path, either: str) -> None:
    process, _ = begun(home)

    process.terminate()
    with process:
        pass

    assert process.returncode == 128 + signal.SIGTERM
    assert left_in_temporary(home) == []
    assert sorted(path.name for path in home.iterdir()) == ["mine.txt", "train.py"]


def test_what_a_killed_run_leaves_goes_at_the_next_start(home: Path, either: str) -> None:
    process, script = begun(home)
    watched = os.pidfd_open(script)

    process.kill()
    with process:
        pass
    import select

    assert select.select([watched], [], [], 60)[0] == [watched]  # the script does not outlive it
    os.close(watched)
    assert (home / "new.txt").exists() == (either == "fallback")
    [store] = left_in_temporary(home)

    assert remove_leftovers(str(home.parent / "tmp")) == [str(home.parent / "tmp" / store)]

    assert left_in_temporary(home) == []
    assert sorted(path.name for path in home.iterdir()) == ["mine.txt", "train.py"]


def test_an_answer_that_is_too_large_for_a_file_is_said_so(home: Path, either: str) -> None:
    def work(store: Any) -> bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
        return bytes(10_000)

    ended = in_guarded_process(work, WORDS)

    assert (ended.answer, ended.exit_code) == (None, 1)
    assert ended.failure == (
        "what was recorded could not be written to the temporary folder: File too large"
    )
    assert left_in_temporary(home) == []


def test_an_answer_that_would_run_something_does_not(home: Path, either: str) -> None:
    class Calling:
        def __reduce__(self) -> Any:
            return os.system, ("echo called > called.txt",)

    with pytest.raises(UnknownResultError, match=r"posix\.system"):
        in_guarded_process(lambda store: Calling(), WORDS)

    assert sorted(path.name for path in home.iterdir()) == ["mine.txt"]
