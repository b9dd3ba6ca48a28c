"""The user's world is safe: attributes, behaviour, models and files are as before a forecast."""

# Scripts open and move files in all ways, and so do these tests.

from __future__ import annotations

import builtins
import hashlib
import io
import os
import pickle
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import neusight
from neusight.predictors.errors import ForecastStateError


def train(model: nn.Module | None = None, steps: int = 2) -> torch.optim.Optimizer:
    model = (nn.Linear(8, 4) if model is None else model).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        model(torch.randn(2, 8, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# -- attributes ------------------------------------------------------------------------------------


def world() -> dict[str, dict[str, object]]:
    """All attributes, and the code of all functions, of what a forecast might touch."""
    starts = ("torch.cuda", "torch.optim", "torch.backends", "torch.autograd")
    names = {name for name in sys.modules if name.startswith(starts)} | {
        "torch", "torch.serialization", "torch.utils._foreach_utils", "torch.version",
        "safetensors.torch", "transformers.modeling_utils",
    }  # fmt: skip
    owners: dict[str, Any] = {name: sys.modules[name] for name in names if name in sys.modules}
    owners |= {"os": os, "time": time, "shutil": shutil, "builtins": builtins, "io": io}
    classes: list[Any] = [
        torch.Tensor, nn.Module, nn.Parameter, torch.optim.Optimizer, threading.Thread,
        torch.profiler.profile, torch.autograd.profiler.profile,
        torch.autograd.profiler.record_function, torch.cuda.Stream, torch.cuda.Event,
        torch.cuda.CUDAGraph, torch.cuda.graph,
    ]  # fmt: skip
    owners |= {f"class {kind.__name__}": kind for kind in classes}
    return {name: dict(vars(owner)) | codes(owner) for name, owner in owners.items()}


def codes(owner: Any) -> dict[str, object]:
    return {
        f"code of {name}": value.__code__
        for name, value in vars(owner).items()
        if isinstance(value, FunctionType)
    }


#: Torch fills these while it runs, with or without a forecast.
FILLED_BY_TORCH = {"__warningregistry__", "__annotations__", "_"}


def changes(before: dict[str, dict[str, object]], after: dict[str, dict[str, object]]) -> list[str]:
    absent = object()
    return [
        f"{owner}.{name}"
        for owner, attributes in before.items()
        for name in {*attributes, *after[owner]} - FILLED_BY_TORCH
        if attributes.get(name, absent) is not after[owner].get(name, absent)
    ]


def test_every_attribute_is_the_same_object_afterwards(tmp_path: Path) -> None:
    import safetensors.torch  # noqa: F401  (patched where it is loaded)

    train_on_cpu = nn.Linear(2, 2)
    torch.optim.AdamW(train_on_cpu.parameters())  # torch caches a little at the first use
    with neusight.forecast_on("H100"):
        train()
    before = world()

    with neusight.forecast_on("H100"):
        train()
        torch.save({}, tmp_path / "x.pt")
        torch.cuda.Stream()

    assert changes(before, world()) == []


def test_an_exception_inside_leaves_nothing_and_comes_out() -> None:
    with neusight.forecast_on("H100"):
        train()
    before = world()

    with pytest.raises(ZeroDivisionError), neusight.forecast_on("H100") as forecast:
        train()
        raise ZeroDivisionError

    assert changes(before, world()) == []
    assert forecast.recording.num_ops > 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_so_does_an_interrupt_in_the_middle_of_a_module(error: type[BaseException]) -> None:
    class Interrupting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise error

    before = world()

    with pytest.raises(error), neusight.forecast_on("H100"):
        Interrupting()(torch.ones(1, device="cuda"))

    assert changes(before, world()) == []
    assert nn.Linear(2, 2)(torch.ones(1, 2)).sum().isfinite()


def test_names_taken_before_the_forecast_work_in_it_and_are_themselves_again() -> None:
    from torch.cuda import (
        CUDAGraph,
        Event,
        Stream,
        current_device,
        device_count,
        empty_cache,
        get_device_name,
        graph,
        is_available,
        max_memory_allocated,
        memory_allocated,
        stream,
        synchronize,
    )
    from torch.cuda.amp import GradScaler

    with neusight.forecast_on("H100"):
        x = torch.ones(1024, device="cuda")
        answers = (is_available(), device_count(), current_device(), get_device_name(0))
        allocated = (memory_allocated(), max_memory_allocated())
        with stream(Stream()):
            x.sin()
        event = Event(enable_timing=True)
        event.record()
        synchronize()
        empty_cache()
        captured = CUDAGraph()
        with graph(captured):
            x.cos()
        captured.replay()
        with pytest.warns(FutureWarning, match="deprecated"):
            scaler = GradScaler()
        enabled = scaler.is_enabled()

    assert answers == (True, 1, 0, "NVIDIA H100 80GB HBM3")
    assert allocated == (4096, 4096)
    assert enabled
    assert (is_available(), device_count()) == (False, 0)
    with pytest.raises((RuntimeError, AssertionError)):
        Stream()


# -- behaviour, compared in a fresh process --------------------------------------------------------

BEHAVIOUR = """
import json, sys, warnings
warnings.simplefilter("ignore")
import torch
from torch import nn
import torch.nn.functional as F

def outcome(function):
    try:
        return repr(function())
    except BaseException as error:
        return f"{type(error).__name__}: {error}"

def optimize():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Dropout(0.5))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        model(torch.randn(2, 4)).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return [p.sum().item() for p in model.parameters()], type(model[0].weight).__name__

def autocast():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype

def half_on_cuda():
    with torch.autocast("cuda"):
        return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype

def compiled():
    return torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))

def profile():
    with torch.profiler.profile() as profiler:
        torch.ones(2).sin()
    return sorted({event.key for event in profiler.key_averages()})

def probe():
    return {
        "cuda()": outcome(lambda: torch.ones(2).cuda()),
        "to": outcome(lambda: torch.ones(2).to("cuda")),
        "module": outcome(lambda: nn.Linear(2, 2).cuda()),
        "factory": outcome(lambda: torch.ones(2, device="cuda")),
        "available": outcome(torch.cuda.is_available),
        "count": outcome(torch.cuda.device_count),
        "name": outcome(lambda: torch.cuda.get_device_name(0)),
        "initialized": outcome(torch.cuda.is_initialized),
        "memory": outcome(torch.cuda.memory_allocated),
        "accelerator": outcome(torch.accelerator.current_accelerator),
        "accelerator available": outcome(torch.accelerator.is_available),
        "stream": outcome(torch.cuda.Stream),
        "event": outcome(lambda: torch.cuda.Event().record()),
        "graph": outcome(torch.cuda.CUDAGraph),
        "generator": outcome(lambda: torch.Generator("cuda")),
        "version": outcome(lambda: torch.version.cuda),
        "cudnn": outcome(torch.backends.cudnn.version),
        "cudnn available": outcome(torch.backends.cudnn.is_available),
        "bf16": outcome(torch.cuda.is_bf16_supported),
        "arch": outcome(torch.cuda.get_arch_list),
        "scaler": outcome(lambda: torch.amp.GradScaler("cuda").is_enabled()),
        "autocast": outcome(autocast),
        "autocast on cuda": outcome(half_on_cuda),
        "optimizer": outcome(optimize),
        "compile": outcome(compiled),
        "pin": outcome(lambda: torch.ones(2).pin_memory().is_pinned()),
        "attention": outcome(lambda: F.scaled_dot_product_attention(*[torch.ones(1, 1, 2, 8)] * 3)),
        "lstm": outcome(lambda: nn.LSTM(2, 2)(torch.zeros(1, 1, 2))[0].shape),
        "rms norm": outcome(lambda: F.rms_norm(torch.ones(2, 2, requires_grad=True), (2,))),
        "silu": outcome(lambda: torch.autograd.functional.jacobian(F.silu, torch.ones(2))),
        "seed": outcome(lambda: (torch.initial_seed() > 0, torch.get_default_dtype())),
        "empty": outcome(lambda: torch.empty(2, device="meta").device),
        "profile": outcome(profile),
        "transformers": outcome(flash),
    }

def flash():
    import transformers
    utils = transformers.utils
    return (utils.is_torch_cuda_available(), utils.is_torch_bf16_gpu_available())

if "forecast" in sys.argv:
    import neusight
    for gpu in ("H100", "V100"):
        with neusight.forecast_on(gpu):
            model = nn.Sequential(nn.Linear(4, 4), nn.RMSNorm(4), nn.SiLU()).cuda()
            optimizer = torch.optim.Adam(model.parameters())
            model(torch.ones(2, 4, device="cuda")).sum().backward()
            optimizer.step()
            nn.LSTM(2, 2).cuda()(torch.zeros(1, 1, 2, device="cuda"))
            if "transformers" in sys.argv:
                flash()
print(json.dumps(probe()))
"""


@cache
def behaviour(*arguments: str) -> dict[str, str]:
    import json

    ran = subprocess.run(
        [sys.executable, "-c", BEHAVIOUR, *arguments], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    answers: dict[str, str] = json.loads(ran.stdout.strip().splitlines()[-1])
    return answers


@pytest.mark.slow
def test_torch_behaves_afterwards_as_if_nothing_had_been() -> None:
    assert behaviour("forecast") == behaviour()


@pytest.mark.slow
def test_libraries_that_keep_answers_are_asked_again() -> None:
    assert behaviour("forecast", "transformers") == behaviour()


# -- the user's objects ----------------------------------------------------------------------------


def test_a_model_made_before_comes_back_on_the_cpu_with_its_values() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    model[0].weight.requires_grad_(False)
    values = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    ids = {name: id(parameter) for name, parameter in model.named_parameters()}

    with neusight.forecast_on("H100"):
        train(model)
        model.to(torch.bfloat16)
        inside = {tensor.device.type for tensor in model.state_dict().values()}

    assert inside == {"cuda"}
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == ids
    assert [p.requires_grad for p in model.parameters()] == [False, True, True, True, True, True]
    assert {type(p) for p in model.parameters()} == {nn.Parameter}
    for name, tensor in model.state_dict().items():
        assert tensor.device.type == "cpu"
        assert torch.equal(tensor, values[name])


def test_its_optimizer_still_trains_it() -> None:
    model = nn.Linear(8, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    with neusight.forecast_on("H100"):
        model.cuda()
        model(torch.ones(2, 8, device="cuda")).sum().backward()
        optimizer.step()
    before = model.weight.detach().clone()

    assert model.weight.grad is None
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()

    assert not torch.equal(model.weight, before)


def test_gradients_made_before_move_along_and_come_back() -> None:
    model = nn.Linear(8, 4)
    model(torch.ones(2, 8)).sum().backward()
    assert model.weight.grad is not None
    gradient = model.weight.grad.clone()

    with neusight.forecast_on("H100"):
        model.cuda()
        inside = model.weight.grad.device.type

    assert inside == "cuda"
    assert torch.equal(model.weight.grad, gradient)


def test_training_on_the_cpu_is_real() -> None:
    def trained() -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return step(model, optimizer)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        return next(model.parameters()).detach().clone()

    expected = trained()
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    with neusight.forecast_on("H100"):
        torch.ones(1, device="cuda")
        inside = step(model, optimizer)

    assert torch.equal(inside, expected)
    assert torch.equal(model.weight, expected)


def test_seeds_and_the_default_dtype_are_as_before() -> None:
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    expected = (torch.rand(3).tolist(), random.random(), float(np.random.rand()))
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)

    with neusight.forecast_on("H100"):
        torch.manual_seed(0)
        train()

    assert (torch.rand(3).tolist(), random.random(), float(np.random.rand())) == expected
    assert torch.get_default_dtype() is torch.float32


def test_a_forecast_tensor_used_outside_says_what_it_is() -> None:
    with neusight.forecast_on("H100"):
        x = torch.ones(3, device="cuda", requires_grad=True)
        y = (x * 2).sum()

    message = "made inside forecast_on was used .* after the block had ended; it holds no data"
    uses: list[Callable[[], object]] = [
        lambda: x + 1, lambda: x.cpu(), lambda: x.tolist(), lambda: y.item(), lambda: bool(y),
        lambda: torch.add(torch.ones(3), x), lambda: torch.stack([x, x]), y.backward,
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(ForecastStateError, match=message):
            use()
    assert "cuda:0" in repr(x)
    assert f"{y}" == repr(y)


def test_a_tensor_of_one_forecast_is_refused_in_the_next() -> None:
    with neusight.forecast_on("H100"):
        x = torch.ones(3, device="cuda")

    with neusight.forecast_on("H100"):
        y = torch.ones(3, device="cuda")
        with pytest.raises(ForecastStateError, match="after the block had ended"):
            y + x


def test_a_forecast_inside_a_forecast_is_refused_and_the_outer_goes_on() -> None:
    with neusight.forecast_on("H100") as forecast:
        train()
        with pytest.raises(ForecastStateError, match="open already"), neusight.forecast_on("A100"):
            pass
        train()

    assert forecast.recording.num_ops > 0


def test_a_thread_that_outlives_the_block_does_not_disturb() -> None:
    started, go_on = threading.Event(), threading.Event()
    results: list[object] = []

    def work() -> None:
        torch.ones(3, device="cuda")
        started.set()
        go_on.wait()
        results.append(torch.ones(3).sum().item())
        try:
            torch.ones(3, device="cuda")
        except Exception as error:
            results.append(type(error).__name__)

    with neusight.forecast_on("H100"):
        train()
        thread = threading.Thread(target=work)
        thread.start()
        started.wait()
    go_on.set()
    thread.join()

    assert results[0] == 3.0
    assert len(results) == 2  # torch's own error: there is no GPU


# -- the user's files ------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "model.pt"
    torch.save(nn.Linear(8, 4).state_dict(), path)
    return path


def save_directly(model: nn.Module, path: Path) -> None:
    torch.save(model.state_dict(), path)


def save_copies_on_the_cpu(model: nn.Module, path: Path) -> None:
    torch.save({name: tensor.cpu() for name, tensor in model.state_dict().items()}, path)


def save_through_an_open_file(model: nn.Module, path: Path) -> None:
    with open(path, "wb") as file:
        torch.save(model.state_dict(), file)


def save_by_pickle(model: nn.Module, path: Path) -> None:
    with path.open("wb") as file:
        pickle.dump(model.state_dict(), file)


def save_through_a_file_system(model: nn.Module, path: Path) -> None:
    """As fsspec commits a transaction (Lightning saves so)."""
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    os.close(handle)
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    with open(temporary, mode="wb") as file:
        file.write(buffer.getvalue())
    shutil.move(temporary, path)
    os.chmod(path, 0o644)


def save_arrays(model: nn.Module, path: Path) -> None:
    with open(path, "wb") as file:
        np.save(file, next(model.parameters()).detach().cpu().numpy())


def save_safely(model: nn.Module, path: Path) -> None:
    from safetensors.torch import save_file

    save_file(model.state_dict(), path)


SAVERS = [
    save_directly, save_copies_on_the_cpu, save_through_an_open_file, save_by_pickle,
    save_through_a_file_system, save_arrays, save_safely,
]  # fmt: skip


@pytest.mark.parametrize("save", SAVERS)
def test_an_existing_checkpoint_keeps_its_bytes(
    save: Callable[[nn.Module, Path], None], checkpoint: Path
) -> None:
    before = digest(checkpoint)

    with neusight.forecast_on("H100") as forecast:
        save(nn.Linear(8, 4).cuda(), checkpoint)

    assert digest(checkpoint) == before
    assert sorted(checkpoint.parent.iterdir()) == [checkpoint]
    assert any("temporary place" in text and "--allow-writes" in text for text in forecast.warnings)


LOADABLE = [save for save in SAVERS if save not in (save_by_pickle, save_arrays, save_safely)]


@pytest.mark.parametrize("save", LOADABLE)
def test_a_checkpoint_loads_back_inside(
    save: Callable[[nn.Module, Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "new.pt"

    with neusight.forecast_on("H100") as forecast:
        model = nn.Linear(8, 4).cuda()
        save(model, path)
        there = (path.exists(), path.is_file(), path.stat().st_size > 0, os.path.getsize(path) > 0)
        loaded = torch.load(path)
        shapes = {name: tuple(tensor.shape) for name, tensor in loaded.items()}
        model.load_state_dict(loaded)
        on_gpu = torch.load(path, map_location="cuda")["weight"].device.type

    assert there == (True, True, True, True)
    assert shapes == {"weight": (4, 8), "bias": (4,)}
    assert on_gpu == "cuda"
    assert list(tmp_path.iterdir()) == []
    assert sum("removed at the end" in text for text in forecast.warnings) == 1


def test_a_whole_model_and_its_optimizer_load_back_inside(tmp_path: Path) -> None:
    path = tmp_path / "all.pt"

    with neusight.forecast_on("H100"):
        model = nn.Linear(8, 4)
        optimizer = train(model)
        torch.save({"model": model, "optimizer": optimizer.state_dict(), "epoch": 3}, path)
        loaded = torch.load(path, weights_only=False)
        again = loaded["model"].cuda()
        another = torch.optim.AdamW(again.parameters())
        another.load_state_dict(loaded["optimizer"])
        again(torch.ones(2, 8, device="cuda")).sum().backward()
        another.step()
        kinds = {isinstance(parameter, nn.Parameter) for parameter in again.parameters()}

    assert loaded["epoch"] == 3
    assert kinds == {True}


def test_a_real_checkpoint_loads_to_the_gpu(checkpoint: Path) -> None:
    with neusight.forecast_on("H100"):
        model = nn.Linear(8, 4).cuda()
        model.load_state_dict(torch.load(checkpoint, map_location="cpu"))
        state = torch.load(checkpoint, map_location=torch.device("cuda:0"))
        model.load_state_dict(state)
        mapped = torch.load(checkpoint, map_location={"cpu": "cuda:0"})
        stays = torch.load(checkpoint, map_location=lambda storage, location: storage)

    assert {tensor.device.type for tensor in state.values()} == {"cuda"}
    assert {tensor.device.type for tensor in mapped.values()} == {"cuda"}
    assert {tensor.device.type for tensor in stays.values()} == {"cpu"}


def test_a_checkpoint_written_on_a_gpu_loads_to_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gpu.pt"
    monkeypatch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
    torch.save({"weight": torch.ones(4, 8), "nested": [torch.ones(2)]}, path)
    monkeypatch.undo()

    with neusight.forecast_on("H100"):
        state = torch.load(path)
        on_cpu = torch.load(path, map_location="cpu")

    assert (state["weight"].device.type, state["nested"][0].device.type) == ("cuda", "cuda")
    assert torch.equal(on_cpu["weight"], torch.ones(4, 8))


def test_names_of_save_and_load_taken_before_are_as_safe(checkpoint: Path) -> None:
    from torch import load, save

    before = digest(checkpoint)

    with neusight.forecast_on("H100"):
        save(nn.Linear(8, 4).cuda().state_dict(), checkpoint)
        loaded = load(checkpoint)

    assert digest(checkpoint) == before
    assert set(loaded) == {"weight", "bias"}


def test_what_is_new_is_real_until_the_end(tmp_path: Path) -> None:
    with neusight.forecast_on("H100") as forecast:
        train()
        (tmp_path / "log.txt").write_text("loss 1.0")
        np.save(tmp_path / "array.npy", np.ones(3))
        seen = subprocess.run(["cat", "log.txt"], cwd=tmp_path, capture_output=True, check=True)

    assert seen.stdout == b"loss 1.0"
    assert list(tmp_path.iterdir()) == []
    assert any("removed at the end (first: " in text for text in forecast.warnings)


def test_what_the_block_writes_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("old.txt").write_text("old")

    with neusight.forecast_on("H100", keep_writes=tmp_path / "kept"):
        train()
        with open("old.txt", "a") as file:
            file.write(" and new")
        os.makedirs("logs/1")
        Path("logs/1/new.txt").write_text("new")
        (tmp_path / "beside.txt").write_text("elsewhere")

    kept = {p.relative_to(tmp_path / "kept"): p for p in (tmp_path / "kept").rglob("*.txt")}
    outside = Path("root", *(tmp_path / "beside.txt").parts[1:])
    assert {str(name): path.read_text() for name, path in kept.items()} == {
        "old.txt": "old and new", "logs/1/new.txt": "new", str(outside): "elsewhere",
    }  # fmt: skip
    assert Path("old.txt").read_text() == "old"
    assert sorted(os.listdir()) == ["old.txt"]


def test_writes_that_are_allowed_stay(tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("old")

    with neusight.forecast_on("H100", allow_writes=True):
        torch.save(nn.Linear(8, 4).cuda().state_dict(), tmp_path / "model.pt")
        (tmp_path / "old.txt").unlink()

    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


def test_a_pretrained_model_is_saved_elsewhere_and_loads_back(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=100)
    real = transformers.GPT2LMHeadModel(config)
    real.save_pretrained(tmp_path)
    before = {path: digest(path) for path in tmp_path.iterdir()}

    with neusight.forecast_on("H100"):
        model = transformers.GPT2LMHeadModel(config).cuda()
        model.save_pretrained(tmp_path)
        model.save_pretrained(tmp_path / "new")
        again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "new")
        shape = tuple(again.transformer.wte.weight.shape)

    assert shape == (100, 32)
    assert {path: digest(path) for path in tmp_path.iterdir()} == before


def test_the_temporary_place_is_gone_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "temporary"  # of this test alone: others run beside it
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    seen: list[Path] = []

    with neusight.forecast_on("H100"):
        torch.save(nn.Linear(8, 4).cuda().state_dict(), tmp_path / "x.pt")
        seen.extend(place.glob("neusight-*"))

    assert seen
    assert not list(place.glob("neusight-*"))


def test_a_caches_folder_that_is_made_is_no_change_past_the_overlay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home" / "cache"))

    with neusight.forecast_on("H100") as forecast:
        train()
        (tmp_path / "home" / "cache" / "package").mkdir(parents=True)

    assert (tmp_path / "home" / "cache" / "package").is_dir()
    assert not any("past neusight's overlay" in text for text in forecast.warnings)


LOGGED = """
import os, subprocess, sys
import torch, neusight

log = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # as a test runner that captures
os.dup2(1, 2)
with neusight.forecast_on("H100") as forecast:
    torch.ones(4, device="cuda") * 2
    open("beside.txt", "w").close()
    subprocess.run(["sh", "-c", "echo more"], stdout=log, check=True)
os.write(log, "".join(text for text in forecast.warnings if "past" in text).encode())
"""


def test_the_log_of_a_test_runner_above_is_no_change(tmp_path: Path) -> None:
    """It captures what tests print, and writes its progress in the file it was started with."""
    (tmp_path / "logged.py").write_text(LOGGED)

    command = f"'{sys.executable}' logged.py; true"  # a shell above, whose output the log is
    with (tmp_path / "log.txt").open("w") as log:
        subprocess.run(["sh", "-c", command], cwd=tmp_path, stdout=log, check=True)

    assert (tmp_path / "log.txt").read_text() == "more\n"


def test_what_another_program_changes_all_the_same_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("notes")
    (tmp_path / "kept.txt").write_text("kept")

    with neusight.forecast_on("H100") as forecast:
        train()
        (tmp_path / "kept.txt").write_text("changed by the script itself")
        subprocess.run(["sh", "-c", "echo more >> notes.txt; touch left"], check=True)

    named = [text for text in forecast.warnings if text.startswith("past neusight's overlay")]
    assert len(named) == 1
    assert f"{tmp_path / 'left'}, {tmp_path / 'notes.txt'};" in named[0]
    assert "kept.txt" not in named[0]
