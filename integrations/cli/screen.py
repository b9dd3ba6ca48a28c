"""The first screen of `neusight run`: the verdict, where the time goes, what to know and to do."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from neusight.advice.advice import Advice, advice_lines, fitting_lines
from neusight.integrations.program.guard.guarded_process import files_text
from neusight.integrations.program.options import ProgramOptions
from neusight.integrations.program.program import Program
from neusight.integrations.program.runner import Outcome
from neusight.integrations.report.memory import MemoryReport
from neusight.integrations.report.side_by_side import lay_side_by_side
from neusight.predictors.terminal_text import fitted, printable_text

if TYPE_CHECKING:
    from neusight.forecast import Forecast


@dataclass(frozen=True)
class Screen:
    """What the screen says beside the forecasts: what ran, how it ended, where things are.

    `others` are files beside the trace and the report: what is in each, and where it is."""

    program: Program
    outcome: Outcome
    options: ProgramOptions
    gpu_names: tuple[str, ...]
    prices: Mapping[str, float]
    judges_memory: bool
    trace: str | None
    html: str | None
    others: tuple[tuple[str, str], ...] = ()


def print_screen(screen: Screen, forecasts: list[Forecast], advice: list[list[Advice]]) -> None:
    """Prints the screen, in colours on a terminal; `advice` is for each forecast."""
    outcome = screen.outcome
    if outcome.failure and not outcome.is_interrupted:
        lines = ["", *(forecast.summary() for forecast in forecasts)]
        print(coloured("\n".join(lines), sys.stdout))
        return
    notes = _notes(screen, forecasts[0])
    lines = [""]
    if len(forecasts) == 1:
        [forecast], [changes] = forecasts, map(advice_lines, advice)
        if not forecast.fits and not screen.judges_memory:
            changes = fitting_lines(MemoryReport(forecast.needs_most).advice)
        lines.append(forecast.summary(changes=[*notes, *changes]))
    if len(forecasts) > 1 or screen.prices:
        compared = lay_side_by_side(forecasts, screen.prices)
        lines += ["", compared.table(), *([compared.words()] if compared.words() else [])]
    if len(forecasts) > 1:
        lines += [*_warnings_of(forecasts), *notes]
        if not screen.judges_memory and not all(forecast.fits for forecast in forecasts):
            lines.append("  memory    --max-memory shows what would make it fit")
    lines += _places(screen, forecasts[0])
    print(coloured(printable_text("\n".join(lines)), sys.stdout))


def _notes(screen: Screen, first: Forecast) -> list[str]:
    from neusight.session import FILES_OPTION

    options, notes = screen.options, []
    if screen.outcome.stopped_early:
        steps = options.steps_text
        notes.append(f"  note      the script was ended after {steps} steady steps (--steps)")
    mode = first.recording.options.get(FILES_OPTION)
    if mode is not None:
        notes.append(f"  files     {files_text(str(mode), is_guarded=options.is_guarded)}")
    return notes


def _places(screen: Screen, first: Forecast) -> list[str]:
    """Where what was written is, and how to go on."""
    lines = []
    if screen.trace and first.trace_path:
        lines.append(f"  open with tensorboard --logdir {screen.trace}")
    if screen.html:
        lines.append(f"  report    {screen.html}")
    lines += [f"  {what:<9} {place}" for what, place in screen.others]
    if first.recording.num_ops:
        command = check_command(screen.program, screen.gpu_names, screen.options)
        lines.append(f"  in CI     {command}")
    return lines


#: Options of the command line by what they state.
_RANK_OPTIONS = {
    "--world-size": "world_size",
    "--gpus-per-node": "gpus_per_node",
    "--rank": "ranks",
}


def check_command(
    program: Program, gpu_names: tuple[str, ...], options: ProgramOptions | None = None
) -> str:
    """The command that keeps these figures from getting worse, as a shell reads it."""
    words = ["neusight", "check", *(word for name in gpu_names for word in ("--gpu", name))]
    stated = {} if options is None else options.stated_ranks
    for option, name in _RANK_OPTIONS.items():
        words += [option, stated[name]] if name in stated else []
    return f"{shlex.join([*words, *program.words])} (first with --update)"


def _warnings_of(forecasts: list[Forecast]) -> list[str]:
    """What to know of each forecast, equal notes of several said once."""
    notes: dict[str, list[str]] = {}
    for forecast in forecasts:
        texts = list(forecast.warnings)
        if forecast.unmapped:
            texts.append(
                f"unmapped, priced by bytes over bandwidth: {', '.join(forecast.unmapped)}"
            )
        for text in texts:
            notes.setdefault(text, []).append(forecast.gpu.name)
    return [
        f"  note      {text}" + ("" if len(names) == len(forecasts) else f" ({', '.join(names)})")
        for text, names in notes.items()
    ]


_BOLD, _RED, _GREEN, _DIM, _PLAIN = "\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[2m", "\x1b[0m"
_COLOURS = (
    (re.compile(r"^(\S+: )(fits)\b", re.MULTILINE), rf"{_BOLD}\1{_GREEN}\2{_PLAIN}"),
    (re.compile(r"^(\S+: )(does not fit)\b", re.MULTILINE), rf"{_BOLD}\1{_RED}\2{_PLAIN}"),
    (re.compile(r"^(\S+: )(close)\b", re.MULTILINE), rf"{_BOLD}\1{_RED}\2{_PLAIN}"),
    (re.compile(r"\bNO\b"), rf"{_RED}NO{_PLAIN}"),
    (re.compile(r"^(  note  .*)$", re.MULTILINE), rf"{_DIM}\1{_PLAIN}"),
)


def coloured(text: str, stream: TextIO) -> str:
    """As wide as a terminal is, with colours on it unless NO_COLOR is set (https://no-color.org)."""
    text = fitted(text, stream)
    if not stream.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    for pattern, replacement in _COLOURS:
        text = pattern.sub(replacement, text)
    return text
