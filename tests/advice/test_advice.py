"""What to change: only what pricing the recording again shows to gain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import neusight
from neusight.advice.advice import Advice, advice_for, advice_lines, fitting_lines
from neusight.advice.memory import LargestBatch, Remedy
from neusight.advice.rewriting import with_entries
from neusight.forecast import Forecast
from neusight.integrations.report.memory import MemoryReport
from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import GemmSize, Kernel
from neusight.predictors.predictor import Estimate
from neusight.predictors.registry import find_predictor
from neusight.recording.recording import Recording, Synchronize
from neusight.recording.saving import save_recording


def train(
    model: nn.Module, data: torch.Tensor, *, gpu: str = "H100", priced_by: object = None,
    fused: bool | None = None,
) -> Forecast:  # fmt: skip
    with neusight.forecast_on(gpu, predictor=priced_by) as forecast:  # type: ignore[arg-type]
        model.cuda()
        adam = torch.optim.Adam(model.parameters(), fused=fused)
        for _ in range(3):
            model(data.cuda()).float().mean().backward()
            adam.step()
            adam.zero_grad()
    return forecast


def kinds(advice: Sequence[Advice]) -> list[str]:
    return [item.kind for item in advice]


def test_a_host_bound_loop_gets_advice_on_graphs_and_on_its_waits() -> None:
    with neusight.forecast_on("H100") as forecast, torch.inference_mode():
        model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(20))).cuda()
        data = torch.randn(4, 64, device="cuda")
        for _ in range(4):
            model(data).sum().item()
            forecast.step()

    found = advice_for(forecast)

    assert forecast.bound == "host"
    assert found[0].kind == "cuda_graphs"
    assert found[0].latency_us < 0.9 * forecast.step_latency_us.median
    assert found[0].gain == pytest.approx(
        1 - found[0].latency_us / forecast.step_latency_us.median, abs=1e-3
    )


def test_a_needless_read_is_reported_with_its_line() -> None:
    with neusight.forecast_on("H100") as forecast, torch.inference_mode():
        model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4))).cuda()
        data = torch.randn(2048, 1024, device="cuda")
        for _ in range(4):
            model(data).sum().item()
            forecast.step()

    unplaced = with_entries(
        forecast.recording,
        lambda entry: replace(entry, source="") if isinstance(entry, Synchronize) else entry,
    )

    def waits(forecast: Forecast) -> str:
        found = advice_for(forecast, smallest_gain=0.001)
        return next(item.what for item in found if item.kind == "waits")

    assert "test_advice.py:" in waits(forecast)
    assert waits(forecast.of(unplaced)) == "do not make the host wait for the GPU"


def test_of_many_lines_that_wait_three_are_named() -> None:
    with neusight.forecast_on("H100") as forecast, torch.inference_mode():
        data = torch.randn(2048, 1024, device="cuda")
        for _ in range(3):
            first = (data + 1).sum().item()
            second = (data + first).sum().item()
            third = (data + second).sum().item()
            (data + third).sum().item()
            forecast.step()

    [waits] = [item for item in advice_for(forecast, smallest_gain=0.001) if item.kind == "waits"]

    assert waits.what.count("test_advice.py:") == 3
    assert waits.what.endswith(", …")


def test_float32_products_get_advice_on_tf32_and_autocast_where_the_gpu_has_them() -> None:
    model, data = nn.Linear(4096, 4096), torch.randn(4096, 4096)

    h100 = advice_for(train(model, data, fused=True))
    t4 = advice_for(train(nn.Linear(4096, 4096), data, gpu="T4", fused=True))

    assert {"tf32", "autocast"} <= set(kinds(h100))
    assert "tf32" not in kinds(t4)
    [autocast] = [item for item in t4 if item.kind == "autocast"]
    assert "torch.float16" in autocast.what
    assert "GradScaler" in autocast.what


def test_an_optimizer_of_many_passes_gets_advice_on_the_fused_one() -> None:
    data = torch.zeros(8, dtype=torch.long)

    plain = advice_for(train(nn.Embedding(50_000, 512), data))
    fused = advice_for(train(nn.Embedding(50_000, 512), data, fused=True))

    assert plain[0].kind == "fused_optimizer"
    assert "Adam(" in plain[0].what
    assert "fused_optimizer" not in kinds(fused)


def test_convolutions_in_half_precision_get_advice_on_channels_last() -> None:
    model = nn.Sequential(nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3)).half()
    data = torch.randn(32, 64, 56, 56, dtype=torch.float16)

    assert "channels_last" in kinds(advice_for(train(model, data)))
    for parameter in model.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.to(memory_format=torch.channels_last)
    last = train(model, data.to(memory_format=torch.channels_last))
    assert "channels_last" not in kinds(advice_for(last))


@pytest.mark.parametrize(("gpu", "is_shown"), [("V100", True), ("T4", True), ("A100", False)])
def test_bfloat16_without_tensor_cores_gets_advice_on_what_float16_gives(
    gpu: str, is_shown: bool
) -> None:
    model = nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2048))
    data = torch.ones(2048, 2048)

    found = advice_for(train(model.bfloat16(), data.bfloat16(), gpu=gpu, fused=True))

    reported = [advice for advice in found if advice.kind == "float16"]
    assert bool(reported) is is_shown
    if reported:
        there = train(model.half(), data.half(), gpu=gpu, fused=True)
        assert reported[0].latency_us == pytest.approx(there.step_latency_us.median, rel=1e-3)
        assert reported[0].line in advice_lines([*found[:1] * 5, *reported])


def test_a_gain_is_reported_in_the_unit_of_the_step() -> None:
    assert Advice("a", "b", latency_us=900.0, gain=0.5, assumes="").line.split()[:2] == [
        "0.90", "ms",
    ]  # fmt: skip


class Misaligned:
    """A predictor for which odd sizes cost ten times as much, as on real tensor cores."""

    name = "misaligned"

    def predict(self, kernels: Sequence[Kernel], gpu: GPU) -> list[Estimate]:
        return [
            replace(estimate, latency_us=estimate.latency_us * 10)
            if isinstance(kernel.size, GemmSize) and any(part % 8 for part in kernel.size[1:])
            else estimate
            for kernel, estimate in zip(
                kernels, find_predictor().predict(kernels, gpu), strict=True
            )
        ]


def test_an_odd_vocabulary_gets_advice_on_padding_where_odd_sizes_cost() -> None:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(512, 5003)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.log_softmax(self.head(x), -1)

    data = torch.randn(1024, 512)

    found = advice_for(train(Head(), data, priced_by=Misaligned()))

    assert "padding" in kinds(found)
    [padding] = [item for item in found if item.kind == "padding"]
    assert padding.what == "pad 5,003 to 5,056 in Head.head, a multiple of 64"
    assert "padding" not in kinds(advice_for(train(Head(), data)))


class ByUnit:
    """A predictor by which a product takes so many seconds in the unit that computes it."""

    name = "by unit"

    def __init__(self, **seconds: float) -> None:
        self.seconds = seconds

    def predict(self, kernels: Sequence[Kernel], gpu: GPU) -> list[Estimate]:
        times = [
            self.seconds[kernel.compute] * 1e6 if isinstance(kernel.size, GemmSize) else 1.0
            for kernel in kernels
        ]
        return [Estimate(us, us, us, "compute", "physics", self.name) for us in times]


def test_three_percent_of_the_step_are_worth_a_line() -> None:
    model, data = nn.Linear(64, 64), torch.ones(64, 64)

    found = advice_for(train(model, data, priced_by=ByUnit(fp32=1.0, tf32=0.965, bf16=0.975)))

    assert [(item.kind, round(item.gain, 3)) for item in found] == [("tf32", 0.035)]


def test_only_gains_above_the_threshold_are_reported_largest_first() -> None:
    forecast = train(nn.Linear(2048, 2048), torch.randn(256, 2048))

    found = advice_for(forecast, smallest_gain=0.1)

    assert all(item.gain >= 0.1 for item in found)
    assert found == sorted(found, key=lambda item: -item.gain)
    assert advice_for(forecast, smallest_gain=0.999) == []


def test_the_first_screen_shows_three_at_most() -> None:
    items = [Advice(str(n), f"change {n}", 1000.0, 0.5, "nothing") for n in range(5)]

    lines = advice_lines(items)

    assert len(lines) == 4
    assert lines[1] == "        1.00 ms   -50%  change 0"
    assert advice_lines([]) == []


def test_nothing_recorded_is_nothing_to_change(tmp_path: Path) -> None:
    path = tmp_path / "nothing.json"
    save_recording(Recording((), gpu="H100", torch_version=torch.__version__), path)
    nothing = Forecast.load(path)

    assert advice_for(nothing) == []


def test_what_does_not_fit_is_shown_with_what_makes_it_fit() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))
                            for _ in range(8)))  # fmt: skip
    forecast = train(model, torch.randn(8192, 1024), fused=True)
    needed = MemoryReport(forecast).advice.needed_bytes
    advice = MemoryReport(forecast, limit_bytes=int(0.7 * needed)).advice

    lines = fitting_lines(advice)

    assert not advice.fits
    assert lines[0].startswith("  what would make it fit (")
    assert any("checkpoint" in line and "ms a step" in line for line in lines[1:])
    assert 2 <= len(lines) <= 4


def test_the_largest_batch_makes_it_fit_where_it_is_smaller() -> None:
    forecast = train(nn.Linear(64, 64), torch.randn(8, 64))
    advice = MemoryReport(forecast, limit_bytes=2**20).advice

    def lines(batch: LargestBatch | None, *totals: int) -> list[str]:
        remedies = tuple(Remedy(f"change {n}", n * 2**20, 0, fits=True) for n in totals)
        return fitting_lines(replace(advice, batch=batch, remedies=remedies))[1:]

    nothing: list[str] = []
    assert lines(LargestBatch(1, 8)) == ["                a batch of 1 (now 8)"]
    assert lines(LargestBatch(0, 8)) == lines(LargestBatch(8, 8)) == lines(None) == nothing
    assert "nothing tried does" in fitting_lines(replace(advice, batch=None))[0]
    assert lines(LargestBatch(7, 8), 1, 2, 3) == [
        "        1.0 MiB  change 1",
        "        2.0 MiB  change 2",
        "                a batch of 7 (now 8)",
    ]


def test_breaks_and_recompiles_are_advice_at_their_lines() -> None:
    def compute(x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x)
        print("here")
        return y + y.sum().item()

    line = compute.__code__.co_firstlineno
    with neusight.forecast_on("H100") as forecast:
        function: Callable[[torch.Tensor], torch.Tensor] = torch.compile(compute, backend="eager")
        for size in (8, 8, 4, 4, 4):
            function(torch.ones(size, 64, device="cuda"))
            forecast.step()

    found = advice_for(forecast)
    breaks = {item.what: item for item in found if item.kind == "graph_break"}
    again = [item.what for item in found if item.kind == "recompile"]

    assert [what.partition(": ")[0] for what in breaks] == [
        f"no graph break at tests/advice/test_advice.py:{line + 3}",
        f"no graph break at tests/advice/test_advice.py:{line + 2}",
    ]
    read, printed = breaks.values()
    assert read.gain > printed.gain == 0.0  # what waits for nothing costs no step of its own
    assert any("size mismatch" in what and "dynamic=True" in what for what in again)
    assert all(item.line for item in found)


def test_what_compiling_would_give_is_called_an_estimate_that_may_be_computed() -> None:
    forecast = train(nn.Sequential(nn.Linear(64, 64), nn.GELU()), torch.randn(8, 64))
    [reported] = [item for item in advice_for(forecast) if item.kind == "compile"]

    assert "estimated roughly" in reported.what
    assert "--try compile" in reported.what
