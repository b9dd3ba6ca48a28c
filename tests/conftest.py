"""What every test stands on: neusight is installed, and nothing is left behind."""

from __future__ import annotations

import compileall
import gc
import importlib.util
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings

from places import ROOT

if importlib.util.find_spec("neusight") is None:
    pytest.exit("neusight is not installed; run: pip install -e .", returncode=4)


#: No test finds what another run compiled, but those of the cache itself, which say so.
os.environ["NEUSIGHT_COMPILE_CACHE"] = "0"

# A shell starts what it runs in the background ignoring Ctrl-C, and so all that tests start; their
# Ctrl-C is meant.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No property fails because the machine is loaded, or in one run and not in the next: the examples
# are the same each time. `pytest --hypothesis-profile search` tries others.
for _name, _is_same in (("same", True), ("search", False)):
    settings.register_profile(
        _name,
        deadline=None,
        derandomize=_is_same,
        suppress_health_check=[HealthCheck.too_slow],
        print_blob=True,
    )
settings.load_profile("same")

#: Mutants of each file format that test_malformed_input.py tries, and the seed they are made by.
FUZZ_SEED, FUZZ_MUTANTS = 1, 100


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fuzz-seed", type=int, default=FUZZ_SEED, help="seed of malformed input")
    parser.addoption("--fuzz-mutants", type=int, default=FUZZ_MUTANTS, help="mutants a format")
    parser.addoption("--skipped", action="store_true", help="only what the last run skipped")
    parser.addoption("--slow", action="store_true", help="only what a run of all tests leaves out")


#: Where pytest's cache keeps the tests, and the files of tests, that the last run skipped.
_SKIPPED = "neusight/skipped"


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        _compile_sources()
        config.pluginmanager.register(_SkippedTests(config), "neusight-skipped-tests")
    _choose_slow(config)
    config.pluginmanager.register(_LeftOut(config), "neusight-left-out")


def _compile_sources() -> None:
    """Tests start hundreds of processes; where Python is set to write no bytecode, each would
    compile again what it imports, for a third of its time."""
    for floor in ("predictors", "neusight_hooks", "integrations"):
        compileall.compile_dir(ROOT / floor, quiet=2, workers=0)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The tests are compiled once, also where Python is set to write no bytecode."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    try:
        return (yield)
    finally:
        sys.dont_write_bytecode = before


def _choose_slow(config: pytest.Config) -> None:
    """A run of all tests leaves out those marked slow, and `--slow` runs them alone. Whoever names
    files, tests or marks gets what is named."""
    is_of_all = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if config.option.slow:
        config.option.markexpr = "slow"
    elif is_of_all and not (config.option.markexpr or config.option.skipped):
        config.option.markexpr = "not slow"


class _LeftOut:
    """Counts the tests that are left out because they are slow, in whichever process."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.num_tests = 0

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self.num_tests = sum(item.get_closest_marker("slow") is not None for item in items)
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["num_left_out"] = self.num_tests

    @pytest.hookimpl(optionalhook=True)  # of xdist
    def pytest_testnodedown(self, node: Any) -> None:
        self.num_tests = node.workeroutput.get("num_left_out", 0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.num_tests and self.config.option.markexpr == "not slow":
            terminalreporter.write_line(
                f"{self.num_tests} slow tests are left out; `python -m pytest --slow` runs them"
            )


class _SkippedTests:
    """Keeps which tests were skipped, so that `--skipped` runs them where more is installed."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.skipped: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped:
            self.skipped.add(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.skipped.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        cache = getattr(self.config, "cache", None)  # absent without pytest's cacheprovider
        if cache is not None:
            cache.set(_SKIPPED, sorted(self.skipped))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--skipped") or getattr(config, "cache", None) is None:
        return
    skipped = set(config.cache.get(_SKIPPED, []))
    chosen = [item for item in items if {item.nodeid, item.nodeid.partition("::")[0]} & skipped]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """With `--durations`, also how long the tests of each folder took together."""
    if terminalreporter.config.option.durations is None:
        return
    seconds: defaultdict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                folder = PurePosixPath(report.nodeid.partition("::")[0]).parent
                seconds["/".join(folder.parts[:2])] += report.duration
    terminalreporter.section("time by folder")
    for folder_name, total in sorted(seconds.items(), key=lambda item: -item[1]):
        terminalreporter.write_line(f"{total:8.1f} s  {folder_name}")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Python looks for garbage only in what tests make: torch and thousands of tests are none, and
    looking through them again and again takes a part of the suite's time."""
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def modules_are_no_garbage() -> Iterator[None]:
    """What a file of tests loaded, torch's compiler for one, is not looked through after it."""
    yield
    gc.collect()
    gc.freeze()


class TorchState(NamedTuple):
    """What a forecast changes while it is open, and must put back."""

    num_dispatch_modes: int
    is_available: Callable[[], bool]
    answer: bool
    default_dtype: object
    is_grad_enabled: bool


def torch_state() -> TorchState | None:
    """None while torch is not imported: the tests that do without it stay fast."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    return TorchState(
        # Private: no public name shows how many modes are open. If it moves, use
        # torch.utils._python_dispatch, which calls it.
        num_dispatch_modes=torch._C._len_torch_dispatch_stack(),
        is_available=torch.cuda.is_available,
        answer=torch.cuda.is_available(),
        default_dtype=torch.get_default_dtype(),
        is_grad_enabled=torch.is_grad_enabled(),
    )


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """No dispatch mode stays open, torch answers as before the test, and the working folder, by
    which files are named, is the same."""
    before, folder = torch_state(), Path.cwd()

    yield

    assert Path.cwd() == folder
    after = torch_state()
    if before is not None:
        assert after == before
    elif after is not None:
        assert after.num_dispatch_modes == 0
        assert after.is_available.__module__ == "torch.cuda"
