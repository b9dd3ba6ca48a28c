"""A late module is as the module is, and its code runs when somebody asks for it."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from neusight.fake_cuda.torch_api.lazy_modules import LazyModule, install_lazy, load_lazy_modules_in
from warm_python import run_python

NAME = "package_that_is_late"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A package whose code imports a module of its own, late until something is asked of it."""
    folder = tmp_path / NAME
    folder.mkdir()
    (folder / "__init__.py").write_text("from . import inner\nanswer = inner.number + 1\n")
    (folder / "inner.py").write_text("runs = []\nruns.append(1)\nnumber = 41\n")
    (folder / "apart.py").write_text("setting = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    with ExitStack() as undo:
        lazy = LazyModule(NAME, {"guess": 1})
        install_lazy(undo, lazy, apart={f"{NAME}.apart"})
        yield lazy
    for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
        del sys.modules[name]


def test_its_code_runs_at_the_first_name_that_it_is_asked_for(package: Any) -> None:
    module = importlib.import_module(NAME)
    assert not package.is_loaded

    assert module.answer == 42
    assert module is package


def test_what_it_answers_needs_no_code(package: Any) -> None:
    assert package.guess == 1
    assert not package.is_loaded

    assert package.answer == 42
    assert not hasattr(package, "guess")


def test_names_that_python_looks_for_in_all_modules_load_nothing(package: Any) -> None:
    assert not hasattr(package, "__warningregistry__")

    assert not package.is_loaded


def test_a_module_in_it_is_imported_once_and_after_its_package(package: Any) -> None:
    inner = importlib.import_module(f"{NAME}.inner")

    assert package.is_loaded
    assert package.inner is inner
    assert inner.runs == [1]
    assert inner.__spec__.origin.endswith("inner.py")


def test_a_module_apart_does_without_the_package(package: Any) -> None:
    assert importlib.import_module(f"{NAME}.apart").setting == 7

    assert not package.is_loaded


def test_where_nothing_was_asked_it_was_never_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{NAME}_to_the_end"
    (tmp_path / f"{name}.py").write_text("answer = 42\n")
    monkeypatch.syspath_prepend(tmp_path)
    with ExitStack() as undo:
        install_lazy(undo, LazyModule(name))
        kept = importlib.import_module(name)

    assert name not in sys.modules
    assert kept.answer == 42, "who kept it can use it all the same"
    del sys.modules[name]


def test_its_code_runs_inside_of_what_is_said(package: Any) -> None:
    entered: list[bool] = []

    @contextmanager
    def around() -> Iterator[None]:
        entered.append(package.is_loaded)
        yield
        entered.append("answer" in vars(package))

    with ExitStack() as undo:
        load_lazy_modules_in(undo, around)
        assert package.answer == 42

    assert entered == [False, True]


EAGER = """
import sys
import torch
import neusight

def heavy():
    names = ("torch._dynamo.utils", "sympy.core", "torch.distributed.tensor")
    return [name for name in names if name in sys.modules]

def step(model, x):
    optimizer = torch.optim.AdamW(model.parameters())
    loss = torch.nn.functional.cross_entropy(model(x), torch.zeros(8, dtype=int, device="cuda"))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()

for _ in range(2):
    with neusight.forecast_on("H100") as forecast:
        norm, act = torch.nn.LayerNorm(16), torch.nn.GELU()
        layers = torch.nn.Linear(16, 16), norm, act, torch.nn.Dropout(0.1)
        step(torch.nn.Sequential(*layers).cuda(), torch.randn(8, 16).cuda())
        print("eager", heavy())
print("closed", heavy(), "torch._dynamo" in sys.modules, "sympy" in sys.modules)
with neusight.forecast_on("H100") as forecast:
    model = torch.compile(torch.nn.Linear(16, 16).cuda())
    step(model, torch.randn(8, 16, device="cuda"))
print("compiled", "inductor::" in "".join(map(str, forecast.recording.steps)))
print("after", torch._dynamo.is_compiling())
"""


@pytest.mark.slow
def test_an_eager_program_loads_no_compiler_and_a_compiled_one_does() -> None:
    """In a process of its own: this one has long imported all of it."""
    ran = subprocess.run([sys.executable, "-c", EAGER], capture_output=True, text=True, check=False)

    assert ran.stdout.splitlines() == [
        "eager []",
        "eager []",
        "closed [] False False",
        "compiled True",
        "after False",
    ], ran.stderr


DISTRIBUTED = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
import neusight

with neusight.forecast_on("H100", world_size=2):
    dist.init_process_group("nccl")
    for wrap in (nn.parallel.DistributedDataParallel, fully_shard):
        model = wrap(nn.Linear(8, 8).cuda())
        model(torch.ones(4, 8, device="cuda")).sum().backward()
    print("torch._dynamo.utils" in sys.modules)
    torch._dynamo.trace_rules
    print("torch._dynamo.utils" in sys.modules)
"""


def test_a_model_is_shared_by_ranks_without_the_compiler(tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(DISTRIBUTED)

    ran = run_python("ranks.py", cwd=tmp_path)

    assert ran.stdout.splitlines() == ["False", "True"], ran.stderr
