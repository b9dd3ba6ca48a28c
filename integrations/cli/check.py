"""`neusight check`: forecasts programs and judges them by a baseline; needs no GPU."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import signal
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neusight.exit_codes import ExitCode
from neusight.integrations.check.baseline import Case, figures_text, read_baseline, update_baseline
from neusight.integrations.check.judgement import judge, parse_tolerances
from neusight.integrations.check.observation import Observation, digest_of_files, observe
from neusight.integrations.check.outputs import (
    CaseResult,
    benchmark_json,
    github_annotations,
    junit_xml,
    markdown,
    report_json,
    words_of,
)
from neusight.integrations.check.settings import DEFAULT_BASELINE, Settings, read_settings
from neusight.integrations.cli.run import add_file_arguments, tried, write_json
from neusight.integrations.program.program import (
    checked_keep_folder,
    in_guarded_process,
    is_guarded,
)
from neusight.integrations.program.runner import Program, hide_gpus, run_program, telling_progress
from neusight.interrupts import raises_from_here
from neusight.predictors.errors import ForecastStateError, OptionError
from neusight.predictors.gpu import find_gpu
from neusight.predictors.registry import require_predictor

if TYPE_CHECKING:
    from neusight.fake_cuda.store.store import Store

__all__ = ["add_arguments", "check"]

#: Steady steps after which the script is ended.
DEFAULT_STEPS = "5"

_HOSTS = ("plain", "older", "profiled")

#: Ops after which a loop counts as endless, as in `neusight run`.
_MAX_OPS = 5_000_000


def add_arguments(check: argparse.ArgumentParser) -> None:
    """The options of `neusight check`; what they do not say, [tool.neusight] may."""
    check.add_argument("--gpu", action="append", default=[], metavar="NAME",
                       help="target GPU, also several (`neusight gpus` lists all)")  # fmt: skip
    check.add_argument("--baseline", metavar="FILE",
                       help=f"where the figures to judge by are ({DEFAULT_BASELINE})")  # fmt: skip
    check.add_argument("--update", action="store_true", help="write today's figures there")
    check.add_argument("--case", metavar="NAME",
                       help="name of the case (the command); without a script: check only this "
                       "one of the project's cases")  # fmt: skip
    check.add_argument("--tolerance", action="append", default=[], metavar="FIGURE=AMOUNT",
                       help='how much worse is no regression, such as step_latency="1 %%" or '
                       'peak_memory="1 MiB"')  # fmt: skip
    check.add_argument("--steps", metavar="N|all",
                       help=f"steady steps until the script ends ({DEFAULT_STEPS})")  # fmt: skip
    check.add_argument("--predictor", metavar="NAME", help="who prices the kernels")
    check.add_argument("--host", choices=_HOSTS, help="cost of the host")
    check.add_argument("--quiet", action="store_true", help="a line for each case")
    add_file_arguments(check)
    check.add_argument("--json", metavar="FILE", help="write all there")
    check.add_argument("--markdown", metavar="FILE",
                       help="write a report there (GitHub's summary gets it anyway)")  # fmt: skip
    check.add_argument("--junit", metavar="FILE", help="write JUnit XML there")
    check.add_argument("--benchmark-json", metavar="FILE",
                       help="write figures for github-action-benchmark there")  # fmt: skip


@dataclass(frozen=True)
class _Plan:
    """What is to be run: one program on some GPUs, as cases of these names. `settings` are those of
    the baseline where the program comes from there."""

    program: Program
    gpus: tuple[str, ...]
    names: tuple[str, ...]
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Choices:
    """How programs are forecast."""

    steps: str
    predictor: str | None
    host: str | None
    quiet: bool
    allow_writes: bool
    keep_writes: str | None
    is_guarded: bool


@dataclass(frozen=True)
class _Seen:
    """What running a program gave: an observation for each GPU, or why there is none."""

    observations: Mapping[str, Observation]
    failure: str = ""
    again: tuple[str, ...] = ()


def check(options: argparse.Namespace, program: Program | None) -> int:
    """Checks the program, or all of the project's cases; the exit code."""
    checked_keep_folder(options.keep_writes, allow_writes=options.allow_writes)
    settings = read_settings(Path.cwd())
    tolerances = parse_tolerances({**settings.tolerance, **_stated_tolerances(options.tolerance)})
    path = Path(options.baseline or settings.baseline)
    baseline = read_baseline(path) if path.exists() or not options.update else {}
    plans = _plans(options, settings, program, baseline)
    hide_gpus()
    results: list[CaseResult] = []
    for plan, choices in [(plan, _choices(options, settings, plan)) for plan in plans]:
        try:
            seen = _run(plan, choices, baseline, alone=len(plans) == 1)
        except KeyboardInterrupt:
            return _interrupted(options, results, path, len(plans))
        for name, target in zip(plan.names, plan.gpus, strict=True):
            results.append(_result(name, target, seen, baseline.get(name), tolerances))
    is_complete = program is None and options.case is None and not options.gpu
    removed = sorted(set(baseline) - {result.name for result in results}) if is_complete else []
    if options.update:
        results = _update(path, results, removed)
    else:
        results += [_removed(name, baseline[name], results) for name in removed]
    return _report(options, results, path)


def _interrupted(
    options: argparse.Namespace, results: list[CaseResult], path: Path, num_plans: int
) -> int:
    """Tells what is known by now; a baseline stays as it was."""
    if results:
        _report(options, results, path)
    print(
        f"neusight: interrupted; {len(results)} results, of {num_plans} programs to check",
        file=sys.stderr,
    )
    return ExitCode.INTERRUPTED


# -- what to check -------------------------------------------------------------------------------


def _plans(
    options: argparse.Namespace,
    settings: Settings,
    program: Program | None,
    baseline: Mapping[str, Case],
) -> list[_Plan]:
    """OptionError where that is nothing, or something that is not there."""
    names = tuple(dict.fromkeys(find_gpu(name).name for name in (options.gpu or settings.gpus)))
    if program is not None:
        plans = [_plan(options.case or _command_text(program), program, names)]
    elif settings.cases:
        plans = [
            _plan(name, _program(command), names)
            for name, command in sorted(settings.cases.items())
            if options.case in (None, name)
        ]
    else:
        plans = [
            _Plan(_program(case.program), (case.gpu,), (name,), case.settings)
            for name, case in sorted(baseline.items())
            if case.program and options.case in (None, name)
        ]
        plans = [plan for plan in plans if not options.gpu or plan.gpus[0] in names]
    if not plans:
        what = f"no case {options.case!r}" if options.case else "nothing to check"
        raise OptionError(
            f"There is {what}: give a script (neusight check --gpu H100 train.py), or name cases "
            "in [tool.neusight.cases] of pyproject.toml."
        )
    for plan in plans:
        if not plan.gpus:
            raise OptionError('Say which GPU: --gpu H100, or gpu = "H100" in [tool.neusight].')
        target = plan.program.target
        if not plan.program.is_module and not Path(target).is_file():
            raise OptionError(f"there is no script {target!r} in {Path.cwd()}")
    return plans


def _choices(options: argparse.Namespace, settings: Settings, plan: _Plan) -> _Choices:
    """What the command line says, else the project, else the baseline that names the program."""
    # The profiled host of an older machine has a name of its own, but is asked for as any other.
    of_baseline = plan.settings.get("host", "").partition("-")[0]
    host = options.host or settings.host or of_baseline or None
    if host is not None and host not in _HOSTS:
        raise OptionError(f"unknown host {host!r}; known: {', '.join(_HOSTS)}")
    steps = options.steps or settings.steps or plan.settings.get("steps") or DEFAULT_STEPS
    predictor = options.predictor or settings.predictor or plan.settings.get("predictor")
    return _Choices(
        _checked_steps(steps),
        _checked_predictor(predictor),
        host,
        options.quiet,
        options.allow_writes,
        options.keep_writes,
        is_guarded(is_command_line=options.is_command_line, allow_writes=options.allow_writes),
    )


def _plan(name: str, program: Program, gpus: tuple[str, ...]) -> _Plan:
    return _Plan(program, gpus, tuple(f"{name} on {target}" for target in gpus))


def _program(command: Sequence[str]) -> Program:
    if command[0] == "-m":
        return Program(command[1], tuple(command[2:]), is_module=True)
    return Program(command[0], tuple(command[1:]))


def _command(program: Program) -> tuple[str, ...]:
    module = ("-m",) if program.is_module else ()
    return (*module, program.target, *program.arguments)


def _command_text(program: Program) -> str:
    return " ".join(_command(program))


def _stated_tolerances(texts: Iterable[str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for text in texts:
        name, equals, amount = text.partition("=")
        if not equals:
            raise OptionError(f'--tolerance is {text!r}; it must be like step_latency="1 %".')
        found[name.strip()] = amount
    return found


def _checked_steps(steps: str) -> str:
    if steps != "all" and not (steps.isdigit() and int(steps) > 0):
        raise OptionError(f"--steps is {steps!r}; it must be a number above 0, or all")
    return steps


def _checked_predictor(name: str | None) -> str | None:
    require_predictor(name)
    return name


# -- running -------------------------------------------------------------------------------------


def _run(plan: _Plan, choices: _Choices, baseline: Mapping[str, Case], *, alone: bool) -> _Seen:
    """Several programs run in a process each, so that none finds what another left behind."""
    known = frozenset(row[:2] for name in plan.names if name in baseline
                      for row in baseline[name].waits)  # fmt: skip
    if choices.is_guarded:
        keep = choices.keep_writes if alone else _kept_of(plan, choices.keep_writes)
        seen = _guarded(plan.program, plan.gpus, choices, known, keep=keep)
    elif not alone:
        return _in_own_process(_observe, plan.program, plan.gpus, choices, known)
    else:
        seen = _observe(plan.program, plan.gpus, choices, known)
    for target in seen.again:
        if choices.is_guarded:
            other = _guarded(plan.program, (target,), choices, known)
        else:
            other = _in_own_process(_observe, plan.program, (target,), choices, known)
        seen = replace(
            seen,
            observations={**seen.observations, **other.observations},
            failure=seen.failure or other.failure,
        )
    return seen


def _kept_of(plan: _Plan, folder: str | None) -> str | None:
    """Of several programs, each keeps what it writes in a folder of its own."""
    if folder is None:
        return None
    return str(Path(folder) / re.sub(r"[^\w.-]+", "-", plan.names[0]).strip("-"))


def _guarded(
    program: Program,
    gpus: tuple[str, ...],
    choices: _Choices,
    known: frozenset[tuple[str, str]],
    *,
    keep: str | None = None,
) -> _Seen:
    ended = in_guarded_process(
        lambda store: _observe(program, gpus, choices, known, store), program, keep=keep
    )
    return _Seen({}, ended.failure) if ended.answer is None else ended.answer


def _observe(
    program: Program,
    gpus: tuple[str, ...],
    choices: _Choices,
    known: frozenset[tuple[str, str]],
    store: Store | None = None,
) -> _Seen:
    """Records the program on the first GPU and prices it on all; `again` where it must run anew.
    With a store, in a process that is the program's alone."""
    from neusight.forecast import forecast_options
    from neusight.session import Session, SessionOptions

    options = SessionOptions(
        forecast_options(gpus[0], predictor=choices.predictor, host=choices.host),
        virtual_time=True,
        steady_steps=None if choices.steps == "all" else int(choices.steps),
        max_ops=_MAX_OPS,
        script=_command_text(program),
        with_stack=True,
        allow_writes=choices.allow_writes,
        keep_writes=choices.keep_writes,
    )
    before = set(sys.modules)
    session = Session(options, store=store)
    forecast = session.forecast
    with telling_progress(session, quiet=choices.quiet):
        outcome = run_program(program, session, is_guarded=store is not None)
    if outcome.is_interrupted:
        if forecast.recording.num_ops:
            print(forecast.summary())
        raise KeyboardInterrupt
    if outcome.failure:
        return _Seen({}, outcome.failure)
    files = digest_of_files(_files_of(program, before))
    found: dict[str, Observation] = {}
    again: list[str] = []
    for name in gpus:
        try:
            other = forecast if name == gpus[0] else forecast.on(name, host=choices.host)
        except ForecastStateError:
            again.append(name)
            continue
        found[name] = observe(
            other,
            program=_command(program),
            settings={"steps": choices.steps},
            files=files,
            known_waits=known,
        )
    return _Seen(found, again=tuple(again))


def _files_of(program: Program, before: set[str]) -> list[Path]:
    """The program's own files: the script, and what it imported from below this folder."""
    folder = Path.cwd()
    packages = {sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")}
    files = [] if program.is_module else [Path(program.target).resolve()]
    for name in set(sys.modules) - before:
        origin = getattr(sys.modules[name], "__file__", None)
        if not isinstance(origin, str) or origin.startswith(tuple(packages)):
            continue
        path = Path(origin)
        is_ours = name.partition(".")[0] == "neusight"
        if folder in path.parents and "site-packages" not in path.parts and not is_ours:
            files.append(path)
    return files


def _in_own_process(function: Callable[..., _Seen], *arguments: Any) -> _Seen:
    raises_from_here()
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sending, function, arguments))
    with _ignoring_interrupts():  # it inherits that; this process ends it
        process.start()
    sending.close()
    try:
        answer = receiving.recv()
    except KeyboardInterrupt:
        process.terminate()
        process.join()
        raise
    except EOFError:
        process.join()
        return _Seen({}, f"its process ended with status {process.exitcode}")
    finally:
        receiving.close()
    process.join()
    if isinstance(answer, BaseException):
        raise answer
    assert isinstance(answer, _Seen)
    return answer


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _answer(sending: Any, function: Callable[..., _Seen], arguments: tuple[Any, ...]) -> None:
    hide_gpus()
    try:
        sending.send(function(*arguments))
    except Exception as error:
        sending.send(error)


# -- judging -------------------------------------------------------------------------------------


def _result(
    name: str, target: str, seen: _Seen, before: Case | None, tolerances: Mapping[str, Any]
) -> CaseResult:
    found = seen.observations.get(target)
    if found is None:
        return CaseResult(name, "failed", failure=seen.failure or "it could not be recorded")
    if before is None:
        return CaseResult(name, "new", case=found.case)
    other = _other_settings(before, found.case)
    if other:
        return CaseResult(name, "foreign", case=found.case, failure=other)
    judgement = judge(name, before, found, tolerances)
    if judgement.is_regression:
        return CaseResult(name, "regression", judgement, found.case)
    if judgement.is_moved_by_tool:
        return CaseResult(name, "tool", judgement, found.case)
    return CaseResult(name, "better" if judgement.is_improved else "ok", judgement, found.case)


def _other_settings(before: Case, now: Case) -> str:
    if before.gpu != now.gpu:
        return f"the baseline is for {before.gpu}"
    for name in sorted(before.settings.keys() | now.settings.keys()):
        was, value = before.settings.get(name), now.settings.get(name)
        if was != value:
            return (
                f"the baseline was made with {name} {was or '(not set)'}, this check uses "
                f"{value or '(not set)'}; use the same, or --update"
            )
    return ""


def _removed(name: str, case: Case, results: Iterable[CaseResult]) -> CaseResult:
    twins = [
        result.name
        for result in results
        if result.kind == "new" and result.case is not None and result.case.work == case.work
    ]
    hint = f"; {twins[0]!r} does the same, so it may have been renamed" if twins else ""
    return CaseResult(
        name, "removed", case=case, failure=f"the project has no such case any more{hint}"
    )


def _update(path: Path, results: list[CaseResult], removed: list[str]) -> list[CaseResult]:
    """Writes the cases that ran; those of programs that failed stay as they are."""
    fresh = {result.name: result.case for result in results if result.case is not None}

    def change(cases: dict[str, Case]) -> dict[str, Case]:
        kept = {name: case for name, case in cases.items() if name not in removed}
        return {**kept, **fresh}

    if fresh or removed:
        update_baseline(path, change)
    updated = [
        result if result.kind == "failed" else replace(result, kind="updated", failure="")
        for result in results
    ]
    return updated + [CaseResult(name, "dropped") for name in removed]


# -- telling -------------------------------------------------------------------------------------


def _report(options: argparse.Namespace, results: list[CaseResult], path: Path) -> int:
    """Prints the report and writes what was asked for, all of it, before any problem is told."""
    folder = Path.cwd()
    problems: list[str] = []
    for result in results:
        print(words_of(result, folder, quiet=options.quiet))
    pasted = [result.case for result in results if result.kind == "regression" and result.case]
    if pasted and not options.quiet:
        print(f"If this is meant, run it again with --update, or paste into {path}:")
        print("\n".join(figures_text(case) for case in pasted))
    if options.json:
        problems += tried(
            lambda: write_json(Path(options.json), report_json(results)), options.json
        )
    if options.benchmark_json:
        document = benchmark_json(results)
        problems += tried(
            lambda: write_json(Path(options.benchmark_json), document), options.benchmark_json
        )
    if options.junit:
        problems += tried(lambda: _write(options.junit, junit_xml(results)), options.junit)
    if options.markdown:
        text = markdown(results, folder)
        problems += tried(lambda: _write(options.markdown, text), options.markdown)
    problems += _tell_github(results, folder)
    for problem in problems:
        print(f"neusight: {problem}", file=sys.stderr)
    code = max((result.exit_code for result in results), default=ExitCode.OK)
    return max(code, ExitCode.WRONG_USE) if problems else code


def _write(path: str, text: str) -> None:
    from neusight.predictors.files import write_atomically

    write_atomically(Path(path), text.encode())


def _tell_github(results: list[CaseResult], folder: Path) -> list[str]:
    """In GitHub Actions: notes at the lines of the pull request, and the summary of the step."""
    if os.environ.get("GITHUB_ACTIONS") == "true":
        root = Path(os.environ.get("GITHUB_WORKSPACE") or folder)
        for line in github_annotations(results, folder, root):
            print(line)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if not summary:
        return []

    def append() -> None:
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(markdown(results, folder) + "\n")

    return tried(append, summary)
