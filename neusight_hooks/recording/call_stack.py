"""Where the program is: its own lines, neither torch's nor neusight's, and its thread."""

from __future__ import annotations

import re
import sys
import sysconfig
import threading
from functools import cache
from importlib.util import find_spec
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType

#: The program's lines that led somewhere, innermost first, each as "file.py:12".
CallStack = tuple[str, ...]

_STANDARD_LIBRARY = sysconfig.get_path("stdlib")
_PACKAGES = ("/site-packages/", "/dist-packages/")


@cache
def _foreign_folders() -> tuple[str, ...]:
    """Where torch and neusight are."""
    torch = find_spec("torch")
    folders = [Path(__file__).parents[1]]
    if torch is not None and torch.origin is not None:
        folders.append(Path(torch.origin).parent)
    return tuple(f"{folder}/" for folder in folders)


def call_site() -> str:
    """The innermost line that is neither torch's nor neusight's own nor Python's, as "file.py:12",
    in an installed package as "package/file.py:12", in a notebook or IPython as "In[3]:12"."""
    foreign = (*_foreign_folders(), "<")
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        filename = frame.f_code.co_filename
        if cell := _cell_of(filename):
            return f"{cell}:{frame.f_lineno}"
        if not filename.startswith(foreign) and not _is_of_python(filename):
            return f"{_inside_packages(filename) or Path(filename).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _inside_packages(filename: str) -> str:
    """The path of an installed file inside the folder of packages; "" for another."""
    for packages in _PACKAGES:
        _, found, inside = filename.rpartition(packages)
        if found:
            return inside
    return ""


def program_line() -> str:
    """The innermost line of the program itself, as `call_site` gives it: neither torch's nor
    neusight's nor that of an installed package, unless there is no other."""
    frame = _program_frame()
    if frame is None:
        return call_site()
    return f"{_name_in_program(frame.f_code.co_filename)}:{frame.f_lineno}"


def program_variable(value: object) -> str:
    """What the innermost function of the program calls a value: a variable of its own, an attribute
    of its `self`, a global one; "" where none of them is the value."""
    frame = _program_frame()
    if frame is None:
        return ""
    own = _variables_of(frame)
    attributes = getattr(own.get("self"), "__dict__", {})
    submodules = attributes.get("_modules", {})
    for names in (own, attributes, submodules, frame.f_globals):
        # What pytest holds in between is no variable of the program.
        found = next((n for n, each in names.items() if each is value and n.isidentifier()), "")
        if found:
            return found
    return ""


def _variables_of(frame: FrameType) -> dict[str, object]:
    """A copy of a function's variables. Until Python 3.13 the frame keeps the dictionary that it
    gives, and so what is in it: tensors would live longer than the program has them."""
    variables = frame.f_locals
    copied = dict(variables)
    is_kept = sys.version_info < (3, 13) and frame.f_code.co_flags & CO_OPTIMIZED
    if is_kept and sys.getrefcount(variables) == _FRAME_AND_HERE:  # else locals() gave it, too
        variables.clear()
    return copied


#: References to what a frame gives: its own, that of a variable here, and that of a call with it.
_FRAME_AND_HERE = 3


def _program_frame() -> FrameType | None:
    """The innermost frame of the program itself."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = _name_in_program(frame.f_code.co_filename)
        if name and not str(frame.f_globals.get("__name__")).startswith("neusight."):
            return frame
        frame = frame.f_back
    return None


@cache
def _name_in_program(filename: str) -> str:
    """How a file of the program, or a cell, is named; "" for all others."""
    if cell := _cell_of(filename):
        return cell
    foreign = (*_foreign_folders(), _STANDARD_LIBRARY, "<")
    is_installed = any(packages in filename for packages in _PACKAGES)
    return "" if is_installed or filename.startswith(foreign) else Path(filename).name


def _is_of_python(filename: str) -> bool:
    """Whether it is a file of the standard library, or of what brings newer parts of it."""
    if any(packages in filename for packages in _PACKAGES):
        return filename.endswith("/typing_extensions.py")
    return filename.startswith(_STANDARD_LIBRARY)


def _cell_of(filename: str) -> str:
    """The cell of a notebook or of IPython that was compiled under this name, as "In[3]"; "" for
    all else."""
    if filename.startswith(_TIMED_CELLS):
        return "%%time"  # its lines begin below the magic
    is_kernel_cell = _KERNEL_FOLDER in filename and _KERNEL_CELL.search(filename)
    if not is_kernel_cell and not filename.startswith(_SHELL_CELLS):
        return ""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    name_of = getattr(getattr(shell, "compile", None), "format_code_name", None)  # since 8.0
    reported = name_of(filename) if name_of is not None else None
    if reported:
        return str(reported[1])
    numbered = _SHELL_CELL.match(filename)
    return f"In[{numbered[1]}]" if numbered else _UNNAMED_CELL


#: How IPython and ipykernel name the code of a cell (code_name in IPython/core/compilerop.py,
#: get_tmp_directory in ipykernel/compiler.py), and IPython's %%time and %%timeit what they run.
_SHELL_CELLS = "<ipython-input-"
_SHELL_CELL = re.compile(rf"{_SHELL_CELLS}(\d+)-")
_KERNEL_FOLDER = "/ipykernel_"
_KERNEL_CELL = re.compile(rf"{_KERNEL_FOLDER}\d+/\d+\.py$")
_TIMED_CELLS = ("<timed ", "<magic-timeit>")
_UNNAMED_CELL = "cell"


class CallStacks:
    """Shows where the program is, quickly: the same place gives the same object.

    Files below `folder` are named relative to it, those of installed packages relative to where
    packages are, all others by their name alone: no path of the machine gets into a recording.
    `caller` is what called the program; neither it nor what called it is looked at.
    """

    def __init__(self, folder: Path | None = None, caller: CodeType | None = None) -> None:
        self.folder = f"{Path.cwd() if folder is None else folder}/"
        self.caller = caller
        self._names: dict[int, str] = {}
        self._stacks: dict[tuple[int, ...], CallStack] = {}
        self._keep: list[CodeType] = []

    def here(self) -> CallStack:
        """The program's lines that led here."""
        names = self._names
        key: list[int] = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            if code is self.caller:
                break
            number = id(code)  # a code object's own hash reads all of it
            name = names.get(number)
            if name is None:
                name = names[number] = self._name_of(frame)
            if name:
                key.append(number)
                key.append(frame.f_lasti)
            frame = frame.f_back
        place = tuple(key)
        stack = self._stacks.get(place)
        if stack is None:
            stack = self._stacks[place] = self._lines_from(sys._getframe(1))
        return stack

    def _lines_from(self, frame: FrameType | None) -> CallStack:
        lines: list[str] = []
        below_cell = 0
        while frame is not None and frame.f_code is not self.caller:
            name = self._names[id(frame.f_code)]
            if name:
                lines.append(f"{name}:{frame.f_lineno}")
            if _cell_of(frame.f_code.co_filename):
                below_cell = len(lines)
            frame = frame.f_back
        # What called the outermost cell is the notebook, not the program.
        return tuple(lines[:below_cell] if below_cell else lines)

    def _name_of(self, frame: FrameType) -> str:
        """How a frame's file is named in a stack; "" where it is not the program's."""
        self._keep.append(frame.f_code)  # its identity must not be used again
        if str(frame.f_globals.get("__name__")).startswith("neusight."):  # from another folder
            return ""
        return file_name(frame.f_code.co_filename, self.folder)


def path_name(filename: str, folder: str) -> str:
    """How the file of any code is named, without the path of where such files are; `folder` with a
    slash at its end.

    >>> path_name("/usr/lib/python3/site-packages/torch/_tensor.py", "/home/ada/")
    'torch/_tensor.py'
    """
    if name := _cell_of(filename) or _inside_packages(filename):
        return name
    for begin in (folder, f"{_STANDARD_LIBRARY}/"):
        if filename.startswith(begin):
            return filename.removeprefix(begin)
    return filename if filename.startswith("<") else Path(filename).name


def file_name(filename: str, folder: str) -> str:
    """How the file of some code is named in a stack, `folder` with a slash at its end; "" where it
    is not the program's.

    >>> file_name("/home/ada/net/model.py", "/home/ada/")
    'net/model.py'
    """
    if cell := _cell_of(filename):
        return cell
    if filename.startswith((*_foreign_folders(), "<")):
        return ""
    if inside := _inside_packages(filename):
        return inside
    if filename.startswith(_STANDARD_LIBRARY):
        return ""
    if filename.startswith(folder) or not filename.startswith("/"):
        return filename.removeprefix(folder)
    return Path(filename).name


class ProgramThreads:
    """Numbers the threads of a program: the `main` one, which made this, is 0, each other one has
    the smallest number that no thread has which still runs. So a program that starts a thread in
    each of its steps does the same in each.

    >>> threads = ProgramThreads()
    >>> threads.number()
    0
    >>> thread = threading.Thread(target=lambda: print(threads.number()))
    >>> thread.start(); thread.join()
    1
    """

    def __init__(self) -> None:
        self.main = threading.get_ident()
        self._own = threading.local()  # the number of a thread that has one
        self._others: dict[int, threading.Thread] = {}
        self._lock = threading.Lock()

    def number(self) -> int:
        """That of the thread that calls this."""
        if threading.get_ident() == self.main:
            return 0
        found: int | None = getattr(self._own, "number", None)
        return self._new_number() if found is None else found

    def follow(self) -> bool:
        """The thread that calls this is the main one from now on; whether it was not before."""
        before, self.main = self.main, threading.get_ident()
        return before != self.main

    def _new_number(self) -> int:
        with self._lock:
            others = self._others
            number = 1
            while number in others and others[number].is_alive():
                number += 1
            others[number] = threading.current_thread()
            self._own.number = number
            return number


def is_elsewhere(entry: object) -> bool:
    """Whether an entry of a tape or of a step is of another thread than the main one. Backward
    passes are of autograd's thread, whichever thread starts them."""
    return bool(getattr(entry, "thread", 0)) and getattr(entry, "phase", "") != "backward"
