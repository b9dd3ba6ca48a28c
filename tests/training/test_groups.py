"""The ratchet of groups: a group that got worse is named, whatever the others did."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from places import ROOT


@pytest.fixture(scope="module")
def groups() -> ModuleType:
    """benchmarks/groups.py, which is no package."""
    spec = importlib.util.spec_from_file_location("groups", ROOT / "benchmarks" / "groups.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_group_that_grew_by_more_than_a_tenth_of_its_error_is_worse(groups: ModuleType) -> None:
    now = {"a": groups.Score(9, 0.111, 0.1), "b": groups.Score(9, 0.01, 0.0)}

    assert groups.worse(now, {"a": 0.1, "b": 0.5}) == ["a: 10.0% -> 11.1%"]
    assert groups.worse(now, {"a": 0.102, "b": 0.5}) == []


def test_a_group_that_is_gone_is_named(groups: ModuleType) -> None:
    assert groups.worse({}, {"a": 0.1}) == ["a: no longer scored"]


def test_stored_programs_are_grouped_by_gpu_way_and_what_dominates(groups: ModuleType) -> None:
    names = {name for name, _ in groups.programs()}

    assert "programs: H100-SXM5-80GB, compiled, convolution" in names
    assert any(name.startswith("published: ") and name.endswith("NHWC") for name in names)


def test_a_group_says_its_error_and_its_bias(groups: ModuleType) -> None:
    text = groups.table({"a": groups.Score(9, 0.25, -0.2)})

    assert text.splitlines()[1].split() == ["a", "9", "25.0%", "-20.0%"]
