"""Temporary folders with the files of revisions, in which programs run."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from neusight.integrations.program.program import Program
from neusight.integrations.program.revisions.git import Repository, Revision
from neusight.interrupts import handled_by
from neusight.predictors.errors import OptionError


@dataclass(frozen=True)
class Tree:
    """The files of a revision: `root` of all, `folder` where programs run, the one in it that was
    asked from. `notes` say what is not in it."""

    revision: Revision
    root: Path
    folder: Path
    notes: tuple[str, ...] = ()

    @property
    def environment(self) -> dict[str, str]:
        """The process's own, but that packages which are installed from the repository (`pip
        install -e`) are imported from this tree."""
        known = os.environ.get("PYTHONPATH", "")
        own = [str(path) for path in self._import_paths()]
        return {**os.environ, "PYTHONPATH": os.pathsep.join([*own, *filter(None, [known])])}

    def _import_paths(self) -> Iterator[Path]:
        if not self.revision.commit:
            return
        repository = Path(os.path.normpath(Path.cwd() / os.path.relpath(self.root, self.folder)))
        for path in dict.fromkeys(_places_of_imports()):
            if path == repository or repository in path.parents:
                there = self.root / path.relative_to(repository)
                if there.is_dir():
                    yield there


def _places_of_imports() -> Iterator[Path]:
    """Folders that packages are imported from, those of setuptools' editable finders too."""
    yield from (Path(word) for word in sys.path if word)
    for name, module in list(sys.modules.items()):
        if name.startswith("__editable__"):
            mapping = getattr(module, "MAPPING", {})
            yield from (
                Path(place).parent
                for package, place in mapping.items()
                if Path(place).name == package
            )


@contextmanager
def checked_out(
    repository: Repository, revisions: Sequence[Revision], links: Iterable[str] = ()
) -> Iterator[list[Tree]]:
    """A tree of each revision, the working tree as it is; gone at the end, also after Ctrl-C.

    `links` are files that git does not keep, such as data: each tree has a link to them.
    OptionError where a revision has no such folder as this one.
    """
    here = Path.cwd()
    inside = here.relative_to(repository.root)
    place = Path(tempfile.mkdtemp(prefix="neusight-"))
    try:
        trees = []
        for number, revision in enumerate(revisions):
            if not revision.commit:
                count = repository.num_changed
                changed = [f"{count} file{'s' if count > 1 else ''} not committed"] if count else []
                trees.append(Tree(revision, repository.root, here, tuple(changed)))
                continue
            root = place / "ab"[number % 2]
            repository.check_out(revision.commit, root)
            notes = tuple(_check_out_submodules(repository, revision.commit, root))
            tree = Tree(revision, root, root / inside, notes)
            if not tree.folder.is_dir():
                raise OptionError(f"{revision.title} has no folder {inside}; compare from another")
            _link(tree, links)
            trees.append(tree)
        yield trees
    finally:
        with handled_by({signal.SIGINT: lambda number, frame: None}):  # nothing is left behind
            _remove(place)


def program_in(program: Program, trees: Sequence[Tree]) -> Program:
    """The program by a name that means the same in each tree; OptionError where one lacks it."""
    if program.is_module:
        return program
    here, target = Path.cwd(), Path(os.path.abspath(program.target))  # noqa: PTH100 (links stay)
    root = Path(os.path.normpath(here / os.path.relpath(trees[0].root, trees[0].folder)))
    if root not in target.parents:
        return replace(program, target=str(target))
    name = os.path.relpath(target, here)
    having = [tree for tree in trees if (tree.folder / name).is_file()]
    for tree in trees:
        if tree not in having:
            others = f", it is in {having[0].revision.title}" if having else ""
            raise OptionError(
                f"{program.target} is not in {tree.revision.title}{others}. Compare revisions that "
                "both have it, under the same name."
            )
    return replace(program, target=name)


def _check_out_submodules(repository: Repository, commit: str, root: Path) -> Iterator[str]:
    """Fills the folders of other repositories from what is here of them; says what is not."""
    for found in repository.submodules(commit):
        own = Repository(repository.root / found.path)
        is_here = (own.root / ".git").exists() and own.has_commit(found.commit)
        if not is_here:
            yield (
                f"the submodule {found.path} is empty there: its commit {found.commit[:8]} is not "
                f"here (git submodule update --init {found.path})"
            )
            continue
        own.check_out(found.commit, root / found.path)
        yield from _check_out_submodules(own, found.commit, root / found.path)


def _link(tree: Tree, links: Iterable[str]) -> None:
    for name in links:
        source, there = Path.cwd() / name, tree.folder / name
        if not source.exists():
            raise OptionError(f"--link {name}: there is no such file or folder")
        if there.exists():
            raise OptionError(f"--link {name}: git keeps it, {tree.revision.title} has its own")
        there.parent.mkdir(parents=True, exist_ok=True)
        there.symlink_to(source, target_is_directory=source.is_dir())


def _remove(place: Path) -> None:
    """Removes the folders and their entries in git."""
    for marker in [path for path in place.rglob(".git") if path.is_file()]:
        kept = marker.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
        if Path(kept).parent.name == "worktrees":
            shutil.rmtree(kept, ignore_errors=True)
            if not any(Path(kept).parent.iterdir()):
                Path(kept).parent.rmdir()
    shutil.rmtree(place, ignore_errors=True)
