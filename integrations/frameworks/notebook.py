"""`%%neusight H100` in notebooks and IPython: the cell runs as on that GPU, and its forecast shows.

The first line of such a cell becomes a string, and the statements below it the body of a `with`
that opens a forecast: so they are the notebook's own code, with its variables, magics, `await`,
tracebacks and line numbers. Where a magic begins the lines below, this one runs as magics do.
"""

from __future__ import annotations

import argparse
import ast
import re
import shlex
import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, NoReturn

from neusight.integrations.program.progress.reporting import (
    ReportInterval,
    progress_text,
    report_progress,
)
from neusight.predictors.errors import NeusightError

if TYPE_CHECKING:
    from neusight.forecast import Forecast
    from neusight.session import Session, SessionOptions

#: The name of the magic, and how a cell that it begins looks.
MAGIC = "neusight"
_BEGINS_CELL = re.compile(rf"%%{MAGIC}(?=\s|$)")

#: Most cells have ended before.
_REPORT_INTERVAL = ReportInterval(3.0, 1.0)

#: The name that the open cell has among the notebook's variables while it runs.
_OPEN_CELL = "_neusight_cell"

_USAGE = f"%%{MAGIC} GPU [--steps N] [--as NAME] [options]"
_DESCRIPTION = (
    "Run this cell as on that GPU and show the forecast, which is then in _ too. Its variables are "
    "the notebook's; CUDA tensors end with the cell, models moved to the GPU are back afterwards. "
    "Time inside is the forecast's."
)


class _Parser(argparse.ArgumentParser):
    """Shows what is wrong in a line, as magics do."""

    def error(self, message: str) -> NoReturn:
        raise _usage_error(f"{message}\nusage: {_USAGE}")


def _usage_error(text: str) -> Exception:
    """IPython shows it as one line, without a traceback."""
    from IPython.core.error import UsageError

    error = UsageError(text)
    assert isinstance(error, Exception)
    return error


def _parser() -> argparse.ArgumentParser:
    usage = _USAGE.replace("%", "%%")
    parser = _Parser(usage=usage, description=_DESCRIPTION, add_help=False)
    parser.add_argument("gpu", nargs="?", metavar="GPU",
                        help="the GPU (`!neusight gpus` lists all)")  # fmt: skip
    parser.add_argument("--steps", default="all", metavar="N|all",
                        help="end the cell after N steady steps (default: all)")  # fmt: skip
    parser.add_argument("--as", dest="name", metavar="NAME", help="variable for the forecast")
    parser.add_argument("--predictor", metavar="NAME", help="who prices the kernels")
    parser.add_argument("--calibration", metavar="FILE",
                        help="calibration of the GPU (`neusight calibrate`)")  # fmt: skip
    parser.add_argument("--host", metavar="NAME", help="cost of the host")
    parser.add_argument("--torch", metavar="VERSION", help="price that version's kernels, as 2.4")
    parser.add_argument("--samples", type=int, metavar="N", help="samples per step")
    parser.add_argument("--tokens", type=int, metavar="N", help="the same for tokens")
    parser.add_argument("--strict", action="store_true", help="fail at the first unmapped op")
    parser.add_argument("--out-of-memory", choices=("report", "raise"), default="report",
                        help="go on past the GPU's memory, or raise as it would")  # fmt: skip
    parser.add_argument("--allow-writes", action="store_true",
                        help="files that the cell writes stay")  # fmt: skip
    parser.add_argument("--keep-writes", metavar="DIR", help="keep them there")
    parser.add_argument("--quiet", action="store_true", help="show the verdict only, in a line")
    parser.add_argument("--help", "-h", action="store_true", help="show these options")
    return parser


# -- the cell ------------------------------------------------------------------------------------


class NotebookCell:
    """A cell whose forecast is open; as a context manager it opens and ends it, shows the cell's
    last value and the forecast, and keeps both as IPython keeps what a cell gives."""

    def __init__(self, shell: Any, line: str) -> None:
        self._shell = shell
        self._options = _options_of(line)
        self._session: Session | None = None
        self._reporting: AbstractContextManager[None] = nullcontext()
        #: What the last line of the cell gave.
        self.value: object = None

    def __enter__(self) -> NotebookCell:
        from neusight.session import Session

        options = self._options
        try:
            session = Session(_session_options(options, _number_of_cell(self._shell)))
            session.open()
        except (NeusightError, ValueError, OSError) as error:
            raise _usage_error(str(error)) from None
        self._session = session
        if not options.quiet and hasattr(self._shell, "kernel"):  # a terminal would keep each line
            line = _UpdatedLine()
            self._reporting = report_progress(
                line, lambda s: progress_text(session, s), _REPORT_INTERVAL
            )
            self._reporting.__enter__()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> bool:
        session, self._session = self._session, None
        assert session is not None
        try:
            session.record_failure(error)
            session.close()
        finally:
            self._reporting.__exit__(None, None, None)
        self._shell.user_ns.pop(_OPEN_CELL, None)
        forecast = session.forecast
        if self._options.name:
            self._shell.push({self._options.name: forecast})
        from neusight.recording.tape import EnoughSteps

        is_ended = isinstance(error, EnoughSteps)  # as its steps were steady (--steps)
        if error is None or is_ended:
            self._show(forecast)
        else:
            _leave_out_own_lines(error)
        return is_ended

    def _show(self, forecast: Forecast) -> None:
        from IPython.display import display

        show: Any = display  # it has no annotations
        self._shell.displayhook(self.value)  # as any cell's last value, but for its semicolon
        show(ShownForecast(forecast, is_quiet=self._options.quiet))
        self._shell.displayhook.update_user_ns(forecast)


class _UpdatedLine:
    """An output of the cell that says how far it is, and is empty at the end."""

    def __init__(self) -> None:
        self._output: Any = None

    def show(self, text: str) -> None:
        """Puts the text in place of the one before."""
        from IPython.display import display

        show: Any = display  # it has no annotations
        data = {"text/plain": text}
        if self._output is None:
            self._output = show(data, raw=True, display_id=True)
        else:
            self._output.update(data, raw=True)

    def clear(self) -> None:
        """Takes it away."""
        if self._output is not None:
            self._output.update({"text/plain": ""}, raw=True)


class ShownForecast:
    """What a cell shows of its forecast: the report in a notebook, the summary in a terminal."""

    def __init__(self, forecast: Forecast, *, is_quiet: bool = False) -> None:
        self._forecast = forecast
        self._is_quiet = is_quiet

    def __repr__(self) -> str:
        summary = self._forecast.summary()
        return summary.partition("\n")[0] if self._is_quiet else summary

    def _repr_html_(self) -> str | None:
        return None if self._is_quiet else self._forecast._repr_html_()


def open_cell(shell: Any, line: str) -> NotebookCell:
    """What `%%neusight LINE` opens; variables of the notebook in braces or behind $ are filled in,
    as in the line of any magic. UsageError for what means nothing."""
    return NotebookCell(shell, shell.var_expand(line, depth=1))


def _options_of(line: str) -> argparse.Namespace:
    parser = _parser()
    try:
        words = shlex.split(line)
    except ValueError as error:
        parser.error(str(error))
    options = parser.parse_args(words)
    if options.gpu is None:
        parser.error("name the GPU to forecast on")
    if options.name is not None and not options.name.isidentifier():
        parser.error(f"--as is {options.name!r}; it must be the name of a variable")
    return options


def asks_for_help(line: str) -> bool:
    """Whether the line behind `%%neusight` asks for its options, so that the cell is not run."""
    return bool({"--help", "-h"} & set(line.split()))


def print_help() -> None:
    """What `%%neusight --help` prints."""
    print(f"{_parser().format_help()}\nThe cell was not run.")


def _session_options(options: argparse.Namespace, number: int) -> SessionOptions:
    """As `neusight run` makes them, for a cell; what means nothing is refused as there."""
    from neusight.integrations.program.options import STATED, ProgramOptions, stated_options
    from neusight.integrations.program.recorded import forecast_options_for
    from neusight.predictors.gpu import find_gpu
    from neusight.session import SessionOptions

    others = ProgramOptions(samples=options.samples, tokens=options.tokens)
    stated = stated_options({name: getattr(options, name) for name in STATED}, others)
    return SessionOptions(
        forecast_options_for(find_gpu(options.gpu), stated),
        on_out_of_memory=options.out_of_memory,
        strict=options.strict,
        virtual_time=True,
        allow_writes=options.allow_writes,
        keep_writes=options.keep_writes,
        steady_steps=stated.steps,
        max_ops=stated.max_ops,
        script=f"In[{number}]",
        stated=stated.stated,
    )


def _number_of_cell(shell: Any) -> int:
    """What stands before the cell that runs, as In[3]; when `execution_count` moves on is another
    moment in each version."""
    history = shell.history_manager
    return shell.execution_count if history is None else len(history.input_hist_parsed) - 1


def _leave_out_own_lines(error: BaseException) -> None:
    """The traceback shows the notebook's lines, and those of packages; of neusight only where it
    is at fault."""
    from neusight.integrations.program.errors.internal_failure import is_debugging
    from neusight.integrations.program.errors.script_errors import (
        is_of_the_depths,
        without_own_frames,
    )

    is_fault = isinstance(error, Exception) and is_of_the_depths(error)
    if not is_fault and not is_debugging():
        error.__traceback__ = without_own_frames(error.__traceback__)


# -- the magic -----------------------------------------------------------------------------------


def _begin_as_text(lines: list[str]) -> list[str]:
    """A cell that begins with %%neusight: its first line as a string, above which even an import
    from __future__ may not stand, so that the others stay lines of the notebook. Left as it is
    where another magic begins below."""
    if not lines or not _BEGINS_CELL.match(lines[0]):
        return lines
    body = "".join(lines[1:]).lstrip()
    return lines if body.startswith("%%") else [f"{lines[0].rstrip()!r}\n", *lines[1:]]


class _CellForecaster(ast.NodeTransformer):
    """Puts the statements below that first line into a `with` that opens the forecast."""

    def visit_Module(self, module: ast.Module) -> ast.Module:
        first, *body = module.body or [ast.Pass()]
        text = _text_of(first)
        if not _BEGINS_CELL.match(text):
            return module
        future = [item for item in body if _is_future(item)]
        body = [item for item in body if not _is_future(item)]
        line = _BEGINS_CELL.sub("", text).strip()
        module.body = [*future, _with_forecast(first, line, body)]
        if asks_for_help(line):
            module.body = [_own_statement(first, "print_help()")]
        return module


def _text_of(statement: ast.stmt) -> str:
    """The string that a statement consists of; "" where it is another one."""
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Constant):
        return ""
    value = statement.value.value
    return value if isinstance(value, str) else ""


def _is_future(statement: ast.stmt) -> bool:
    """Whether it must stand above all others."""
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


def _with_forecast(first: ast.stmt, line: str, body: list[ast.stmt]) -> ast.stmt:
    """The statement, in the place of the line that asks for it."""
    call = f"open_cell(get_ipython(), {line!r}) as {_OPEN_CELL}: pass"
    opened = _own_statement(first, call, before="with ")
    assert isinstance(opened, ast.With)
    opened.body = [*body[:-1], *map(_kept_value, body[-1:])] or opened.body
    return opened


def _own_statement(first: ast.stmt, call: str, *, before: str = "") -> ast.stmt:
    """A statement that calls a function of this module, in the place of the line that asks for it;
    the notebook need not have imported anything."""
    module = f"__import__({__name__!r}, fromlist=['open_cell'])"
    statement = ast.parse(f"{before}{module}.{call}").body[0]
    for node in ast.walk(statement):
        ast.copy_location(node, first)
    return statement


def _kept_value(statement: ast.stmt) -> ast.stmt:
    """The last line of a cell, its value kept to be shown when the forecast has ended."""
    if not isinstance(statement, ast.Expr):
        return statement
    kept = ast.parse(f"{_OPEN_CELL}.value = None").body[0]
    assert isinstance(kept, ast.Assign)
    for node in ast.walk(kept):
        ast.copy_location(node, statement)
    kept.value = statement.value
    return kept


def _run_magic(line: str, cell: str | None = None) -> object:
    """Runs the cell as on that GPU and shows the forecast: %%neusight GPU [--steps N] [--as NAME].

    `%%neusight --help` lists the options.
    """
    from IPython.core.getipython import get_ipython

    if cell is None:
        raise _usage_error(f"%%{MAGIC} begins a cell, with two %; usage: {_USAGE}")
    if asks_for_help(line):
        print_help()
        return None
    shell: Any = get_ipython()
    with NotebookCell(shell, line):
        below = shell.transform_cell(cell)
        tree = shell.transform_ast(shell.compile.ast_parse(below))
        name = shell.compile.cache(below, _number_of_cell(shell), raw_code=cell)
        exec(compile(tree, name, "exec"), shell.user_ns)
    return None


def load_ipython_extension(shell: Any) -> None:
    """What `%load_ext neusight` does: from here on there is `%%neusight`."""
    unload_ipython_extension(shell)  # that of an older version of this module
    shell.input_transformers_cleanup.append(_begin_as_text)
    shell.ast_transformers.append(_CellForecaster())
    shell.register_magic_function(_run_magic, magic_kind="line_cell", magic_name=MAGIC)


def unload_ipython_extension(shell: Any) -> None:
    """What `%unload_ext neusight` does."""
    for hooks in (shell.input_transformers_cleanup, shell.ast_transformers):
        hooks[:] = [
            hook
            for hook in hooks
            if __name__ not in (getattr(hook, "__module__", ""), type(hook).__module__)
        ]
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop(MAGIC, None)


def register_where_it_runs() -> None:
    """Registers the magic in the notebook or IPython that runs this, if any."""
    with suppress(AttributeError):  # an IPython that is imported, but not to its end
        shell = sys.modules["IPython"].get_ipython()
        if shell is not None and MAGIC not in shell.magics_manager.magics["cell"]:
            load_ipython_extension(shell)
