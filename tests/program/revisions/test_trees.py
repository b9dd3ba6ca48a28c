"""Trees of revisions: their own files, and nothing left behind however the block ends."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from neusight.integrations.program.program import Program
from neusight.integrations.program.revisions.git import Repository, repository_of
from neusight.integrations.program.revisions.trees import checked_out, program_in
from neusight.predictors.errors import OptionError


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always")
    command = ["git", *identity, *words]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def committed(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "more")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    root = tmp_path / "project"
    root.mkdir()
    git(root, "init", "-q", "-b", "main", ".")
    committed(root, train="first")
    git(root, "checkout", "-q", "-b", "work")
    committed(root, train="second", other="new")
    monkeypatch.chdir(root)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return repository_of(root)


def places_left(repository: Repository) -> list[str]:
    """What is there beside the project, and what git remembers of other work trees."""
    beside = [path.name for path in repository.root.parent.glob("neusight-*")]
    known = git(repository.root, "worktree", "list", "--porcelain").count("worktree ")
    return [*beside, *["work tree"] * (known - 1)]


def test_each_revision_has_its_own_files_and_the_working_tree_is_as_it_is(
    repository: Repository,
) -> None:
    (repository.root / "train.py").write_text("third")

    with checked_out(repository, repository.revisions("main")) as (first, second):
        texts = [(tree.folder / "train.py").read_text() for tree in (first, second)]

    assert texts == ["first", "third"]
    assert second.notes == ("1 file not committed",)
    assert places_left(repository) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, OptionError, SystemExit])
def test_nothing_is_left_behind_whatever_ends_it(
    repository: Repository, error: type[BaseException]
) -> None:
    with pytest.raises(error), checked_out(repository, repository.revisions("main..work")):
        assert len(places_left(repository)) == 3
        raise error

    assert places_left(repository) == []


def test_a_script_that_one_revision_lacks_is_named_with_the_one_that_has_it(
    repository: Repository,
) -> None:
    with checked_out(repository, repository.revisions("main..work")) as trees:
        assert program_in(Program("./train.py", ("8",)), trees) == Program("train.py", ("8",))
        absolute = str(repository.root / "train.py")
        assert program_in(Program(absolute, ()), trees).target == "train.py"
        with pytest.raises(OptionError, match=r"other.py is not in main .* it is in work"):
            program_in(Program("other.py", ()), trees)


def test_hooks_of_the_repository_do_not_run(repository: Repository) -> None:
    hook = repository.root / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\ntouch $(git rev-parse --git-common-dir)/ran\n")
    hook.chmod(0o755)

    with checked_out(repository, repository.revisions("main..work")):
        pass

    assert not (repository.root / ".git" / "ran").exists()


def test_a_folder_that_a_revision_lacks_is_reported(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository.root / "young").mkdir()
    monkeypatch.chdir(repository.root / "young")

    with (
        pytest.raises(OptionError, match=r"main \(.*\) has no folder young"),
        checked_out(repository, repository.revisions("main")),
    ):
        pass

    assert places_left(repository) == []


def test_data_that_git_does_not_keep_is_linked_where_asked(repository: Repository) -> None:
    (repository.root / "data").mkdir()
    (repository.root / "data" / "x.txt").write_text("x")
    revisions = repository.revisions("main..work")

    with checked_out(repository, revisions, ["data"]) as trees:
        assert [(tree.folder / "data/x.txt").read_text() for tree in trees] == ["x", "x"]
    for name, problem in (("train.py", "git keeps it"), ("absent", "there is no such file or f")):
        with (
            pytest.raises(OptionError, match=f"--link {name}: {problem}"),
            checked_out(repository, revisions, [name]),
        ):
            pass

    assert (repository.root / "data" / "x.txt").read_text() == "x"


def test_packages_installed_from_the_repository_come_from_the_tree(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository.root / "src").mkdir()
    (repository.root / "src" / "__init__.py").write_text("")
    git(repository.root, "add", "-A")
    git(repository.root, "commit", "-q", "-m", "src")
    monkeypatch.syspath_prepend(str(repository.root / "src"))

    with checked_out(repository, repository.revisions("HEAD")) as (then, now):
        first = then.environment["PYTHONPATH"].split(os.pathsep)[0]
        assert first == str(then.root / "src")
        assert str(repository.root) not in now.environment["PYTHONPATH"]


def test_a_submodule_is_filled_from_what_is_here_or_reported(
    repository: Repository, tmp_path: Path
) -> None:
    library = tmp_path / "library"
    library.mkdir()
    git(library, "init", "-q", "-b", "main", ".")
    committed(library, lib="old")
    git(repository.root, "submodule", "--quiet", "add", str(library), "lib")
    git(repository.root, "commit", "-q", "-m", "lib")

    with checked_out(repository, repository.revisions("HEAD")) as (then, _):
        assert ((then.root / "lib" / "lib.py").read_text(), then.notes) == ("old", ())
    git(repository.root, "submodule", "--quiet", "deinit", "--force", "lib")
    with checked_out(repository, repository.revisions("HEAD")) as (then, _):
        assert "the submodule lib is empty there" in then.notes[0]

    assert places_left(repository) == []
