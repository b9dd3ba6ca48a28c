"""What git says: revisions by the forms that people know, and clear words for what is none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from neusight.integrations.program.revisions.git import Repository, Revision, repository_of
from neusight.predictors.errors import OptionError


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    command = ["git", *identity, *words]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """A repository of main and of a branch that left it a commit ago."""
    git(tmp_path, "init", "-q", "-b", "main", ".")
    for branch, text in (("main", "one"), ("work", "two"), ("main", "three")):
        if branch == "work":
            git(tmp_path, "checkout", "-q", "-b", branch)
        elif text == "three":
            git(tmp_path, "checkout", "-q", "main")
        (tmp_path / "train.py").write_text(text)
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-q", "-m", text)
    return repository_of(tmp_path)


def commit(repository: Repository, name: str) -> str:
    return git(repository.root, "rev-parse", name).strip()


@pytest.mark.parametrize(
    ("text", "first", "second"),
    [
        ("main..work", "main", "work"),
        ("main..", "main", "HEAD"),
        ("..work", "HEAD", "work"),
        ("main...work", "main~1", "work"),
        ("main~1..main", "main~1", "main"),
    ],
)
def test_two_revisions_are_named_as_for_git_diff(
    repository: Repository, text: str, first: str, second: str
) -> None:
    found = repository.revisions(text)

    assert [item.commit for item in found] == [commit(repository, name) for name in (first, second)]


def test_one_revision_stands_against_the_working_tree(repository: Repository) -> None:
    (repository.root / "new.py").write_text("")

    first, second = repository.revisions("work")

    assert (first.commit, second) == (commit(repository, "work"), Revision("the working tree"))
    assert repository.num_changed == 1


@pytest.mark.parametrize("text", ["nope", "main..nope", "--help", "main..-x", "HEAD:train.py"])
def test_what_is_no_revision_is_refused_by_its_name(repository: Repository, text: str) -> None:
    with pytest.raises(OptionError, match="is no revision of"):
        repository.revisions(text)


def test_branches_without_a_common_commit_have_no_third_dot(repository: Repository) -> None:
    git(repository.root, "checkout", "-q", "--orphan", "alone")
    git(repository.root, "commit", "-q", "-m", "alone")

    with pytest.raises(OptionError, match="no commit in common"):
        repository.revisions("main...alone")


def test_a_folder_outside_of_any_repository_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))

    with pytest.raises(OptionError, match="is not in a git repository"):
        repository_of(tmp_path)


def test_what_git_refuses_and_a_machine_without_git_are_reported(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OptionError, match=r"^git nonsense: .*not a git command"):
        repository.output_of("nonsense")

    monkeypatch.setenv("PATH", "")
    with pytest.raises(OptionError, match="--git needs git, which is not installed here"):
        repository_of(repository.root)


def test_another_repository_in_the_environment_is_not_asked(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))

    assert repository_of(tmp_path) == repository
