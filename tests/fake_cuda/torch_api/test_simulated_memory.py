"""torch.cuda's memory functions while a forecast is open."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import neusight
from neusight.memory.placement import ALLOCATOR_OPTION, FRACTION_OPTION
from neusight.predictors.gpu import find_gpu
from places import require_golden

MIB = 2**20


def test_memory_that_runs_out_is_reported_in_gib() -> None:
    with neusight.forecast_on("H100", on_out_of_memory="raise") as forecast:
        kept = torch.empty(2 * 1024 * MIB, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.OutOfMemoryError) as raised:
            torch.empty(128 * 1024 * MIB, dtype=torch.uint8, device="cuda")

    assert kept is not None
    assert str(raised.value) == (
        "CUDA out of memory. Tried to allocate 128.00 GiB. GPU 0 has a total capacity of 79.18 GiB "
        "of which 2.00 GiB is allocated by PyTorch (forecast for H100-SXM5-80GB, op aten::empty, "
        "module (none))."
    )
    [warning] = forecast.warnings
    assert "where 128.00 GiB were asked for" in warning


def test_counts_are_worked_by_hand() -> None:
    with neusight.forecast_on("H100"):
        small = torch.empty(1000, dtype=torch.uint8, device="cuda")
        large = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
        del large
        stats = torch.cuda.memory_stats()

    assert small is not None
    expected = {
        "allocated_bytes.all.current": 1024,
        "allocated_bytes.all.peak": 3 * MIB + 1024,
        "allocated_bytes.large_pool.peak": 3 * MIB,
        "allocated_bytes.large_pool.freed": 3 * MIB,
        "allocated_bytes.small_pool.allocated": 1024,
        "requested_bytes.small_pool.current": 1000,
        "active_bytes.all.current": 1024,
        "reserved_bytes.all.current": 22 * MIB,
        "allocation.all.current": 1,
        "allocation.all.allocated": 2,
        "segment.all.current": 2,
        "segment.large_pool.current": 1,
        "inactive_split_bytes.all.current": 2 * MIB - 1024,
        "inactive_split.all.current": 1,
        "num_device_alloc": 2,
        "num_device_free": 0,
    }
    assert {name: stats[name] for name in expected} == expected


#: In this order; a key without one of them is a figure of its own.
_OF_EACH = ("current", "peak", "allocated", "freed")


def test_the_counts_of_the_allocator_are_those_of_the_table() -> None:
    """Small and large blocks that come and go, a cache that is emptied, memory that runs out, and
    peaks and counts that begin again. Of each what is there, its peak, what came and what went."""

    def block(num_bytes: int) -> torch.Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, device="cuda")

    found: dict[str, dict[str, int]] = {}
    with neusight.forecast_on("H100", on_out_of_memory="raise"):
        kept = [block(1000), block(30 * MIB), block(3 * MIB), block(5 * MIB)]
        small, large = block(3000), block(4 * MIB)
        del small, large
        kept.append(block(2000))
        found["at first"] = torch.cuda.memory_stats()
        with pytest.raises(torch.OutOfMemoryError):
            block(2**40)
        del kept[1]
        torch.cuda.empty_cache()
        found["once it ran out and was emptied"] = torch.cuda.memory_stats()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_accumulated_memory_stats()
        kept.append(block(700))
        found["counted again"] = torch.cuda.memory_stats()

    assert {len(stats) for stats in found.values()} == {123}
    lines = []
    for when, stats in found.items():
        rows: dict[str, list[int]] = {}
        for key in sorted(stats, key=lambda key: (*_OF_EACH, key).index(key.rpartition(".")[2])):
            rows.setdefault(key.rpartition(".")[0] or key, []).append(stats[key])
        lines += [when, *(f"  {name:32} {' '.join(map(str, rows[name]))}" for name in sorted(rows))]
    require_golden("memory_stats.txt", lines)


def test_what_the_script_queries_is_what_the_forecast_reports() -> None:
    with neusight.forecast_on("H100") as forecast:
        model = torch.nn.Linear(512, 512).cuda()
        for _ in range(3):
            model(torch.randn(64, 512, device="cuda")).sum().backward()
        on_query = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()

    assert on_query == (forecast.peak_memory_bytes, forecast.peak_reserved_bytes)
    # Those of cuBLAS in both threads, and the expanded gradient of the sum as a matrix.
    assert forecast.memory.by_category["workspaces"] == 64 * MIB + 64 * 512 * 4


def test_summary_of_torch_is_consistent() -> None:
    with neusight.forecast_on("H100"):
        kept = torch.empty(8 * MIB, device="cuda")
        text = torch.cuda.memory_summary()
        abbreviated = torch.cuda.memory_summary(abbreviated=True)

    assert kept is not None
    assert "| Allocated memory      |  32768 KiB |  32768 KiB |  32768 KiB |      0 B   |" in text
    assert "GPU reserved memory" in abbreviated


def test_peaks_and_counts_are_reset() -> None:
    with neusight.forecast_on("H100"):
        kept = torch.empty(MIB, device="cuda")
        passing = torch.empty(MIB, device="cuda")
        del passing
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_accumulated_memory_stats()
        stats = torch.cuda.memory_stats()

    assert kept is not None
    assert stats["allocated_bytes.all.peak"] == 4 * MIB
    assert stats["allocated_bytes.all.freed"] == 0


def test_emptied_cache_is_known_to_the_script_and_to_the_forecast() -> None:
    with neusight.forecast_on("H100") as forecast:
        passing = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
        del passing
        before = torch.cuda.memory_reserved()
        torch.cuda.empty_cache()
        after = torch.cuda.memory_reserved()
        kept = torch.empty(150 * MIB, dtype=torch.uint8, device="cuda")

    assert kept is not None
    assert (before, after) == (100 * MIB, 0)
    assert forecast.peak_reserved_bytes == 150 * MIB


def test_settings_of_the_environment_are_read_when_cuda_is_first_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    with neusight.forecast_on("H100") as forecast:
        monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,nonsense:1")
        passing = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
        del passing
        kept = torch.empty(41 * MIB, dtype=torch.uint8, device="cuda")
        reserved = torch.cuda.memory_reserved()
        monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "too_late:1")

    assert kept is not None
    assert reserved == forecast.peak_reserved_bytes == 60 * MIB
    assert forecast.memory.settings.expandable_segments
    assert f"{ALLOCATOR_OPTION}: nonsense is not known" in forecast.warnings
    assert not any("too_late" in text for text in forecast.warnings)


def test_settings_survive_a_saved_forecast(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    with neusight.forecast_on("H100") as forecast:
        kept = torch.empty(41 * MIB, dtype=torch.uint8, device="cuda")
        torch.cuda.empty_cache()
    assert kept is not None
    forecast.save(tmp_path / "recording.json")

    loaded = neusight.Forecast.load(tmp_path / "recording.json")

    assert loaded.memory == forecast.memory
    assert loaded.memory.settings.expandable_segments


@pytest.mark.filterwarnings("ignore:.*_set_allocator_settings is deprecated")
def test_settings_may_be_set_by_the_script() -> None:
    with neusight.forecast_on("H100") as forecast:
        torch.cuda.memory._set_allocator_settings("max_split_size_mb:64")
        kept = torch.empty(MIB, device="cuda")
        limit = torch.cuda.memory_stats()["max_split_size"]

    assert kept is not None
    assert limit == 64 * MIB
    assert forecast.memory.settings.max_split_bytes == 64 * MIB


def test_a_share_of_the_memory_is_all_there_is() -> None:
    target = find_gpu("H100")
    with neusight.forecast_on("H100", on_out_of_memory="raise") as forecast:
        torch.cuda.set_per_process_memory_fraction(0.5)
        share = torch.cuda.get_per_process_memory_fraction()
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(target.memory_bytes * 6 // 10, dtype=torch.uint8, device="cuda")
        kept = torch.empty(target.memory_bytes * 4 // 10, dtype=torch.uint8, device="cuda")
        ooms = torch.cuda.memory_stats()["num_ooms"]

    assert kept is not None
    assert (share, ooms) == (0.5, 1)
    assert forecast.recording.options[FRACTION_OPTION] == "0.5"
    assert forecast.fits


def test_the_history_says_how_much_was_free_when_memory_ran_out() -> None:
    target = find_gpu("H100")
    with neusight.forecast_on("H100", on_out_of_memory="raise"):
        torch.cuda.memory._record_memory_history()
        kept = torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(target.memory_bytes, dtype=torch.uint8, device="cuda")
        [trace] = torch.cuda.memory._snapshot()["device_traces"]

    [event] = [entry for entry in trace if entry["action"] == "oom"]
    assert kept is not None
    assert (event["size"], event["device_free"]) == (
        target.memory_bytes, target.memory_bytes - target.context_bytes - 40 * MIB
    )  # fmt: skip


@pytest.mark.parametrize("fraction", [1, -0.5, 1.5])
def test_a_share_that_is_none_is_refused_as_torch_does(fraction: float) -> None:
    with (
        neusight.forecast_on("H100"),
        pytest.raises((TypeError, ValueError), match="fraction"),
    ):
        kept = torch.empty(1, device="cuda")
        assert kept is not None
        torch.cuda.set_per_process_memory_fraction(fraction)


def test_a_stream_cannot_use_what_another_freed() -> None:
    with neusight.forecast_on("H100") as forecast:
        with torch.cuda.stream(torch.cuda.Stream()):
            passing = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
        del passing
        kept = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
        reserved = torch.cuda.memory_reserved()

    assert kept is not None
    assert reserved == forecast.peak_reserved_bytes == 60 * MIB
