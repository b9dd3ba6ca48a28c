"""What git says of a repository: its folder, its revisions, what is not committed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from neusight.predictors.errors import OptionError

#: Digits of a commit that are shown.
_SHORT = 8
#: What a hook, or a shell, may have set for another repository or another index.
_OF_ANOTHER = ("GIT_DIR", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_WORK_TREE")
#: The mode of a submodule in a tree.
_SUBMODULE = "160000"


@dataclass(frozen=True)
class Revision:
    """A commit, by the name that was requested; the working tree where `commit` is ""."""

    name: str
    commit: str = ""

    @property
    def title(self) -> str:
        """How it is shown.

        >>> Revision("main", "1a2b3c4d5e6f").title
        'main (1a2b3c4d)'
        """
        short = self.commit[:_SHORT]
        return f"{self.name} ({short})" if self.commit and self.name != short else self.name


@dataclass(frozen=True)
class Submodule:
    """Where a revision has another repository, and at which commit."""

    path: str
    commit: str


@dataclass(frozen=True)
class Repository:
    """A repository by the folder that its files are in."""

    root: Path

    def output_of(self, *words: str) -> str:
        """What `git` prints; OptionError with its own last line where it fails."""
        done = _git(self.root, *words)
        if done.returncode:
            reported = done.stderr.strip().splitlines() or ["it failed"]
            raise OptionError(f"git {words[0]}: {reported[-1].removeprefix('fatal: ')}")
        return done.stdout

    def revisions(self, text: str) -> tuple[Revision, Revision]:
        """Those of "A..B", of "A...B" (from where B left A), or of "A" against the working tree;
        what is left out is HEAD. OptionError for what is no revision."""
        first, dots, second = text.partition("..")
        if not dots:
            return self._revision(text), Revision("the working tree")
        of_both = second.startswith(".")
        before, after = first or "HEAD", second.removeprefix(".") or "HEAD"
        now = self._revision(after)
        if not of_both:
            return self._revision(before), now
        base = _git(self.root, "merge-base", self._revision(before).commit, now.commit)
        if base.returncode:
            raise OptionError(f"{before} and {after} have no commit in common; compare {before}..")
        return Revision(f"where {after} left {before}", base.stdout.strip()), now

    def _revision(self, name: str) -> Revision:
        done = _git(self.root, "rev-parse", "--verify", "--quiet", "--end-of-options",
                    f"{name}^{{commit}}")  # fmt: skip
        if done.returncode:
            raise OptionError(
                f"{name!r} is no revision of {self.root}. `git branch --all` lists branches; of a "
                "shallow clone `git fetch --unshallow` gets the rest."
            )
        return Revision(name, done.stdout.strip())

    @property
    def num_changed(self) -> int:
        """Files that differ from the last commit, or that git does not know yet."""
        return len(self.output_of("status", "--porcelain").splitlines())

    def has_commit(self, commit: str) -> bool:
        """Whether that commit is here."""
        return _git(self.root, "cat-file", "-e", f"{commit}^{{commit}}").returncode == 0

    def submodules(self, commit: str) -> Iterator[Submodule]:
        """Other repositories that a commit has in it."""
        for entry in filter(None, self.output_of("ls-tree", "-r", "-z", commit).split("\0")):
            about, _, path = entry.partition("\t")
            mode, _, name = about.split(" ")
            if mode == _SUBMODULE:
                yield Submodule(path, name)

    def check_out(self, commit: str, folder: Path) -> None:
        """Puts the files of a commit there, as a work tree; no hook runs."""
        self.output_of("-c", "core.hooksPath=/dev/null", "worktree", "add", "--quiet", "--force",
                  "--detach", str(folder), commit)  # fmt: skip


def repository_of(folder: Path) -> Repository:
    """The repository that a folder lies in; OptionError where there is none."""
    try:
        done = _git(folder, "rev-parse", "--show-toplevel")
    except FileNotFoundError:
        raise OptionError("--git needs git, which is not installed here") from None
    if done.returncode or not done.stdout.strip():
        reported = done.stderr.strip().splitlines() or ["a repository without files of its own"]
        raise OptionError(
            f"{folder} is not in a git repository whose files can be compared: "
            f"{reported[0].removeprefix('fatal: ')}"
        )
    return Repository(Path(done.stdout.strip()))


def _git(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: text for name, text in os.environ.items() if name not in _OF_ANOTHER}
    environment |= {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    return subprocess.run(
        ["git", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        check=False,
    )
