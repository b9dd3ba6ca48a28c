"""Nothing of the user's changes, whatever a script does; and it reads back what it would have."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from guarded_files import GUARDS, guard_by, standing

import neusight
from user_files import (
    C_LIBRARIES,
    CHILDREN_AND_EXIT,
    CUDA_WORK,
    MOVES_AND_REMOVALS,
    OTHERS,
    PREAMBLE,
    PYTHON,
    WORKER,
    furnish,
)

GROUPS = {"python": PYTHON, "C libraries": C_LIBRARIES, "moves": MOVES_AND_REMOVALS}
WAYS = [
    pytest.param(code, id=f"{group}: {name}")
    for group, ways in GROUPS.items()
    for name, code in ways.items()
]


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def seen_by(code: str, folder: Path) -> Any:
    names: dict[str, Any] = {"__name__": "way"}
    # torch.jit.script reads the source of a class.
    exec(compile(PREAMBLE, str(Path(__file__).parent / "way_preamble.py"), "exec"), names)
    names["Twice"] = Twice
    with working_in(folder):
        exec(compile(code, "way.py", "exec"), names)
    seen = names["seen"]
    return (
        sorted(seen) if isinstance(seen, list) and all(isinstance(s, str) for s in seen) else seen
    )


class Twice(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


IGNORED = (
    "ignore:unclosed file", "ignore:no CUDA work", "ignore:torch.distributed is",
    "ignore:Detected an existing",
    "ignore:.*is deprecated", "ignore:.*torch.package", "ignore:.*unclosed",
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore:Duplicate name",
)  # fmt: skip


@pytest.mark.filterwarnings(*IGNORED)
@pytest.mark.parametrize("code", WAYS)
def test_in_a_block_the_files_stay_and_the_script_reads_what_it_wrote(
    code: str, tmp_path: Path
) -> None:
    for name in ("real", "forecast"):
        furnish(tmp_path / name)
    real = neusight.forecast_on("H100", allow_writes=True) if "cuda" in code else nullcontext()
    with real:
        expected = seen_by(code, tmp_path / "real")
    before = standing(tmp_path / "forecast")

    with neusight.forecast_on("H100"):
        torch.ones(2, device="cuda")
        seen = seen_by(code, tmp_path / "forecast")

    assert repr(seen).replace("forecast", "real") == repr(expected)
    assert standing(tmp_path / "forecast") == before


def all_ways(ways: dict[str, str]) -> str:
    """A script that tries each way in a folder of its own, and prints what it reads back."""
    lines = [PREAMBLE, "torch.ones(2, device='cuda')", "start = os.getcwd()"]
    for number, code in enumerate(ways.values()):
        lines += [f"os.chdir(os.path.join(start, 'way-{number}'))", code, "os.chdir(start)"]
        lines += [f"print({number}, repr(sorted(seen) if type(seen) is list and all("
                  "type(item) is str for item in seen) else seen))"]  # fmt: skip
    return "\n".join(lines)


@pytest.fixture(params=GUARDS)
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What keeps the user's files as they are under `neusight run`."""
    guard_by(request.param, monkeypatch)
    return str(request.param)


#: Of OTHERS, those that read back something else in the fallback, which refuses them: a socket
#: needs a place that is its own.
REFUSED = {"a socket", "setxattr", "a file without a name, linked"}


@pytest.mark.slow
@pytest.mark.filterwarnings(*IGNORED)
@pytest.mark.parametrize("group", [*GROUPS, "others"])
def test_so_it_is_under_the_command(group: str, mode: str, tmp_path: Path) -> None:
    ways = GROUPS.get(group) or {
        name: _refusable(code) for name, code in OTHERS.items() if _is_possible(code)
    }
    for number in range(len(ways)):
        furnish(tmp_path / "real" / f"way-{number}")
        furnish(tmp_path / "way" / f"way-{number}")
    (tmp_path / "way" / "script.py").write_text(all_ways(ways))
    before = standing(tmp_path / "way")
    expected = {}
    for number, code in enumerate(ways.values()):
        real = neusight.forecast_on("H100", allow_writes=True) if "cuda" in code else nullcontext()
        with real:
            expected[number] = repr(seen_by(code, tmp_path / "real" / f"way-{number}"))
    assert [text for text in expected.values() if "refused" in text] == []

    done = neusight_run("script.py", tmp_path / "way")

    assert done.returncode == 0, done.stderr
    assert standing(tmp_path / "way") == before
    text = done.stdout.replace(f"{tmp_path}/way/", f"{tmp_path}/real/")
    seen = dict(line.split(" ", 1) for line in text.splitlines() if line[:1].isdigit())
    names = list(ways)
    different = {names[n]: (seen[str(n)], expected[n]) for n in expected
                 if seen[str(n)] != expected[n]}  # fmt: skip
    assert different.keys() <= (REFUSED if mode == "fallback" else set()), different


def _is_possible(code: str) -> bool:
    """Whether the packages that it imports are installed."""
    named = re.findall(r"(?:from|import) (\w+)", code)
    packages = {name for name in named if name in ("pandas", "PIL", "pyarrow", "safetensors",
                                                   "tokenizers", "transformers")}  # fmt: skip
    return all(importlib.util.find_spec(name) for name in packages)


def _refusable(code: str) -> str:
    """A way of which an error is what it saw."""
    body = "\n".join(f"    {line}" for line in code.splitlines())
    return f"try:\n{body}\nexcept Exception as error:\n    seen = f'refused: {{error}}'"


def neusight_run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-m", "neusight", "run", "--quiet", "--gpu", "H100"]
    return subprocess.run([*command, script], cwd=folder, capture_output=True, text=True)


#: Runs `neusight run SCRIPT` for each folder named, in a fork of one process that has torch.
DRIVER = """
import contextlib, os, sys
import torch
import neusight.session, neusight.fake_cuda.session
from neusight.integrations.cli.main import main

for folder in sys.argv[1:]:
    pid = os.fork()
    if pid == 0:
        os.chdir(folder)
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{folder}.{name}", os.O_WRONLY | os.O_CREAT), number)
        sys.argv = ["neusight", "run", "--quiet", "--gpu", "H100", "script.py"]
        sys.path[0] = folder
        code = 70
        try:
            code = main()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    print(folder, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@pytest.mark.slow
def test_children_and_exits_share_the_files_and_leave_all_as_it_was(
    mode: str, tmp_path: Path
) -> None:
    # Sockets of multiprocessing are in it, whose paths have 108 bytes at most.
    temporary = Path(tempfile.mkdtemp(dir="/tmp"))
    folders = {name: tmp_path / f"way-{n}" for n, name in enumerate(CHILDREN_AND_EXIT)}
    for name, folder in folders.items():
        furnish(folder)
        (folder / "worker.py").write_text(WORKER)
        code, _ = CHILDREN_AND_EXIT[name]
        (folder / "script.py").write_text(f"{PREAMBLE}\n{CUDA_WORK}\n{code}\n")
    before = {name: standing(folder) for name, folder in folders.items()}

    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", DRIVER, *map(str, folders.values())],
        capture_output=True, text=True, env={**os.environ, "TMPDIR": str(temporary)},
    )  # fmt: skip

    codes = {line.split(" ")[0]: int(line.split(" ")[1]) for line in done.stdout.splitlines()}
    for name, folder in folders.items():
        reported = (name, Path(f"{folder}.out").read_text(), Path(f"{folder}.err").read_text())
        _, wanted = CHILDREN_AND_EXIT[name]
        assert codes.get(str(folder)) == wanted, reported
        assert standing(folder) == before[name], reported
        for text in READ_BACK.get(name, ()):
            assert text in reported[1], reported
    assert list(temporary.glob("neusight-*")) == []
    shutil.rmtree(temporary)


READ_BACK = {
    "a forked child writes": ["0 precious notes\nchild n"],
    "a forked child removes": ["0 False"],
    "a spawned child writes": ["0 precious notes\nchild", "'new.txt'"],
    "a child of a fork server writes": ["0 precious notes\nchild", "'new.txt'"],
    "a child sees what was written before": ["beforechild"],
    "os.fork": ["child"],
    "a forked child that leaves by sys.exit": ["child True"],
    "a pool of processes": ["[0, 1, 2, 3]", "['part-0', 'part-1', 'part-2', 'part-3']"],
    "workers of a DataLoader": ["6\n", "['0', '1', '1,2.0', '2', '3', 'step,loss']"],
    "threads": ["'19'", "'1,2.0'"],
    "another program reads what is new": ["for cat"],
    "a write in finally": ["finally"],
    "a handle opened by an import": ["step,loss\n1,2.0\nline"],
}


@pytest.mark.filterwarnings(*IGNORED)
def test_a_module_imported_in_one_block_changes_no_file_in_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keeps_names.py").write_text(
        "from io import open\nimport os\nclass Files:\n    remove = os.remove\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in ("removed", "written"):
        Path(name).write_text("old")

    try:
        with neusight.forecast_on("H100"):
            torch.ones(2, device="cuda")
            keeps_names = importlib.import_module("keeps_names")
        with neusight.forecast_on("H100"):
            torch.ones(2, device="cuda")
            keeps_names.Files.remove("removed")
            with keeps_names.open("written", "w") as file:
                file.write("new")
    finally:
        sys.modules.pop("keeps_names", None)

    assert [Path(name).read_text() for name in ("removed", "written")] == ["old", "old"]
