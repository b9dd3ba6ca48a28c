"""Packages that come later, and packages that cannot come at all."""

from __future__ import annotations

import functools
import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import neusight
from neusight.fake_cuda.import_hooks import when_imported
from neusight.fake_cuda.packages import CUDA_ONLY, cuda_only_package
from neusight.fake_cuda.patching import Patches


@pytest.mark.parametrize("name", ["flash_attn", "flash_attn.ops.triton", "apex", "triton"])
def test_a_missing_cuda_package_is_named(name: str) -> None:
    error = ModuleNotFoundError(f"No module named {name!r}", name=name)

    assert cuda_only_package(error) == name.partition(".")[0]
    assert name.partition(".")[0] in CUDA_ONLY


def test_other_missing_packages_are_the_scripts_own_affair() -> None:
    assert cuda_only_package(ModuleNotFoundError("No module named 'x'", name="x")) is None
    assert cuda_only_package(ImportError("cannot import name 'x'")) is None


def test_a_loaded_package_is_patched_at_once() -> None:
    patched: list[ModuleType] = []

    when_imported(Patches(), "functools", patched.append)

    assert patched == [functools]


def test_a_package_that_comes_later_is_patched_when_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "comes_later.py").write_text("value = 1")
    monkeypatch.syspath_prepend(tmp_path)
    patches = Patches()

    when_imported(patches, "comes_later", lambda module: patches.set(module, "value", 2))
    module = importlib.import_module("comes_later")
    inside = module.value
    patches.restore()

    assert (inside, module.value) == (2, 1)
    del sys.modules["comes_later"]


def test_a_package_that_never_comes_leaves_no_hook() -> None:
    before = list(sys.meta_path)
    patches = Patches()

    when_imported(patches, "never_comes", lambda module: None)
    assert len(sys.meta_path) == len(before) + 1
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("never_comes")
    patches.restore()

    assert sys.meta_path == before


def test_a_package_that_compares_types_sees_a_plain_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "optimum.quanto.tensor.weights.qbits"
    module = ModuleType(name)
    exec("def type_of(value): return type(value)", vars(module))
    monkeypatch.setitem(sys.modules, name, module)

    with neusight.forecast_on("H100"):
        inside = module.type_of(torch.ones(2, device="cuda"))
        parameter = module.type_of(torch.nn.Parameter(torch.ones(2, device="cuda")))

    assert (inside, parameter) == (torch.Tensor, torch.nn.Parameter)
    assert "type" not in vars(module)
