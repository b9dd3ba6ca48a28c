"""The user's program: a script or a module, its arguments, and its files."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from neusight.predictors.errors import OptionError

#: Hex digits of a digest of files: enough to avoid collisions, short enough to read.
_DIGITS = 16


@dataclass(frozen=True)
class Program:
    """What to run: a script's path or a module's name, and its own arguments."""

    target: str
    arguments: tuple[str, ...]
    is_module: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        """The words of the command line that start it.

        >>> Program("pkg.train", ("--fast",), is_module=True).words
        ('-m', 'pkg.train', '--fast')
        """
        return (*(("-m",) if self.is_module else ()), self.target, *self.arguments)

    @property
    def possible_paths(self) -> tuple[str, ...]:
        """The words among them that may name files of the user's, such as DIR of "--out=DIR".

        >>> Program("train.py", ("--out=runs", "8")).possible_paths
        ('train.py', 'runs', '8')
        """
        words = [word.partition("=")[2] or word for word in self.arguments]
        return tuple(words) if self.is_module else (self.target, *words)

    @property
    def title(self) -> str:
        """The name in a recording: without the script's folder.

        >>> Program("scripts/train.py", ("--fast",)).title
        'train.py --fast'
        """
        return " ".join([Path(self.target).name, *self.arguments])

    def require_script(self) -> None:
        """OptionError where it is a script that is not there."""
        if not self.is_module and not Path(self.target).is_file():
            raise OptionError(f"there is no script {self.target!r} in {Path.cwd()}")


def program_of(words: Sequence[str]) -> Program:
    """The program that `Program.words` named; there is at least a script, or -m and a module.

    >>> program_of(["train.py", "--fast"])
    Program(target='train.py', arguments=('--fast',), is_module=False)
    """
    if words[0] == "-m":
        return Program(words[1], tuple(words[2:]), is_module=True)
    return Program(words[0], tuple(words[1:]))


def own_files(folder: Path, modules: Iterable[str]) -> set[Path]:
    """The files of those loaded modules that lie below the folder; none of installed packages, of
    Python or of neusight."""
    packages = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib"))
    found = set()
    for name in modules:
        origin = getattr(sys.modules.get(name), "__file__", None)
        if not isinstance(origin, str) or origin.startswith(packages):
            continue
        path = Path(origin)
        is_ours = name.partition(".")[0] == "neusight"
        if folder in path.parents and "site-packages" not in path.parts and not is_ours:
            found.add(path)
    return found


def digest_of_files(paths: Iterable[Path]) -> str:
    """A digest of what these files hold; their names do not matter, nor those that are gone."""
    contents = []
    for path in set(paths):
        try:
            contents.append(hashlib.sha256(path.read_bytes()).hexdigest())
        except OSError:
            continue
    return hashlib.sha256("".join(sorted(contents)).encode()).hexdigest()[:_DIGITS]
