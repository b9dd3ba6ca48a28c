"""`neusight doctor`: what this environment can do, what it lacks, and how to get it."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from neusight.compatibility.releases import CONTAINER_BUILD, CONTAINER_RUN, python_problem
from neusight.exit_codes import ExitCode
from neusight.integrations.cli.files import report_problems, write_files, write_json
from neusight.integrations.program.guard.guarded_process import (
    files_text,
    why_no_fallback,
    why_no_view,
)
from neusight.predictors.terminal_text import printable_text

HELP = "show what works in this environment"
DESCRIPTION = ""

State = Literal["ok", "absent", "problem"]

#: The name under which pip knows neusight.
_DISTRIBUTION = "neusight-hooks"
#: Free bytes below which traces of large models may not fit.
_LITTLE_SPACE_BYTES = 2**30
_GIB = 2**30
_VIEW_REMEDY = (
    'What this covers: GUIDE.md, "Your files". A view needs user namespaces, or in a container the '
    "capability SYS_ADMIN."
)
_MARKS: dict[State, str] = {"ok": "ok", "absent": "--", "problem": "!!"}


@dataclass(frozen=True)
class Finding:
    """One thing looked at: "absent" only costs the extra it names, a "problem" stops forecasts."""

    name: str
    state: State
    text: str
    remedy: str = ""

    @property
    def line(self) -> str:
        """One line, and a second where there is something to do."""
        line = f"  {_MARKS[self.state]}  {self.name:<12} {self.text}"
        return f"{line}\n{'':<19}{self.remedy}" if self.remedy else line


def add_arguments(doctor: argparse.ArgumentParser) -> None:
    """The options of `neusight doctor`."""
    doctor.add_argument("--json", metavar="FILE", help="write all findings there")


def run(options: argparse.Namespace) -> int:
    """Prints the findings; 0 where forecasts work here, 1 where they do not."""
    findings = examine()
    print(report(findings))
    document = {"schema_version": 1, "findings": [asdict(item) for item in findings]}
    _, unwritten = write_files([(options.json, lambda path: write_json(path, document))])
    code = report_problems(unwritten)
    return ExitCode.JUDGED if _problems(findings) else code


def examine() -> list[Finding]:
    """Looks at everything; never raises for what it finds."""
    return [_safely(name, look) for name, look in _EXAMINATIONS.items()]


def report(findings: Iterable[Finding]) -> str:
    """The findings, and the verdict below them."""
    findings = list(findings)
    problems = _problems(findings)
    verdict = (
        f"forecasts do not work here: {', '.join(item.name for item in problems)}"
        if problems
        else "forecasts work here: neusight run --gpu H100 train.py"
    )
    return printable_text("\n".join([*(finding.line for finding in findings), "", verdict]))


def _problems(findings: Iterable[Finding]) -> list[Finding]:
    return [item for item in findings if item.state == "problem"]


def _safely(name: str, look: Callable[[str], Finding]) -> Finding:
    try:
        return look(name)
    except Exception as error:  # one check that fails must not hide the others
        return Finding(name, "problem", f"{type(error).__name__}: {error}")


# -- what forecasts need -------------------------------------------------------------------------


def _python(name: str) -> Finding:
    version = platform.python_version()
    if sys.version_info < (3, 10):  # noqa: UP036  (a source tree runs without pip's check)
        return Finding(name, "problem", version, python_problem())
    return Finding(name, "ok", f"{version} ({sys.executable})", python_problem())


def _platform(name: str) -> Finding:
    text = f"{platform.system()} {platform.machine()}"
    if (platform.system(), platform.machine()) == ("Linux", "x86_64"):
        return Finding(name, "ok", f"{text}, {os.cpu_count()} cores")
    remedy = f"Proven on Linux x86-64 only. In a clone: {CONTAINER_BUILD}; then: {CONTAINER_RUN}"
    return Finding(name, "problem", text, remedy)


def _torch(name: str) -> Finding:
    if importlib.util.find_spec("torch") is None:
        return Finding(name, "problem", "not installed", "pip install torch==2.13.0")
    version = importlib.metadata.version("torch")
    # In a process of its own: torch must see no GPU, and a wrong build may crash.
    done = _run_python(
        "from neusight.fake_cuda.core import IS_CUDA_BUILD, self_check; self_check(); "
        "print('CUDA build' if IS_CUDA_BUILD else 'CPU build')",
        CUDA_VISIBLE_DEVICES="",
    )
    if done.returncode:
        return Finding(name, "problem", version, _last_line(done.stderr))
    return Finding(name, "ok", f"{version}, {done.stdout.strip()}, passes as CUDA (self-check)")


#: Prints a line for each private name that is missing: its name, what needs it, and what follows.
_MISSING_NAMES = (
    "from neusight.compatibility.torch_internals import FEATURES, missing, table\n"
    "print(len({row.name for row in table()}))\n"
    "for row in missing(): print(row.name, row.feature, FEATURES[row.feature], sep='\\t')\n"
)


def _torch_names(name: str) -> Finding:
    done = _run_python(_MISSING_NAMES, CUDA_VISIBLE_DEVICES="")
    if done.returncode:
        return Finding(name, "problem", "not looked up", _last_line(done.stderr))
    count, *lines = done.stdout.splitlines()
    if not lines:
        return Finding(name, "ok", f"all {count} private names of torch that neusight uses found")
    absent = [line.split("\t") for line in lines]
    opens = all(feature != "opening" for _, feature, _ in absent)
    return Finding(
        name,
        "absent" if opens else "problem",
        f"{len(absent)} of {count} private names of torch that neusight uses are missing",
        "; ".join(f"{item} ({feature}: {what})" for item, feature, what in absent),
    )


def _neusight(name: str) -> Finding:
    from neusight._version import __version__

    owners = importlib.metadata.packages_distributions().get("neusight", [])
    others = sorted(set(owners) - {_DISTRIBUTION})
    if others:
        return Finding(
            name,
            "problem",
            f"{__version__}, and {', '.join(others)} installs a package of that name too",
            f"pip uninstall {others[0]}, or use a virtual environment for each.",
        )
    return Finding(name, "ok", f"{__version__} ({Path(__file__).parents[3]})")


def _predictor(name: str) -> Finding:
    from neusight.predictors.gpu import gpus
    from neusight.predictors.kernel import Kernel
    from neusight.predictors.learned.correction import shipped_networks
    from neusight.predictors.registry import find_predictor, predict

    dict(shipped_networks())  # reads all: the error of a damaged one names it
    [estimate] = predict([Kernel.gemm(4096, 4096, 4096)], "H100")
    return Finding(
        name,
        "ok",
        f"{find_predictor().name}, {estimate.origin} weights read, {len(gpus())} GPUs known",
    )


def _space(name: str) -> Finding:
    folder = tempfile.gettempdir()
    with tempfile.TemporaryFile(dir=folder):
        pass
    free = shutil.disk_usage(folder).free
    text = f"{free / _GIB:.0f} GiB free in {folder}"
    if free < _LITTLE_SPACE_BYTES:
        return Finding(name, "problem", text, "Free some, or set TMPDIR to a larger disk.")
    return Finding(name, "ok", text)


# -- what extras need ----------------------------------------------------------------------------


def _gpu(name: str) -> Finding:
    if shutil.which("nvidia-smi") is None:
        return Finding(name, "absent", "none; forecasts need none, only `neusight measure` does")
    done = subprocess.run(
        ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True
    )
    found = ", ".join(line.strip() for line in done.stdout.splitlines() if line.strip())
    if done.returncode or not found:
        return Finding(name, "absent", f"nvidia-smi: {_last_line(done.stdout + done.stderr)}")
    return Finding(name, "ok", f"{found} (hidden from forecasts)")


def _files(name: str) -> Finding:
    refusal = why_no_view()
    words = files_text("overlay" if refusal else "view", is_guarded=True)
    is_whole = not refusal or not why_no_fallback()
    return Finding(name, "ok" if is_whole else "absent", words, _VIEW_REMEDY if refusal else "")


def _tensorboard(name: str) -> Finding:
    plugins = {entry.name for entry in importlib.metadata.entry_points(group="tensorboard_plugins")}
    versions = _versions(["tensorboard", "torch-tb-profiler"])
    if "neusight_repair" not in plugins:
        return Finding(
            name,
            "absent",
            f"{versions}; without the repair of the profiler plugin",
            "Install neusight with pip, so that TensorBoard finds its entry point.",
        )
    return Finding(name, "ok", f"{versions}, repaired for traces of today")


def _extra(packages: tuple[str, ...], use: str, install: str) -> Callable[[str], Finding]:
    def look(name: str) -> Finding:
        missing = [package for package in packages if _version(package) is None]
        if missing:
            return Finding(
                name,
                "absent",
                f"{', '.join(missing)} not installed; {use}",
                f"pip install {install}",
            )
        return Finding(name, "ok", f"{_versions(packages)}; {use}")

    return look


#: Modules that lie in the folder one is in are not those of the environment.
_WITHOUT_FOLDER = "import sys\nsys.path[:] = [place for place in sys.path if place]\n"


def _run_python(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _WITHOUT_FOLDER + program],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("neusight.predictors.errors.") if lines else "no word of why"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _versions(packages: Iterable[str]) -> str:
    return ", ".join(f"{package} {_version(package) or 'missing'}" for package in packages)


_EXAMINATIONS: dict[str, Callable[[str], Finding]] = {
    "Python": _python,
    "platform": _platform,
    "torch": _torch,
    "torch names": _torch_names,
    "neusight": _neusight,
    "predictor": _predictor,
    "disk": _space,
    "your files": _files,
    "GPU": _gpu,
    "TensorBoard": _tensorboard,
    "tables": _extra(("pandas", "pyarrow"), "for evaluate and fit", "'pandas>=2' 'pyarrow>=15'"),
    "pytest": _extra(("pytest",), "for budgets in tests", "pytest"),
    "Lightning": _extra(("lightning",), "for its callback", "lightning"),
    "Trainer": _extra(
        ("transformers", "accelerate"), "for its callback", "transformers accelerate"
    ),
}
