"""Command lines that mean something else than they say, and what to type instead."""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from neusight.integrations.cli.launchers import is_launcher
from neusight.integrations.program.program import Program
from neusight.predictors.files import number_of

#: The GPU of an example.
_EXAMPLE_GPU = "H100"
#: Values of an example, by the name that an option's help gives its value.
_EXAMPLES = {
    "NAME": _EXAMPLE_GPU, "FILE": "FILE", "DIR": "runs", "N": "5", "N|all": "5", "GiB": "40",
}  # fmt: skip
_EXAMPLE_FILES = {"--html": "report.html", "--json": "out.json", "--save": "recording.json.gz"}

#: Options that make scripts use the GPU, and the value of each.
_DEVICE_OPTIONS = (
    ("--device", ("cuda",)),
    ("--accelerator", ("gpu",)),
    ("--cuda", ()),
    ("--use-cuda", ()),
    ("--use_cuda", ()),
)

#: Programs that start a script, and do not belong before one here.
_LAUNCHERS = ("python", "python3", "torchrun", "accelerate", "ipython")
#: Bytes of a shell script that are searched for the script it starts.
_SHELL_SCRIPT_BYTES = 65_536
_STARTS_A_SCRIPT = re.compile(rb"(?:^|[\s;&(])(\S+\.py\b[^\n;&|#\\]*)", re.MULTILINE)
_SHELLS = ("sh", "bash", "zsh", "slurm", "sbatch")


# -- the command ---------------------------------------------------------------------------------


def command_hint(
    words: Sequence[str], commands: Mapping[str, argparse.ArgumentParser]
) -> str | None:
    """What to type where the first word is no command; None where it is one, or plain help."""
    first = words[0] if words else ""
    if first in commands or first in ("", "-h", "--help", "--version"):
        return None
    found = next((word for word in words if word in commands), None)
    if first.startswith("-") and first != "-m" and found is not None:
        position = list(words).index(found)
        moved = [found, *words[:position], *words[position + 1 :]]
        return f"options come after the command: {_typed(moved)}"
    near = difflib.get_close_matches(first, list(commands), n=1)
    if near and not first.startswith("-"):
        return f"there is no command {first!r}. Did you mean: {_typed([near[0], *words[1:]])}"
    if first == "-m" or any(_is_script(word) for word in words):
        has_gpu = any(word.partition("=")[0] == "--gpu" for word in words)
        gpu = [] if has_gpu else ["--gpu", _EXAMPLE_GPU]
        return f"say what to do with it: {_typed(['run', *gpu, *words])}"
    what = "option" if first.startswith("-") else "command"
    return f"there is no {what} {first!r}. `neusight --help` lists the commands."


# -- options -------------------------------------------------------------------------------------


def option_hint(
    words: Sequence[str], parser: argparse.ArgumentParser, program: Program | None
) -> str | None:
    """What to type where an option is none of the command's: words[0] is the command."""
    options = _options_of(parser)
    position = 1
    while position < len(words):
        word, equals, _ = words[position].partition("=")
        action = options.get(word)
        if word == "--":
            return None
        if action is not None:
            position += 1 if equals or not _takes_value(action) else 2
            continue
        if word.startswith("-") and len(word) > 1 and number_of(word) is None:
            taken = _without_its_option(words, position, parser, program)
            return taken or _unknown_option(words, position, options, program)
        position += 1
    return None


def _without_its_option(
    words: Sequence[str], position: int, parser: argparse.ArgumentParser, program: Program | None
) -> str | None:
    """What to type where "--data DIR" is what the command takes as DIR alone."""
    word, equals, value = words[position].partition("=")
    named = {action.dest: action for action in parser._actions if not action.option_strings}
    action = named.get(word.lstrip("-").replace("-", "_"))
    if action is None:
        return None
    rest = [*([value] if equals else []), *words[position + 1 :]]
    typed = [*words[:position], *rest, *([] if program is None else _command_of(program))]
    shown = action.metavar if isinstance(action.metavar, str) else action.dest
    return f"{words[0]} takes {shown} without {word}: {_typed(typed)}"


def _unknown_option(
    words: Sequence[str],
    position: int,
    options: Mapping[str, argparse.Action],
    program: Program | None,
) -> str:
    word, equals, value = words[position].partition("=")
    near = difflib.get_close_matches(word, list(options), n=1)
    if not near:
        return (
            f"{words[0]} has no option {word!r}. `neusight {words[0]} --help` lists them; options "
            "of a script come after the script."
        )
    typed = [*words[:position], f"{near[0]}{equals}{value}", *words[position + 1 :]]
    typed += [] if program is None else _command_of(program)
    return f"{words[0]} has no option {word!r}. Did you mean: {_typed(typed)}"


def missing_gpu_hint(command: str, own: Sequence[str], program: Program | None) -> str:
    """What to type where --gpu is not there, or stands after the script."""
    if program is None:
        return f"say which GPU and which script: neusight {command} --gpu {_EXAMPLE_GPU} train.py"
    before, after = _split_off(program.arguments, {"--gpu": True})
    if before:
        typed = _typed([*own, *before, *_command_of(program, after)])
        return (
            f"neusight's options come before the script, all after it is the script's own: {typed}"
        )
    typed = _typed([own[0], "--gpu", _EXAMPLE_GPU, *own[1:], *_command_of(program)])
    return f"say which GPU: {typed} (`neusight gpus` lists all)"


#: Options of `check` that nearly no script has: after the script they were meant for `check`.
_OF_CHECK = ("--update", "--baseline", "--case", "--tolerance", "--junit", "--markdown",
             "--benchmark-json")  # fmt: skip


def misplaced_option_hint(
    own: Sequence[str], program: Program, parser: argparse.ArgumentParser
) -> str | None:
    """What to type where an option of `check` stands after the script."""
    options = _options_of(parser)
    own_options = {name: _takes_value(options[name]) for name in _OF_CHECK}
    moved, rest = _split_off(program.arguments, own_options)
    if not moved:
        return None
    typed = _typed([*own, *moved, *_command_of(program, rest)])
    return (
        f"neusight's options come before the script: {typed} (if {moved[0]} is the script's own, "
        "write -- before the script)"
    )


def _split_off(
    words: Sequence[str], takes_value: Mapping[str, bool]
) -> tuple[list[str], list[str]]:
    """Those options with their values, and the rest."""
    found: list[str] = []
    rest: list[str] = []
    while words:
        word, equals, _ = words[0].partition("=")
        taken = 2 if takes_value.get(word) and not equals else 1
        (found if word in takes_value else rest).extend(words[:taken])
        words = words[taken:]
    return found, rest


def missing_program_hint(own: Sequence[str], parser: argparse.ArgumentParser) -> str:
    """What to type where no script is left: an option took it as its value, or there is none."""
    options = _options_of(parser)
    if len(own) > 2 and _is_script(own[-1]) and own[-2] in options:
        option = own[-2]
        example = _EXAMPLE_FILES.get(option) or _EXAMPLES.get(
            str(options[option].metavar), _EXAMPLE_GPU
        )
        typed = _typed([*own[:-1], example, own[-1]])
        return f"{option} took {own[-1]!r} as its value; give it one of its own: {typed}"
    if own[-1] == "-m":
        return f"-m is followed by a module: {_typed([*own, 'package.train'])}"
    typed = _typed([word for word in own if word != "--"])
    return f"give the script to run: {typed} train.py"


# -- the script ----------------------------------------------------------------------------------


def script_problem(program: Program, own: Sequence[str]) -> str | None:
    """Why that cannot be run, and what to type; `own` are the words before it, None: it can."""
    if program.is_module:
        return _no_module(program)
    path = Path(program.target)
    if path.is_dir():
        return f"{program.target} is a folder; name {_in_folder(path, program, own)}"
    if own[0] in ("run", "plan") and is_launcher(program):
        return None
    if path.name in _LAUNCHERS and not path.is_file():
        return _launched(program, own)
    if not path.is_file():
        return _not_there(program, own)
    if path.suffix == ".ipynb":
        script = [str(path.with_suffix(".py"))]
        return (
            f"{program.target} is a notebook; make a script of it first: "
            f"{shlex.join(['jupyter', 'nbconvert', '--to', 'script', program.target])} && "
            f"{_typed([*own, *script, *program.arguments])}; or in the notebook itself: "
            f"import neusight, and a cell that begins with %%neusight {_EXAMPLE_GPU}"
        )
    return _shell_script(path, program, own)


def no_cuda_hint(program: Program, own: Sequence[str]) -> str:
    """What to type where a script put nothing on the GPU: by its own option where it has one."""
    typed = [*own, *_command_of(program)]
    for option, value in _DEVICE_OPTIONS:
        if not program.is_module and f'"{option}"' in _quotes_alike(Path(program.target)):
            return (
                f"{program.target} put nothing on the GPU; it has an option for that: "
                f"{_typed([*typed, option, *value])}"
            )
    return (
        f"{program.target} put nothing on the GPU. Put its model and data there (model.cuda(), "
        f'batch.to("cuda")), and type again: {_typed(typed)}'
    )


def _quotes_alike(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").replace("'", '"')
    except OSError:
        return ""


def _no_module(program: Program) -> str | None:
    package = program.target.partition(".")[0]
    here = Path(package)
    if here.is_dir() or here.with_suffix(".py").is_file() or find_spec(package) is not None:
        return None
    return f"there is no module {package!r}, neither in {Path.cwd()} nor installed"


def _in_folder(path: Path, program: Program, own: Sequence[str]) -> str:
    if (path / "__main__.py").is_file():
        script = path / "__main__.py"
    else:
        scripts = sorted(path.glob("*.py"), key=lambda item: (item.stem != "train", item.name))
        script = next((item for item in scripts if item.name != "__init__.py"), path / "train.py")
    return f"the script in it: {_typed([*own, str(script), *program.arguments])}"


def _launched(program: Program, own: Sequence[str]) -> str:
    found = next((i for i, word in enumerate(program.arguments) if _is_script(word)), None)
    rest = ["train.py"] if found is None else list(program.arguments[found:])
    if found is None and "-m" in program.arguments[:-1]:
        rest = list(program.arguments[program.arguments.index("-m") :])
    return f"leave {program.target!r} out, neusight runs the script itself: {_typed([*own, *rest])}"


def _not_there(program: Program, own: Sequence[str]) -> str:
    there = f"there is no script {program.target!r} in {Path.cwd()}"
    path = Path(program.target)
    module = Path(*program.target.split("."))
    if module.with_suffix(".py").is_file() or (module / "__main__.py").is_file():
        typed = _typed([*own, "-m", program.target, *program.arguments])
        return f"{there}; for a module: {typed}"
    folder = path.parent
    names = [item.name for item in folder.glob("*.py")] if folder.is_dir() else []
    near = difflib.get_close_matches(path.name, names, n=1)
    if not near:
        return there
    typed = _typed([*own, str(folder / near[0]), *program.arguments])
    return f"{there}. Did you mean: {typed}"


def _shell_script(path: Path, program: Program, own: Sequence[str]) -> str | None:
    with path.open("rb") as file:
        begin = file.read(_SHELL_SCRIPT_BYTES)
    first = begin.partition(b"\n")[0]
    is_shell = first.startswith(b"#!") and first.split(b"/")[-1].split(b" ")[-1].strip() in [
        name.encode() for name in _SHELLS
    ]
    if not is_shell and path.suffix.lstrip(".") not in _SHELLS:
        return None
    found = _STARTS_A_SCRIPT.search(begin)
    try:
        words = shlex.split(found[1].decode()) if found else ["train.py"]
    except ValueError:
        words = ["train.py"]
    return (
        f"{program.target} is a shell script; give the Python script that it starts: "
        f"{_typed([*own, *words])}"
    )


# -- words ---------------------------------------------------------------------------------------


def _typed(words: Iterable[str]) -> str:
    return f"neusight {shlex.join(words)}"


def _command_of(program: Program, arguments: Sequence[str] | None = None) -> list[str]:
    rest = program.arguments if arguments is None else arguments
    return [*(["-m"] if program.is_module else []), program.target, *rest]


def _is_script(word: str) -> bool:
    return word.endswith((".py", ".ipynb")) and not word.startswith("-")


def _options_of(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    # No public name lists them; argparse has had this one since 2.7.
    return {name: action for action in parser._actions for name in action.option_strings}


def _takes_value(action: argparse.Action) -> bool:
    return action.nargs is None or action.nargs == "?"
