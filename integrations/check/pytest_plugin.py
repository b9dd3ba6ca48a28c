"""The pytest plugin: forecasts in tests, baselines beside them, budgets; free where it is not used.

Loaded at every start of pytest, so nothing here imports torch, or what does, before a test asks.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import pytest

if TYPE_CHECKING:
    from neusight.forecast import Forecast
    from neusight.integrations.check.figures.tolerance import Tolerance
    from neusight.session import forecast_on


class _Limit(NamedTuple):
    """What a marker limits: `unit` is its argument, of which one is so many of `amount_unit`."""

    unit: str
    amount_unit: str
    factor: float
    example: int
    meaning: str
    what: str


_LATENCY, _MEMORY, _TTFT, _TPOT = "latency_budget", "memory_budget", "ttft_budget", "tpot_budget"
_LIMITS = {
    _LATENCY: _Limit("ms", "us", 1e3, 12, "the step of the test takes no longer", "a step"),
    _MEMORY: _Limit("gib", "bytes", 2**30, 40, "the test needs no more memory", "at the peak"),
    _TTFT: _Limit(
        "ms", "us", 1e3, 200, "a model generates its first token no later", "to the first token"
    ),
    _TPOT: _Limit("ms", "us", 1e3, 20, "each more token takes no longer", "a token"),
}
#: Name under which a report carries a line for the summary; also its property in JUnit's XML.
_PROPERTY, _ANNOTATION = "neusight", "neusight_annotation"
_ROWS_SHOWN = 5


# -- pytest's hooks ------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --neusight-update."""
    parser.getgroup("neusight").addoption(
        "--neusight-update",
        action="store_true",
        help="write the baselines of forecast_regression again",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Registers the markers."""
    for name, limit in _LIMITS.items():
        config.addinivalue_line(
            "markers",
            f'{name}(gpu="H100", {limit.unit}={limit.example}): forecast on that GPU, '
            f"{limit.meaning} (neusight)",
        )


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Runs a test with budgets inside a forecast, unless it makes its own by the fixture."""
    budgets = _budgets_of(pyfuncitem)
    if not budgets:
        return (yield)
    own = pyfuncitem.funcargs.get("forecast")
    if isinstance(own, Forecaster):
        result = yield
        _judge_budgets(budgets, own.forecasts)
        return result
    function = pyfuncitem.obj
    forecaster = Forecaster(pyfuncitem)

    def forecasted(**arguments: Any) -> object:
        __tracebackhide__ = True
        result: object = None
        for target in dict.fromkeys(budget.gpu for budget in budgets):
            if forecaster.prices_on(target):
                continue
            with forecaster.block(target, caller=forecasted.__code__, is_judged=True):
                result = function(**arguments)
        return result

    pyfuncitem.obj = forecasted
    try:
        result = yield
    finally:
        pyfuncitem.obj = function
    _judge_budgets(budgets, forecaster.forecasts)
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[object]) -> None:
    """A failure is shown by the lines of the test and of what it runs, without neusight's own."""
    if call.excinfo is None or "neusight.predictors.errors" not in sys.modules:
        return
    from neusight.integrations.program.errors.internal_failure import is_debugging
    from neusight.integrations.program.errors.script_errors import (
        is_of_the_depths,
        without_own_frames,
    )
    from neusight.predictors.errors import NeusightError

    error = call.excinfo.value
    if is_debugging() or is_of_the_depths(error):
        return
    shown = without_own_frames(error.__traceback__)
    if isinstance(error, NeusightError) and not _has_lines_of_the_test(shown):
        call.excinfo = _excinfo(f"{item.location[0]}:{(item.location[1] or 0) + 1}: {error}")
    elif shown is not None:
        error.__traceback__ = shown
        call.excinfo = pytest.ExceptionInfo.from_exception(error)


def _has_lines_of_the_test(shown: TracebackType | None) -> bool:
    """Whether it has other frames than those of pytest and its plugins."""
    while shown is not None:
        package = str(shown.tb_frame.f_globals.get("__name__")).partition(".")[0]
        if package not in ("pluggy", "_pytest", "pytest"):
            return True
        shown = shown.tb_next
    return False


def _excinfo(text: str) -> pytest.ExceptionInfo[BaseException]:
    """An exception that pytest shows without a traceback."""
    try:
        pytest.fail(text, pytrace=False)
    except pytest.fail.Exception as failure:
        return pytest.ExceptionInfo.from_exception(failure)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fails a test whose budget would never be judged."""
    marked = [marker for name in _LIMITS for marker in item.iter_markers(name)]
    owner = getattr(item, "cls", None)
    # Where it was not imported, which takes 3 ms, no test is one of its.
    test_case = getattr(sys.modules.get("unittest"), "TestCase", ())
    is_unittest = isinstance(owner, type) and issubclass(owner, test_case)
    if marked and (is_unittest or not isinstance(item, pytest.Function)):
        pytest.fail(
            f"{marked[0].name} works on test functions; use the fixture `forecast` here.",
            pytrace=False,
        )
    if marked:
        _budgets_of(item)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """A line for each forecast; in GitHub Actions also annotations and the step's summary."""
    lines: list[tuple[str, str]] = []
    commands: list[str] = []
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") != "call":
                continue
            for name, value in getattr(report, "user_properties", ()):
                if name == _PROPERTY:
                    lines.append((report.nodeid, str(value)))
                elif name == _ANNOTATION:
                    commands.append(str(value))
    if not lines:
        return
    lines.sort()
    if terminalreporter.verbosity >= 0:
        terminalreporter.section("neusight forecasts")
        for nodeid, text in lines:
            terminalreporter.write_line(f"{nodeid}: {text}")
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for command in sorted(set(commands)):
            terminalreporter.write_line(command)
    _write_summary(lines)


def _write_summary(lines: list[tuple[str, str]]) -> None:
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if not summary:
        return
    from neusight.integrations.check.outputs.markdown import code_text

    rows = [f"| {code_text(nodeid)} | {code_text(text)} |" for nodeid, text in lines]
    text = "\n".join(["## Performance forecasts of the tests", "", "| test | forecast |",
                      "|---|---|", *rows, ""])  # fmt: skip
    try:
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        print(f"neusight: {summary} cannot be written: {error.strerror or error}", file=sys.stderr)


# -- fixtures ------------------------------------------------------------------------------------


@pytest.fixture
def forecast(request: pytest.FixtureRequest) -> Forecaster:
    """What a function or a block would do on a GPU: `forecast("H100", train, batch)` returns a
    `neusight.Forecast`, `with forecast("H100") as f:` yields one."""
    return Forecaster(request.node)


@pytest.fixture
def forecast_regression(request: pytest.FixtureRequest, forecast: Forecaster) -> ForecastRegression:
    """Compares a forecast with the baseline beside the test: `forecast_regression("H100", train)`
    or `forecast_regression(f)`; `pytest --neusight-update` writes it."""
    return ForecastRegression(request.node, forecast)


class Forecaster:
    """The fixture `forecast`; `forecasts` are those made so far."""

    def __init__(self, item: pytest.Item) -> None:
        self.forecasts: list[Forecast] = []
        self._item = item

    @overload
    def __call__(self, gpu: Any, /, **options: Any) -> _KeptBlock: ...

    @overload
    def __call__(
        self, gpu: Any, function: Callable[..., object], /, *args: Any, **kwargs: Any
    ) -> Forecast: ...

    def __call__(
        self, gpu: Any, function: Callable[..., object] | None = None, /, *args: Any, **kwargs: Any
    ) -> Forecast | _KeptBlock:
        """The forecast of `function(*args, **kwargs)`; without one a context manager, with the
        options of `neusight.forecast_on`."""
        __tracebackhide__ = True
        if function is None:
            return self.block(gpu, **kwargs)
        if not callable(function):
            raise TypeError(f"forecast(gpu, function): {function!r} cannot be called.")
        with self.block(gpu, caller=sys._getframe().f_code) as found:
            function(*args, **kwargs)
        return found

    def block(
        self, gpu: Any, *, caller: Any = None, is_judged: bool = False, **options: Any
    ) -> _KeptBlock:
        """A block whose forecast is kept; `caller` is what called the program."""
        from neusight.session import forecast_on

        folder = self._item.config.invocation_params.dir
        block = forecast_on(gpu, **{"with_stack": True, **options})
        return _KeptBlock(block, self, caller=caller, folder=folder, is_judged=is_judged)

    def prices_on(self, target: str) -> bool:
        """Prices the forecast made so far on another GPU; False where the program must run there
        itself, since it would take another path."""
        from neusight.predictors.errors import ForecastStateError

        if not self.forecasts or not self.forecasts[0].recording.num_ops:
            return False
        try:
            self.keep(self.forecasts[0].on(target))
        except ForecastStateError:
            return False
        return True

    def keep(self, found: Forecast) -> None:
        """Remembers a forecast whose block has ended, for budgets and the summary."""
        self.forecasts.append(found)
        if found.recording.num_ops:
            _report(self._item, found)


class _KeptBlock:
    """A `forecast_on` whose forecast is kept when it ends well."""

    def __init__(
        self,
        block: forecast_on,
        forecaster: Forecaster,
        *,
        caller: Any,
        folder: Path,
        is_judged: bool,
    ) -> None:
        self._block = block
        self._forecaster = forecaster
        self._caller = caller
        self._folder = folder
        self._is_judged = is_judged
        self._forecast: Forecast | None = None

    def __enter__(self) -> Forecast:
        outside = sys._getframe(1).f_back
        caller = self._caller or (outside.f_code if outside is not None else None)
        self._forecast = self._block.open(caller=caller, folder=self._folder)
        return self._forecast

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        with warnings.catch_warnings():
            if self._is_judged:  # a budget without CUDA work fails anyway, and says so
                from neusight.session import NoCudaWorkWarning

                warnings.simplefilter("ignore", NoCudaWorkWarning)
            self._block.__exit__(kind, error, traceback)
        if kind is None and self._forecast is not None:
            self._forecaster.keep(self._forecast)


class ForecastRegression:
    """The fixture `forecast_regression`."""

    def __init__(self, item: pytest.Item, forecaster: Forecaster) -> None:
        self._forecaster = forecaster
        self._item = item

    @property
    def baseline(self) -> Path:
        """Where the baseline of this test is: a folder named as its file, a file named as it."""
        name = self._item.name
        owner = getattr(self._item, "cls", None)
        if owner is not None:
            name = f"{owner.__name__}.{name}"
        path = self._item.path
        return path.parent / path.stem / f"{re.sub(r'[^A-Za-z0-9_.=+-]+', '_', name)}.json"

    def __call__(
        self,
        what: Any,
        function: Callable[..., object] | None = None,
        /,
        *args: Any,
        name: str = "",
        tolerance: Mapping[str, object] | None = None,
        **kwargs: Any,
    ) -> Forecast:
        """Judges a forecast, or that of `function(*args, **kwargs)` on the GPU `what`.

        `name` distinguishes several of one test; `tolerance` is as in [tool.neusight.tolerance].
        RegressionError says what got worse and where, BaselineError that there is no baseline.
        """
        __tracebackhide__ = True
        from neusight.forecast import Forecast

        if isinstance(what, Forecast):
            found = what
        elif function is not None:
            found = self._forecaster(what, function, *args, **kwargs)
        else:
            raise TypeError(
                "forecast_regression takes a forecast, or a GPU and a function to forecast."
            )
        self._judge(found, name, tolerance or {})
        return found

    def _judge(self, found: Forecast, name: str, tolerance: Mapping[str, object]) -> None:
        __tracebackhide__ = True
        from neusight.integrations.check.baseline import read_baseline, update_baseline
        from neusight.integrations.check.judgement import judge
        from neusight.integrations.check.observation import observe
        from neusight.predictors.errors import BaselineError

        config = self._item.config
        case_name = f"{name} on {found.gpu.name}" if name else found.gpu.name
        known = read_baseline(self.baseline) if self.baseline.exists() else {}
        before = known.get(case_name)
        seen = observe(
            found,
            files=_files_digest(self._item),
            folder=config.invocation_params.dir,
            known_waits=frozenset(row[:2] for row in before.waits) if before else (),
        )
        if config.getoption("neusight_update"):
            update_baseline(self.baseline, lambda cases: {**cases, case_name: seen.case})
            return
        where = os.path.relpath(self.baseline, config.rootpath)
        if before is None:
            there = f"has no case {case_name!r}" if known else "is not there"
            raise BaselineError(f"The baseline {where} {there}. Write it: pytest --neusight-update")
        if before.settings != seen.case.settings:
            raise BaselineError(
                f"The baseline {where} was made with {before.settings}, this forecast with "
                f"{seen.case.settings}. Use the same, or write it again: pytest --neusight-update"
            )
        judgement = judge(case_name, before, seen, _tolerances(config, tolerance))
        _raise_regression(self._item, judgement, where)


# -- judging -------------------------------------------------------------------------------------


def _raise_regression(item: pytest.Item, judgement: Any, where: str) -> None:
    __tracebackhide__ = True
    from neusight.integrations.check.outputs.github import github_annotations
    from neusight.integrations.check.outputs.terminal import explanation
    from neusight.integrations.check.result import CaseResult
    from neusight.predictors.errors import RegressionError

    folder = item.config.invocation_params.dir
    if judgement.is_moved_by_tool and not judgement.is_regression:
        text = f"the tool changed ({', '.join(judgement.tool_changes)}); --neusight-update"
        item.user_properties.append((_PROPERTY, text))
    if not judgement.is_regression:
        return
    result = CaseResult(f"{item.nodeid} ({judgement.name})", "regression", judgement)
    if os.environ.get("GITHUB_ACTIONS") == "true":
        root = Path(os.environ.get("GITHUB_WORKSPACE") or item.config.rootpath)
        for command in github_annotations([result], folder, root):
            item.user_properties.append((_ANNOTATION, command))
    text = "\n".join(explanation(judgement, folder))
    raise RegressionError(
        f"worse than the baseline {where}\n{text}\n"
        "  If this is meant: pytest --neusight-update, and commit the file."
    )


def _tolerances(config: pytest.Config, stated: Mapping[str, object]) -> dict[str, Tolerance]:
    from neusight.integrations.check.figures.tolerance import parse_tolerances
    from neusight.integrations.check.settings import read_settings

    return parse_tolerances({**read_settings(config.rootpath).tolerance, **stated})


def _files_digest(item: pytest.Item) -> str:
    """Of the project's files that are loaded; of the files of tests only this one."""
    from neusight.integrations.program.program import digest_of_files, own_files

    others = {other.path for other in item.session.items} - {item.path}
    loaded = own_files(item.config.rootpath, list(sys.modules))
    return digest_of_files(({item.path} | loaded) - others)


class _Budget:
    """What a marker allows: microseconds, or bytes at the peak; with an `operator` microseconds of
    kernels in it."""

    def __init__(self, marker: pytest.Mark) -> None:
        self.name = marker.name
        self._limits = _LIMITS[marker.name]
        unit = self._limits.unit
        own = {"gpu", unit, "operator"} if self.name == _LATENCY else {"gpu", unit}
        unknown = sorted(set(marker.kwargs) - own)
        self.operator: Any = marker.kwargs.get("operator", "")
        limit: Any = marker.kwargs.get(unit)
        is_number = isinstance(limit, (int, float)) and not isinstance(limit, bool)
        amount = float(limit) if is_number else 0.0
        is_wrong = marker.args or unknown or not isinstance(self.operator, str)
        if is_wrong or "gpu" not in marker.kwargs or not amount > 0:
            example = f'{marker.name}(gpu="H100", {unit}={self._limits.example})'
            pytest.fail(f"{marker!r}: write it as {example}.", pytrace=False)
        self.gpu: str = marker.kwargs["gpu"]
        self.limit = amount * self._limits.factor

    def problem(self, found: Forecast) -> str:
        """Why the forecast is over the budget; "" where it is not."""
        from neusight.predictors.formatting import amount_text
        from neusight.predictors.terminal_text import printable_lines

        unit = self._limits.amount_unit
        value = self._value(found)
        if value is None and self.operator:
            return f"{found.gpu.name}: {self.operator} runs no kernel in a step, but has a budget"
        if value is None:
            return f"{found.gpu.name}: {self.name} is for a model that generates, and none does"
        if value <= self.limit:
            return ""
        what = f"in {self.operator}" if self.operator else self._limits.what
        lines = [
            f"{found.gpu.name}: {amount_text(value, unit)} {what}, "
            f"{value / self.limit - 1:.1%} over the budget of {amount_text(self.limit, unit)}"
        ]
        if self.name == _TTFT or self.operator:  # the rows below are of all of the steady step
            return printable_lines(lines)
        if self.name != _MEMORY:
            places = _places_by_module(found)
            lines += [
                f"  {amount_text(row.time_us, 'us'):>11}  {row.name}{places.get(row.name, '')}"
                for row in found.verdict.by_module[:_ROWS_SHOWN]
            ]
        else:
            lines += [
                f"  {amount_text(row.num_bytes, 'bytes'):>11}  {row.kind} of "
                f"{row.module or f'({row.phase})'}"
                for row in found.memory.alive[:_ROWS_SHOWN]
            ]
            peak = found.memory.peak_event
            if peak is not None and peak.source.stack:
                lines.append(f"  the peak is at {peak.source.op}, {peak.source.stack[0]}")
        return printable_lines(lines)

    def _value(self, found: Forecast) -> float | None:
        """The figure that is limited; None if the program has none."""
        if self.operator:
            return {row.name: row.time_us for row in found.by_operator}.get(self.operator)
        if self.name == _LATENCY:
            return found.step_latency_us.median
        if self.name == _MEMORY:
            return found.peak_memory_bytes
        if found.phases is None:
            return None
        return found.phases.ttft_us if self.name == _TTFT else found.phases.tpot_us[1]


def _places_by_module(found: Forecast) -> dict[str, str]:
    """The line on which each module spends most of the steady step, as words to append."""
    from neusight.timeline.steady import kernels_of, steady_step_of

    step = steady_step_of(found.timeline)
    times: dict[str, Counter[str]] = defaultdict(Counter)
    for span in () if step is None else kernels_of(step, found.timeline):
        if span.call.stack:
            module = span.call.module or f"({span.call.phase})"
            times[module][span.call.stack[0]] += span.duration_ns
    return {name: f", {by_line.most_common(1)[0][0]}" for name, by_line in times.items()}


def _budgets_of(item: pytest.Item) -> list[_Budget]:
    return [_Budget(marker) for name in _LIMITS for marker in item.iter_markers(name)]


def _judge_budgets(budgets: list[_Budget], forecasts: list[Forecast]) -> None:
    __tracebackhide__ = True
    from neusight.predictors.errors import RegressionError
    from neusight.predictors.gpu import find_gpu

    made = [found for found in forecasts if found.recording.num_ops]
    if not made:
        pytest.fail(
            "a budget needs CUDA work to forecast, and the test did none"
            + "".join(f"; {text}" for found in forecasts for text in found.warnings),
            pytrace=False,
        )
    problems = []
    for budget in budgets:
        target = find_gpu(budget.gpu)
        on_target = [found for found in made if found.gpu == target]
        if not on_target:
            pytest.fail(f"the test made no forecast on {target.name}", pytrace=False)
        problems += [budget.problem(found) for found in on_target]
    found_problems = list(dict.fromkeys(filter(None, problems)))
    if found_problems:
        raise RegressionError("\n".join(found_problems))


def _report(item: pytest.Item, found: Forecast) -> None:
    from neusight.predictors.formatting import amount_text
    from neusight.predictors.terminal_text import printable

    latency = amount_text(found.step_latency_us.median, "us")
    memory = amount_text(found.peak_memory_bytes, "bytes")
    rate = found.verdict.whole_batch.per_second(found.step_latency_us.median)
    throughput = "" if rate is None else f" {amount_text(rate[0], f'{rate[1]}/s')},"
    text = f"{found.gpu.name}, {latency} a step,{throughput} {memory} at the peak"
    item.user_properties.append((_PROPERTY, printable(text)))
