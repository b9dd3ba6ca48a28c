"""`scripts/mutate` finds what it changes, in every package that it names."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from places import ROOT


@pytest.fixture(scope="module")
def mutate() -> Iterator[Any]:
    loader = importlib.machinery.SourceFileLoader("mutate", str(ROOT / "scripts" / "mutate"))
    spec = importlib.util.spec_from_loader("mutate", loader)
    assert spec is not None
    module = sys.modules["mutate"] = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    yield module
    del sys.modules["mutate"]


def test_each_named_change_is_of_text_that_stands_there_once(mutate: Any) -> None:
    assert len(list(mutate.named_changes())) == len(mutate.NAMED)


@pytest.mark.slow
def test_as_many_changes_are_drawn_from_each_package(mutate: Any) -> None:
    drawn = mutate.drawn_changes(seed=0, count=10 * len(mutate.PACKAGES))

    counts = Counter(mutate.package_of(change.path) for change in drawn)
    assert counts == dict.fromkeys(mutate.PACKAGES, 10)
    assert drawn == mutate.drawn_changes(seed=0, count=10 * len(mutate.PACKAGES))


def test_the_test_of_a_file_and_its_examples_run_first(mutate: Any) -> None:
    first, second, *_ = mutate.tests_of("neusight_hooks/timeline/host.py")

    examples = "tests/test_docstrings.py::test_examples_hold[neusight_hooks/timeline/host.py]"
    assert first == ("tests/timeline/test_host.py", examples)
    assert next(mutate.tests_of("neusight_hooks/timeline/streams.py")) == (
        "tests/timeline/test_streams.py",
    )
    assert second == mutate.PACKAGES["neusight_hooks/timeline"]
    assert all((ROOT / test).exists() for tests in mutate.PACKAGES.values() for test in tests)


@pytest.mark.slow
def test_unchanged_lines_pass_as_the_changes_are_run(mutate: Any, tmp_path: Path) -> None:
    copy = mutate.Copy(tmp_path)

    assert not copy.fails(
        "tests/test_mutation.py::test_the_test_of_a_file_and_its_examples_run_first"
    )


def test_a_package_with_too_many_survivors_fails_though_all_together_are_enough(
    mutate: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    packages = list(mutate.PACKAGES)
    good = {package: [True] * 20 for package in packages}

    assert not mutate.is_too_little(good)
    assert mutate.is_too_little({**good, packages[0]: [True] * 8 + [False] * 2})
    assert f"{packages[0]:40} 8 of 10 changes noticed: 80%" in capsys.readouterr().out
