"""Tries neusight with one Python and one torch, and adds a row to PLATFORMS.md.

    python benchmarks/platforms.py --python python3.12 --torch 2.12.1
    python benchmarks/platforms.py --python python3.10 --torch 2.11.0 --environment ~/torch2.11
    python benchmarks/platforms.py --torch 2.15 --stages names
    python benchmarks/platforms.py --table

Makes an environment of its own (`--environment` keeps it, or goes on with one that is there),
installs that torch and this checkout, and runs in it: the table of torch's private names
(neusight_hooks/compatibility), `neusight doctor`, three examples, and quick tests. `--torch 2.15`
takes the newest patch of that release. What the examples' forecasts say is compared with those of
the Python that runs this command. pip decides which build comes (a CUDA build has 5 GB); what it
says is said where it finds none.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ROWS = ROOT / "benchmarks" / "platforms.csv"
PAGE = ROOT / "PLATFORMS.md"
#: Around the table in PLATFORMS.md.
BEGIN, END = "<!-- table: python benchmarks/platforms.py --table -->\n", "<!-- end -->"

#: Programs by the column that reports them, with their arguments.
PROGRAMS = {
    "gpt2": ("train_gpt2.py",),
    "fsdp2": ("--world-size", "8", "train_fsdp.py", "--size", "tiny", "--seq", "256"),
    "compiled": (
        *("train_gpt2_compiled.py", "--size", "tiny", "--batch", "2"),
        *("--seq", "64"),
    ),
}
STAGES = ("names", "doctor", *PROGRAMS, "tests")
#: What depends on torch's private names, and goldens; about a minute of CPU in all.
TESTS = (
    "tests/fake_cuda/test_patching.py",
    "tests/fake_cuda/test_modules.py",
    "tests/fake_cuda/torch_api",
    "tests/recording/dispatch",
    "tests/recording/handlers",
    "tests/physics/test_prices.py",
    "tests/end_to_end/test_models.py",
)
#: What neusight and those tests need beside torch.
NEEDED = ("torch-tb-profiler>=0.4.3", "tensorboard>=2.14", "numpy", "typing-extensions>=4.10")
FOR_TESTS = ("pytest>=8", "pytest-xdist>=3.6", "hypothesis>=6.100")
#: Seconds after which a stage counts as hanging.
LIMIT_S = 3600
#: Fields of a forecast that name the torch.
NAMES_TORCH = ("torch_version",)


@dataclass(frozen=True)
class Row:
    """What came of one Python and one torch: words for each stage."""

    torch: str
    python: str
    date: str
    names: str = "-"
    doctor: str = "-"
    gpt2: str = "-"
    fsdp2: str = "-"
    compiled: str = "-"
    tests: str = "-"


def ran(command: list[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command, ended; its words are kept."""
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def last_text(done: subprocess.CompletedProcess[str]) -> str:
    """The last line that a command wrote."""
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return lines[-1].strip() if lines else f"exit code {done.returncode}"


def make_environment(python: str, torch: str, folder: Path) -> str:
    """Installs; empty, or why it cannot be had."""
    if not (folder / "bin" / "python").exists():
        subprocess.run([python, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    # `===` keeps pip from a build with a label (2.13.0+cpu) where a plain one is asked for.
    wanted = f"torch==={torch}" if torch.count(".") > 1 else f"torch=={torch}.*"
    for what in (
        ["--upgrade", "pip", "setuptools>=77", "wheel"],
        [wanted, *NEEDED, *FOR_TESTS],
        ["--no-deps", "--no-build-isolation", "-e", str(ROOT)],
    ):
        done = ran([*pip, *what], folder)
        if done.returncode:
            return last_text(done)
    return ""


def forecast(python: Path, program: tuple[str, ...], folder: Path) -> dict[str, Any] | str:
    """The figures of a program's forecast as that Python gives them, or why there are none."""
    figures = folder / "figures.json"
    figures.unlink(missing_ok=True)
    words = [str(ROOT / "examples" / word) if word.endswith(".py") else word for word in program]
    command = [str(python), "-m", "neusight", "run", "--gpu", "H100", "--json", str(figures)]
    done = ran([*command, *words], folder, XDG_CACHE_HOME=str(folder / "cache"))
    if done.returncode or not figures.exists():
        return last_text(done)
    found: dict[str, Any] = json.loads(figures.read_text())
    return found


def difference(found: dict[str, Any], reference: dict[str, Any]) -> str:
    """The step in ms, and what of the figures is not as in the reference."""
    step_ms = found["step_latency_us"]["median"] / 1000
    keys = sorted(
        key
        for key in found.keys() | reference.keys()
        if key not in NAMES_TORCH and found.get(key) != reference.get(key)
    )
    if not keys:
        return f"{step_ms:.2f} ms, same"
    other_ms = reference["step_latency_us"]["median"] / 1000
    kernels = found["num_kernels"], reference["num_kernels"]
    return (
        f"{step_ms:.2f} ms ({step_ms / other_ms - 1:+.1%}), {kernels[0]} kernels "
        f"({kernels[0] - kernels[1]:+d}); differs in {', '.join(keys)}"
    )


def eager_reason(found: dict[str, Any]) -> str:
    """Why a compiled program was forecast as an eager one; empty where it was not."""
    return next((text for text in found["warnings"] if "forecast as eager" in text), "")


def tested(python: Path, folder: Path) -> str:
    """How many of the quick tests passed, and which did not."""
    options = ("-q", "-n", "0", "-o", f"cache_dir={folder}", "-m", "not slow")
    done = ran(
        [str(python), "-m", "pytest", *options, *TESTS], ROOT, XDG_CACHE_HOME=str(folder / "cache")
    )
    (folder / "tests.txt").write_text(done.stdout + done.stderr)
    counts = re.findall(r"\d+ (?:passed|failed|skipped|errors?)", last_words_of(done.stdout))
    return ", ".join(counts) or f"fails: {last_text(done)}"


def last_words_of(text: str) -> str:
    """The last line that is not empty."""
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""


def versions(python: Path) -> tuple[str, str]:
    """Torch's and Python's."""
    asked = "import platform, torch; print(torch.__version__, platform.python_version())"
    torch, version = ran([str(python), "-W", "ignore", "-c", asked], Path.cwd()).stdout.split()
    return torch, version


def expected(name: str, folder: Path) -> dict[str, Any]:
    """What the Python of this command says of a program; kept in the folder."""
    kept = folder / f"{name}.json"
    if not kept.exists():
        figures = forecast(Path(sys.executable), PROGRAMS[name], folder)
        if isinstance(figures, str):
            raise SystemExit(f"{name} fails with {sys.executable}: {figures}")
        kept.write_text(json.dumps(figures))
    found: dict[str, Any] = json.loads(kept.read_text())
    return found


def tried(environment: Path, reference: Path, stages: list[str]) -> Row:
    """Runs the stages in the environment, a line of progress each; what is left out stays."""
    python = environment / "bin" / "python"
    folder = environment / "tried"
    folder.mkdir(exist_ok=True)
    torch, version = versions(python)
    old = [row for row in rows() if (row.torch, row.python) == (torch, version)]
    words = asdict(old[0]) if old else asdict(Row(torch, version, ""))
    words["date"] = f"{datetime.now(timezone.utc):%Y-%m-%d}"
    begun = time.monotonic()
    for stage in stages:
        words[stage] = said_of(stage, python, folder, reference)
        print(f"  {time.monotonic() - begun:5.0f} s  {stage:9} {words[stage]}", flush=True)
    return Row(**words)


def said_of(stage: str, python: Path, folder: Path, reference: Path) -> str:
    """What comes of one stage, in words."""
    if stage == "names":
        return missing_names(python, folder)
    if stage == "doctor":
        command = [str(python), "-m", "neusight", "doctor"]
        doctor = ran(command, folder, XDG_CACHE_HOME=str(folder / "cache"))
        [line] = [line for line in doctor.stdout.splitlines() if line[6:18].strip() == "torch"]
        return "ok" if doctor.returncode == 0 else f"fails: {line[19:]}"
    if stage == "tests":
        return tested(python, folder)
    found = forecast(python, PROGRAMS[stage], folder)
    if isinstance(found, str):
        return f"fails: {found}"
    return eager_reason(found) or difference(found, expected(stage, reference))


def missing_names(python: Path, folder: Path) -> str:
    """Private names of torch that neusight relies on and this torch does not have."""
    listing = (
        "from neusight.compatibility.torch_internals import missing, table\n"
        "print(len({row.name for row in table()}))\n"
        "for row in missing(): print(f'{row.name} ({row.feature})')"
    )
    done = ran([str(python), "-W", "ignore", "-c", listing], folder)
    if done.returncode:
        return f"fails: {last_text(done)}"
    count, *absent = done.stdout.splitlines()
    return f"{len(absent)} of {count} missing: {'; '.join(absent)}" if absent else f"all {count}"


def rows() -> list[Row]:
    """All that were tried, by torch and Python."""
    if not ROWS.exists():
        return []
    with ROWS.open(newline="") as file:
        return [Row(**row) for row in csv.DictReader(file)]


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0]))


def keep(row: Row) -> None:
    """Puts the row into the file, in place of an older one of the same versions."""
    others = [old for old in rows() if (old.torch, old.python) != (row.torch, row.python)]
    with ROWS.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        for each in sorted(
            [*others, row], key=lambda each: (_number(each.torch), each.torch, _number(each.python))
        ):
            writer.writerow(asdict(each))


def table(found: list[Row]) -> str:
    """The rows in Markdown."""
    names = [field.name for field in fields(Row)]
    lines = [" | ".join(names), " | ".join("---" for _ in names)]
    lines += [" | ".join(str(value) for value in asdict(row).values()) for row in found]
    return "".join(f"| {line} |\n" for line in lines)


def write_page() -> None:
    """Puts the table into PLATFORMS.md."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table(rows())}\n{END}{rest.partition(END)[2]}")


def main() -> int:
    """Tries, or writes the table; 1 where something failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", default=sys.executable, help="whose environment it is")
    parser.add_argument("--torch", metavar="X.Y.Z", help="the release, as pip names it")
    parser.add_argument("--environment", type=Path, help="keep the environment there")
    parser.add_argument("--reference", type=Path, help="keep there what it is compared with")
    parser.add_argument("--stages", nargs="+", choices=STAGES, help="only these")
    parser.add_argument("--table", action="store_true", help="only write the table again")
    options = parser.parse_args()
    if options.table:
        write_page()
        return 0
    if not options.torch:
        parser.error("say which release: --torch 2.12.1")
    temporary = Path(tempfile.mkdtemp(prefix="neusight-platform-"))
    try:
        environment = (options.environment or temporary / "environment").resolve()
        reference = options.reference or temporary / "reference"
        reference.mkdir(parents=True, exist_ok=True)
        print(f"torch {options.torch}, {options.python}", flush=True)
        problem = make_environment(options.python, options.torch, environment)
        if problem:
            print(f"  cannot be had: {problem}")
            return 1
        row = tried(environment, reference.resolve(), options.stages or [*STAGES])
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    keep(row)
    write_page()
    return int("fail" in " ".join(asdict(row).values()))


if __name__ == "__main__":
    raise SystemExit(main())
