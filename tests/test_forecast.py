"""The front door: what users hold after a block."""

from __future__ import annotations

import json
import math
import re
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import join
from torch import nn

import neusight
from neusight.predictors.errors import (
    ForecastStateError,
    MismatchError,
    RecordingError,
    TopologyError,
    UnknownGPUError,
    UnmappedOpError,
)


def train(steps: int = 3, width: int = 64) -> nn.Module:
    model = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, 1)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        model(torch.randn(32, width, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def forecast_of_training(gpu: str = "H100", **options: int) -> neusight.Forecast:
    with neusight.forecast_on(gpu) as forecast:
        train(**options)
    return forecast


def test_a_tracker_gets_flat_figures_in_the_words_of_the_document() -> None:
    forecast = forecast_of_training()

    reported, document = forecast.to_dict(), forecast.to_json()

    assert json.loads(json.dumps(reported, allow_nan=False)) == reported
    assert {type(value) for value in reported.values()} <= {str, int, float}
    same = [name for name in reported if name in document and name != "step_latency_us"]
    assert {"gpu", "bound", "mfu", "peak_memory_bytes"} <= set(same)
    assert {name: reported[name] for name in same} == {name: document[name] for name in same}
    assert reported["step_latency_us"] == document["step_latency_us"]["median"]
    assert sum(reported[f"coverage/{origin}"] for origin in document["coverage"]) == pytest.approx(
        1
    )


def test_a_tracker_gets_no_step_of_a_program_that_failed() -> None:
    with pytest.raises(ZeroDivisionError), neusight.forecast_on("H100") as forecast:
        torch.ones(8, device="cuda").add_(1)
        print(1 / 0)

    reported = forecast.to_dict()

    assert reported["failure"] == "ZeroDivisionError: division by zero"
    assert [name for name in reported if "latency" in name or "per_second" in name] == [
        "latency_us"
    ]


def test_no_figure_of_a_tracker_is_a_folder_of_others() -> None:
    names = forecast_of_training().to_dict()

    assert {name.rpartition("/")[0] for name in names} & set(names) == set()


def test_the_figures_of_a_tracker_are_all_described() -> None:
    described = neusight.Forecast.to_dict.__doc__ or ""

    names = forecast_of_training().to_dict()
    families = {"gpu_time_us", "memory_bytes"}
    reported = [
        name.partition("/")[0] if name.split("/")[0] in families else name for name in names
    ]
    assert [name for name in reported if f"`{name}" not in described] == []


def test_a_training_block_gives_latency_memory_and_bound() -> None:
    forecast = forecast_of_training()

    median, low, high = forecast.step_latency_us
    assert 0 < low <= median <= high < math.inf
    assert forecast.bound == "host"
    assert forecast.fits
    assert forecast.peak_memory_bytes > 3 * 4 * (64 * 256 + 256 + 256 + 1)
    assert forecast.peak_reserved_bytes >= forecast.peak_memory_bytes
    assert forecast.unmapped == []
    assert sum(forecast.coverage.values()) == pytest.approx(1, abs=1e-5)
    assert forecast.flops_per_step > 0
    assert 0 < forecast.mfu < 1


def test_steps_are_found_without_help_and_the_first_is_left_out() -> None:
    forecast = forecast_of_training(steps=5)

    kinds = [row["kind"] for row in forecast.steps]
    assert kinds[0] == "setup"
    assert sum(row["count"] for row in forecast.steps if row["kind"] == "train") == 5
    latencies = [row["latency_us"] for row in forecast.steps if row["kind"] == "train"]
    assert forecast.step_latency_us.median == latencies[-1] < latencies[0]


def test_totals_add_up() -> None:
    forecast = forecast_of_training()
    verdict = forecast.verdict

    for rows in (verdict.by_kernel_class, verdict.by_module, verdict.by_op):
        assert sum(row.count for row in rows) == verdict.num_kernels
        assert sum(row.share for row in rows) == pytest.approx(1, abs=1e-4)
        assert sum(row.time_us for row in rows) >= forecast.gpu_busy_us - 1e-6


def test_more_work_is_never_faster() -> None:
    latencies = [forecast_of_training(width=width).gpu_busy_us for width in (64, 256, 1024)]

    assert latencies == sorted(latencies)


def test_the_json_is_the_same_byte_for_byte() -> None:
    texts = {json.dumps(forecast_of_training().to_json(), sort_keys=True) for _ in range(2)}

    assert len(texts) == 1


def test_the_json_has_the_keys_of_the_contract() -> None:
    document = forecast_of_training().to_json()

    assert {
        "schema_version", "gpu", "predictor", "torch_version", "steps", "step_latency_us",
        "bound", "peak_memory_bytes", "peak_reserved_bytes", "context_bytes",
        "memory_capacity_bytes",
        "fits", "coverage", "unmapped", "flops_per_step", "mfu", "num_ops", "num_kernels", "trace",
        "by_kernel_class", "by_module", "by_op", "by_operator", "warnings",
    } <= set(document)  # fmt: skip
    assert set(document["step_latency_us"]) == {"median", "low", "high"}
    assert set(document["by_op"][0]) == {"name", "count", "time_us", "share"}


def test_a_saved_forecast_loads_equal(tmp_path: Path) -> None:
    forecast = forecast_of_training()

    forecast.save(tmp_path / "run.json.gz")
    again = neusight.Forecast.load(tmp_path / "run.json.gz")

    assert again.recording == forecast.recording
    assert again.to_json() == forecast.to_json()


def test_the_same_recording_is_priced_on_another_gpu() -> None:
    forecast = forecast_of_training(width=2048)

    slower = forecast.on("T4")

    assert slower.gpu.name == "T4"
    assert slower.recording is forecast.recording
    assert slower.gpu_busy_us > forecast.gpu_busy_us


def test_a_question_that_another_gpu_answers_differently_forbids_repricing() -> None:
    with neusight.forecast_on("H100") as forecast:
        train()
        torch.cuda.get_device_capability()

    with pytest.raises(
        ForecastStateError,
        match=r"get_device_capability.*forecast_on\(\['H100-SXM5-80GB', 'T4'\]\)",
    ):
        forecast.on("T4")
    forecast.on("H200")


def test_an_attention_kernel_that_another_gpu_chooses_differently_forbids_repricing() -> None:
    with neusight.forecast_on("H100") as forecast:
        q = torch.randn(1, 4, 128, 64, device="cuda", dtype=torch.bfloat16)
        nn.functional.scaled_dot_product_attention(q, q, q)

    with pytest.raises(ForecastStateError, match="attention_choice"):
        forecast.on("A100")
    forecast.on("H200")


def test_an_unknown_gpu_names_near_misses() -> None:
    with pytest.raises(UnknownGPUError, match=r"Did you mean 'H100'"):
        neusight.forecast_on("H10")


def test_strict_raises_at_an_unmapped_op() -> None:
    with (
        pytest.raises(UnmappedOpError, match=r"mystery::op.*register_op"),
        neusight.forecast_on("H100", strict=True),
    ):
        _mystery_op()(torch.ones(3, device="cuda"))


def test_an_unmapped_op_is_counted_and_named() -> None:
    with neusight.forecast_on("H100") as forecast:
        _mystery_op()(torch.ones(1000, device="cuda"))

    assert forecast.unmapped == ["mystery::op"]
    assert forecast.coverage["fallback"] > 0
    assert "1 unmapped: mystery::op" in forecast.summary()


def test_out_of_memory_is_reported_with_op_and_module() -> None:
    with neusight.forecast_on("T4") as forecast:
        model = nn.Sequential(nn.Linear(40_000, 40_000), nn.Linear(40_000, 40_000)).cuda()
        model(torch.randn(10_000, 40_000, device="cuda"))

    assert not forecast.fits
    assert "does not fit" in forecast.summary()
    failure = forecast.memory.out_of_memory
    assert failure is not None
    assert failure.op == "aten::addmm"
    assert failure.module == "Sequential.0"


def test_key_averages_prints_torch_profilers_table() -> None:
    table = forecast_of_training().key_averages().table(sort_by="cuda_time_total", row_limit=5)

    assert "Self CUDA" in table
    assert "aten::" in table


def test_a_whole_run_leaves_no_warning_of_ours() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        forecast_of_training()


def test_a_batch_of_one_is_host_bound_and_a_large_one_is_not() -> None:
    def bound_of(batch: int) -> str:
        with neusight.forecast_on("H100") as forecast, torch.no_grad():
            layers = [nn.Linear(4096, 4096, device="cuda") for _ in range(8)]
            model = nn.Sequential(*layers).eval()
            for _ in range(3):
                model(torch.randn(batch, 4096, device="cuda"))
        return forecast.bound

    assert bound_of(1 << 16) == "compute"
    with neusight.forecast_on("H100") as small, torch.no_grad():
        model = nn.Sequential(*[nn.Linear(64, 64, device="cuda") for _ in range(8)]).eval()
        for _ in range(3):
            model(torch.randn(1, 64, device="cuda"))
    assert small.bound == "host"


def _mystery_op() -> torch._ops.OpOverload:
    global _library
    if _library is None:
        _library = torch.library.Library("mystery", "DEF")
        _library.define("op(Tensor x) -> Tensor")
        _library.impl("op", lambda x: torch.empty_like(x), "Meta")
    return torch.ops.mystery.op.default


_library: torch.library.Library | None = None


def test_inference_mode_launches_what_no_grad_launches() -> None:
    def ops(context: type[torch.no_grad] | type[torch.inference_mode]) -> list[str]:
        with neusight.forecast_on("H100") as forecast:
            model = (
                nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.1), nn.LayerNorm(64)).cuda().eval()
            )
            with context():
                for _ in range(3):
                    x = model(torch.randn(2, 16, 64, device="cuda"))
                    q = nn.functional.pad(x, (0, 64)).view(2, 16, 2, 64).transpose(1, 2).bfloat16()
                    nn.functional.scaled_dot_product_attention(q, q, q)
        assert forecast.unmapped == []
        return [kernel.name for kernel, _ in forecast.kernels]

    assert ops(torch.inference_mode) == ops(torch.no_grad)


def test_a_changed_recording_is_priced_alike() -> None:
    forecast = forecast_of_training()
    recording = forecast.recording

    same, shorter = forecast.of(recording), forecast.of(replace(recording, steps=()))

    assert same.to_json() == forecast.to_json()
    assert shorter.latency_us == 0


def test_a_host_bound_verdict_names_the_host_it_assumed() -> None:
    with neusight.forecast_on("V100") as forecast:
        train()

    [line] = [line for line in forecast.summary().splitlines() if line.startswith("  host ")]
    assert forecast.bound == "host"
    assert "the profile 'older' makes it host-bound" in line


def test_a_verdict_that_the_gpu_decides_names_no_host() -> None:
    with neusight.forecast_on("H100") as forecast:
        big = torch.ones(8192, 8192, device="cuda")
        big @ big

    assert forecast.bound != "host"
    assert "  host " not in forecast.summary()


# -- many ranks ----------------------------------------------------------------------------------


def of_ranks(topology: str | None = None, world_size: int = 16) -> neusight.Forecast:
    with neusight.forecast_on("H100", world_size=world_size, topology=topology) as forecast:
        join()
        total = torch.zeros(2**24, device="cuda")
        for _ in range(3):
            dist.all_reduce(total)
            forecast.step()
    return forecast


def test_a_topology_is_kept_wherever_the_forecast_goes(tmp_path: Path) -> None:
    slow = of_ranks("p4d")
    slow.save(tmp_path / "saved.json")

    back = neusight.Forecast.load(tmp_path / "saved.json")

    assert back.topology == slow.topology == slow.on("A100").topology
    assert back.latency_us == slow.latency_us
    assert slow.on("H100", topology="dgx-h100").latency_us < 0.3 * slow.latency_us
    assert slow.to_json()["topology"] == "p4d"


def test_a_saved_forecast_on_a_gpu_that_is_not_known_is_reported(tmp_path: Path) -> None:
    of_ranks("p4d").save(tmp_path / "saved.json")
    text = (tmp_path / "saved.json").read_text().replace('"gpu":"H100-SXM5-80GB"', '"gpu":"H9"')
    (tmp_path / "saved.json").write_text(text)

    with pytest.raises(RecordingError, match=r"saved.json cannot be priced.*Unknown GPU 'H9'"):
        neusight.Forecast.load(tmp_path / "saved.json")


def test_other_steps_that_take_long_are_named() -> None:
    with neusight.forecast_on("H100") as forecast:
        for _ in range(3):
            model = train(steps=1)
            forecast.step()
        for _ in range(4):
            with torch.no_grad():
                model(torch.randn(32, 64, device="cuda"))
            forecast.step()

    [note] = [text for text in forecast.warnings if text.startswith("beside the steps above")]
    words = r"beside the steps above: 3 inference steps of [\d.]+ µs, \d+% of the time of all steps"
    assert re.fullmatch(words, note)


def test_a_damaged_topology_of_a_saved_forecast_is_reported(tmp_path: Path) -> None:
    of_ranks("p4d").save(tmp_path / "saved.json")
    text = (tmp_path / "saved.json").read_text().replace('\\"gpus_per_node\\": 8', '\\"x\\": 8')
    (tmp_path / "saved.json").write_text(text)

    with pytest.raises(RecordingError, match=r"saved.json cannot be priced.*'x'"):
        neusight.Forecast.load(tmp_path / "saved.json")


def test_a_network_that_nobody_stated_is_reported_and_its_interval_is_wider() -> None:
    unstated, stated = of_ranks(), of_ranks("dgx-h100")

    assert "dgx-h100 (8 cards of 50 GB/s a node)" in unstated.warnings[-1]
    assert "  note      the network between nodes is not stated" in unstated.summary()
    assert "  topology  dgx-h100, 8 cards of 50 GB/s a node" in stated.summary()
    assert stated.warnings == of_ranks(world_size=8).warnings == []
    assert unstated.step_latency_us.median == stated.step_latency_us.median
    assert unstated.step_latency_us.high > stated.step_latency_us.high


def test_ranks_that_a_topology_does_not_join_are_reported_before_anything_runs() -> None:
    with (
        pytest.raises(TopologyError, match="no level above it"),
        neusight.forecast_on("L40S", world_size=16, topology="pcie-l40s"),
    ):
        raise AssertionError


def ranks_that_reduce(*widths: int) -> neusight.Forecast:
    """A rank of each width; they reduce as many bytes together."""
    recordings = []
    for rank, width in enumerate(widths):
        with neusight.forecast_on("H100", world_size=len(widths), rank=rank) as alone:
            join()
            for _ in range(3):
                train(steps=1, width=width)
                dist.all_reduce(torch.ones(2**20, device="cuda"))
        recordings.append(alone.recording)
    return neusight.Forecast(recordings[0], alone.options, ranks=recordings)


def test_ranks_that_were_recorded_apart_wait_for_each_other() -> None:
    forecast = ranks_that_reduce(64, 2048)
    alone = neusight.Forecast(forecast.recording, forecast.options)

    first, second = forecast.ranks
    assert alone.ranks == ()
    assert alone.latency_us < first.latency_us
    assert (first.recording.rank, second.recording.rank) == (0, 1)
    assert forecast.timeline is first.timeline
    assert forecast.step_latency_us == max(
        first.step_latency_us, second.step_latency_us, key=lambda latency: latency.median
    )
    assert forecast.peak_memory_bytes == second.peak_memory_bytes > first.peak_memory_bytes
    assert forecast.needs_most is second


def test_several_ranks_are_reported_of_saved_and_priced_elsewhere(tmp_path: Path) -> None:
    forecast = ranks_that_reduce(64, 256)
    forecast.save(tmp_path / "ranks.json.gz")

    loaded = neusight.Forecast.load(tmp_path / "ranks.json.gz")

    assert "2 of 2 side by side; slowest: rank" in forecast.summary()
    assert [row["rank"] for row in forecast.to_json()["ranks"]] == [0, 1]
    assert loaded.to_json() == forecast.to_json()
    assert len(forecast.on("A100").ranks) == 2
    assert forecast.on("A100").step_latency_us.median > forecast.step_latency_us.median


def test_ranks_that_do_not_agree_are_an_error_with_both_lines() -> None:
    recordings = []
    for rank in range(2):
        with neusight.forecast_on("H100", world_size=2, rank=rank) as alone:
            join()
            dist.all_reduce(torch.ones(8 + rank, device="cuda"))
        recordings.append(alone.recording)
    forecast = neusight.Forecast(recordings[0], alone.options, ranks=recordings)

    with pytest.raises(MismatchError, match=r"rank 0 .* test_forecast.py:\d+, rank 1 .* test_fo"):
        forecast.summary()
