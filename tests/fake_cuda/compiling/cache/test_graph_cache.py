"""A graph that was compiled before is loaded, and gives the same forecast to the byte."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from compiled_net import Net, infer, ops, torch_compile, train
from torch._dynamo.utils import counters

import neusight
from neusight.fake_cuda.compiling.cache.graph_cache import CACHE_VARIABLE
from neusight.fake_cuda.compiling.choices import padding
from neusight.fake_cuda.core import self_check
from neusight.integrations.program.guard.guarded_process import in_guarded_process
from neusight.integrations.program.guard.landlock import is_available


def compiled_inside(net: Net) -> Any:
    return torch.compile(net)  # of inside a forecast


class Kept(NamedTuple):
    """Forecasts of one program: the first, and one after it; and where its graphs are kept."""

    first: neusight.Forecast
    later: neusight.Forecast
    folder: Path
    hits: int


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    home = tmp_path_factory.mktemp("cache")
    self_check()  # it keeps its answer in the folder of now
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(home))
        patch.setenv(CACHE_VARIABLE, "1")
        first = train(compiled_inside)
        counters.clear()
        later = train(compiled_inside)
        hits = counters["aot_autograd"]["autograd_cache_hit"]
        yield Kept(first, later, home / "neusight" / "compiled", hits)


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(CACHE_VARIABLE, "1")
    counters.clear()
    return tmp_path / "cache" / "neusight" / "compiled"


def saved(forecast: neusight.Forecast, folder: Path) -> tuple[bytes, bytes, str]:
    forecast.save(folder / "recording.json")
    forecast.export_chrome_trace(folder / "trace.json")
    return (
        (folder / "recording.json").read_bytes(),
        (folder / "trace.json").read_bytes(),
        forecast.summary(),
    )


def small(gpu: str = "H100") -> neusight.Forecast:
    with neusight.forecast_on(gpu) as forecast:
        function: Any = torch_compile(lambda x: torch.relu(x) + 1)
        function(torch.ones(4, device="cuda"))
    return forecast


def test_what_is_loaded_is_the_same_to_the_byte(
    kept: Kept, compiled: neusight.Forecast, tmp_path: Path
) -> None:
    assert kept.hits == 1
    assert saved(kept.later, tmp_path) == saved(kept.first, tmp_path)
    assert saved(compiled, tmp_path) == saved(kept.first, tmp_path)  # without a cache


def test_damage_is_reported_and_compiled_again(kept: Kept) -> None:
    for path in kept.folder.iterdir():
        path.write_bytes(path.read_bytes()[:-9])

    forecast = train(compiled_inside)

    assert forecast.warnings == [
        f"a compiled graph in {kept.folder} is compiled again: it is damaged"
    ]
    assert forecast.step_latency_us == kept.first.step_latency_us
    assert train(compiled_inside).warnings == []


def test_sizes_that_change_are_loaded_with_their_guards(own_folder: Path, tmp_path: Path) -> None:
    def forecast() -> neusight.Forecast:
        with neusight.forecast_on("H100") as made:
            infer(torch.compile(Net().cuda().eval()), (64, 32, 48, 16))
        return made

    first = forecast()
    later = forecast()

    assert counters["aot_autograd"]["autograd_cache_hit"] == 2
    assert saved(later, tmp_path) == saved(first, tmp_path)


def test_another_gpu_is_another_key_unless_it_answers_alike(own_folder: Path) -> None:
    small("H100")
    num_files = len(list(own_folder.iterdir()))

    small("H200")  # as many SMs of the same architecture
    assert len(list(own_folder.iterdir())) == num_files
    small("A100")
    assert len(list(own_folder.iterdir())) == 2 * num_files


def test_where_a_gpu_pads_otherwise_the_graph_is_compiled_for_it(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ops_of_padded() -> Counter[str]:
        with neusight.forecast_on("A100") as forecast, torch.no_grad():
            weight = torch.randn(4095, 4096, device="cuda", dtype=torch.bfloat16)
            product: Any = torch_compile(lambda x: torch.relu(x @ weight))
            product(torch.randn(4096, 4095, device="cuda", dtype=torch.bfloat16))
        return ops(*forecast.recording.steps)

    padded = ops_of_padded()
    monkeypatch.setattr(padding, "is_padded", lambda product, gpu: False)
    plain = ops_of_padded()
    monkeypatch.undo()

    assert any("_mm_" in name for name in padded)  # the copies with their margins
    assert not any("_mm_" in name for name in plain)


def test_questions_that_tracing_asks_are_asked_of_what_is_loaded(own_folder: Path) -> None:
    def queries() -> tuple[tuple[str, str], ...]:
        with neusight.forecast_on("H100") as forecast:
            attention: Any = torch_compile(torch.nn.functional.scaled_dot_product_attention)
            x = torch.ones(1, 2, 64, 64, device="cuda", dtype=torch.bfloat16)
            attention(x, x, x)
        return forecast.recording.queries

    first = queries()

    assert len(first) == 2
    assert queries() == first
    assert counters["aot_autograd"]["autograd_cache_hit"] == 1


def test_an_op_of_the_programs_own_is_kept_by_what_it_becomes(own_folder: Path) -> None:
    @torch.library.custom_op("test_graph_cache::double", mutates_args=())
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @double.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    for _round in range(2):
        with neusight.forecast_on("H100"):
            torch_compile(lambda x: double(x) + 1)(torch.ones(4, device="cuda"))

    assert counters["aot_autograd"]["autograd_cache_hit"] == 0
    assert counters["inductor"]["fxgraph_cache_hit"] == 1


def test_nothing_is_kept_where_it_is_not_wanted(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, "0")

    small()

    assert not own_folder.exists()


def test_afterwards_torch_keeps_what_it_compiles_as_before(own_folder: Path) -> None:
    import torch._functorch.config as autograd_config
    import torch._inductor.config as inductor_config

    before = inductor_config.save_config_portable(), autograd_config.save_config_portable()

    small()

    after = inductor_config.save_config_portable(), autograd_config.save_config_portable()
    assert after == before


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Where tests run in the background, SIGINT is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_while_compiling_leaves_no_entry_and_torch_as_it_was(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor.graph import GraphLowering

    lower = GraphLowering.run
    compile_before = torch.compile

    def interrupted(self: Any, *args: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return lower(self, *args)

    monkeypatch.setattr(GraphLowering, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        small()
    left = list(own_folder.iterdir()) if own_folder.exists() else []
    monkeypatch.setattr(GraphLowering, "run", lower)

    assert torch.compile is compile_before
    assert left == []
    assert any("triton" in kernel.name for kernel, _ in small().kernels)


@pytest.mark.skipif(not is_available(), reason="this kernel has no Landlock of ABI 2 or later")
def test_a_guarded_program_writes_its_entries_really(
    own_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")

    ended = in_guarded_process(lambda store: small().unmapped, ("train.py",))

    assert ended.answer == []
    assert list(own_folder.iterdir())
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.slow
def test_what_is_reported_of_choices_by_timing_is_reported_again(own_folder: Path) -> None:
    def warnings(gpu: str) -> list[str]:
        with neusight.forecast_on(gpu) as forecast, torch.no_grad():
            product: Any = torch_compile(lambda x: torch.relu(x @ x), mode="max-autotune")
            product(torch.ones(512, 512, device="cuda"))
        return forecast.warnings

    first = warnings("H100")

    assert any("default kernels" in text for text in first)
    assert warnings("H100") == first
    assert counters["aot_autograd"]["autograd_cache_hit"] == 1
    warnings("H200")  # which would save something else
    assert counters["aot_autograd"]["autograd_cache_hit"] == 1
