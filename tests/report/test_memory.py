"""`neusight run --max-memory`: verdict, exit code, and what would make it fit."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import neusight
from neusight.advice.memory import LargestBatch, MemoryAdvice, Remedy
from neusight.integrations.cli.main import _split
from neusight.integrations.program.program import Program
from neusight.integrations.report.memory import MemoryReport, limit_of
from neusight.memory.allocator_settings import AllocatorSettings
from neusight.memory.placement import MemoryEvent, MemoryTimeline, StepMemory
from neusight.predictors.errors import OptionError
from neusight.recording.recording import Alloc
from timelines import ROUND_GPU

MIB, GIB = 2**20, 2**30

SCRIPT = """
import torch
from torch import nn

model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(4)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(4096, 1024).cuda()).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def forecast() -> neusight.Forecast:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(256, 1024), nn.Linear(1024, 256)

        def forward(self, data: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = data + self.down(torch.relu(self.up(data)))
            return result

    with neusight.forecast_on("A100", with_stack=True) as found:
        model = nn.Sequential(nn.Embedding(100, 256), *[Block() for _ in range(4)]).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            model(torch.randint(100, (32, 128)).cuda()).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return found


def test_gib_become_bytes_and_nothing_means_all() -> None:
    assert limit_of("40") == 40 * GIB
    assert limit_of("0.5") == 512 * MIB
    assert limit_of("") is None


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "much"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=f"--max-memory is '{text}'"):
        limit_of(text)


def test_a_number_behind_the_option_is_its_own_and_all_else_the_script() -> None:
    given = ["run", "--gpu", "A100", "--max-memory"]
    program = Program("train.py", ("--batch", "8"))

    assert _split([*given, "train.py", "--batch", "8"]) == (given, program)
    assert _split([*given, "16", "train.py", "--batch", "8"]) == ([*given, "16"], program)
    assert _split([*given, "--quiet", "train.py", "--batch", "8"]) == ([*given, "--quiet"], program)
    assert _split([*given[:3], "--max-memory=16", "train.py", "--batch", "8"])[1] == program


def test_the_verdict_names_the_limit_and_the_need(forecast: neusight.Forecast) -> None:
    roomy, tight = MemoryReport(forecast), MemoryReport(forecast, 500 * MIB)
    close = MemoryReport(forecast, 600 * MIB)

    assert roomy.fits
    assert roomy.verdict.startswith("A100-SXM4-80GB: fits into 79.")
    assert not tight.fits
    assert "does not fit into 500.0 MiB, needs" in tight.verdict
    assert not close.fits
    assert "close to 600.0 MiB, needs 614" in close.verdict
    assert "what would save memory" in str(roomy)
    assert "what would make it fit" in str(tight)


def test_the_report_names_line_tensor_and_change(forecast: neusight.Forecast) -> None:
    text = str(MemoryReport(forecast, 600 * MIB))

    assert "test_memory.py:" in text
    assert "4 x 16.0 MiB  float32 [32, 128, 1024] aten::relu, Sequential.*, forward" in text
    assert "checkpoint Sequential.* (4 modules)" in text
    assert "ms a step (+" in text
    assert "would fit (now 32)" in text


def literal_report(
    *, fits: bool = False, batch: LargestBatch | None = None, remedies: int = 2, tensors: int = 7
) -> MemoryReport:
    """A step of 10 ms that needs 3 GiB of 2."""
    allocs = [
        (
            Alloc(n, 2**30 >> n, f"Net.{n}", "aten::mm", "forward", "activation", (f"a.py:{n}",)),
            None,
        )
        for n in range(tensors)
    ]
    cast = Alloc(9, 2**29, "Net.8", "aten::mm", "forward", "activation", ("a.py:0",))
    workspace = Alloc(10, MIB // 10 - 1, kind="workspace")
    weight = Alloc(11, MIB // 10, kind="parameter")
    memory = MemoryTimeline(
        events=(),
        steps=(StepMemory(0, "train", 2 * GIB, 0, 0), StepMemory(1, "train", 3 * GIB, 0, 0)),
        peak_allocated=2 * GIB,
        peak_reserved=5 * GIB // 2,
        peak_event=MemoryEvent(0, 4, 0, 0, 0, 0, allocs[0][0]),
        alive_at_peak=(*(alloc for alloc, _ in allocs), workspace, weight),
        capacity_bytes=None,
        context_bytes=GIB // 2,
        settings=AllocatorSettings(),
    )
    forecast: Any = SimpleNamespace(gpu=ROUND_GPU, step_latency_us=SimpleNamespace(median=10_000.0))
    report = MemoryReport(forecast, 2 * GIB)
    vars(report)["advice"] = MemoryAdvice(
        memory=memory,
        fits=fits,
        limit_bytes=2 * GIB,
        needed_bytes=3 * GIB,
        tensors=(*allocs, (cast, None)),
        remedies=tuple(
            Remedy(
                f"change {n}", n * GIB, GIB // 4, n < 2, 1500.0 if n else None, "luck" * (n == 1)
            )
            for n in range(remedies)
        ),
        batch=batch,
    )
    return report


def test_the_report_in_full() -> None:
    assert str(literal_report(batch=LargestBatch(3, 8))).splitlines() == [
        "Round: does not fit into 2.00 GiB, needs 3.00 GiB (2.85 GiB to 3.42 GiB)",
        "  needs     2.00 GiB allocated, 2.50 GiB reserved if nothing limits it, 512.0 MiB context",
        "  peak      step 4, aten::mm, Net.0, forward, a.py:0",
        "            first step 2.00 GiB, later ones 3.00 GiB",
        "  alive     activations 1.98 GiB, parameters 0.1 MiB",
        "  largest       2 x 768.0 MiB  aten::mm, Net.*, forward, a.py:0",
        "                    512.0 MiB  aten::mm, Net.*, forward, a.py:1",
        "                    256.0 MiB  aten::mm, Net.*, forward, a.py:2",
        "                    128.0 MiB  aten::mm, Net.*, forward, a.py:3",
        "                     64.0 MiB  aten::mm, Net.*, forward, a.py:4",
        "                     32.0 MiB  aten::mm, Net.*, forward, a.py:5",
        "  batch     3 would fit (now 8)",
        "  what would make it fit",
        "    change 0     0.0 MiB, fits, saves 256.0 MiB",
        "    change 1    1.00 GiB, fits, saves 256.0 MiB, +1.50 ms a step (+15%), luck",
    ]


def test_a_peak_is_never_below_nothing() -> None:
    """What the estimate may be off by is that of the memory as it was recorded."""
    report = literal_report()
    off_by = report.needed_range.high - 3 * GIB
    vars(report)["advice"] = replace(report.advice, needed_bytes=1000)

    assert report.needed_range == (0, 1000 + off_by)


@pytest.mark.parametrize(
    ("batch", "words"), [(0, "not even 1"), (1, "1"), (7, "7"), (8, "up to 8"), (9, "up to 9")]
)
def test_the_largest_batch_is_stated_beside_the_recorded_one(batch: int, words: str) -> None:
    text = str(literal_report(fits=True, batch=LargestBatch(batch, 8), remedies=9))

    assert f"  batch     {words} would fit (now 8)\n" in text
    assert text.count("    change ") == 6
    assert "    change 5    5.00 GiB, saves 256.0 MiB, +1.50 ms a step (+15%)" in text


def test_json_has_the_same(forecast: neusight.Forecast) -> None:
    report = MemoryReport(forecast, 600 * MIB)

    document = json.loads(json.dumps(report.to_json(), allow_nan=False))

    assert document["gpu"] == "A100-SXM4-80GB"
    assert document["fits"] is False
    assert document["memory_verdict"] == "close"
    low, high = document["needed_range_bytes"].values()
    assert low < document["needed_bytes"] < high
    assert document["limit_bytes"] == 600 * MIB
    assert document["needed_bytes"] == report.advice.needed_bytes
    assert document["largest_batch"]["recorded"] == 32
    assert document["remedies"][0]["what"] == "checkpoint Sequential.* (4 modules)"
    assert all(
        item["saved_bytes"] == document["needed_bytes"] - item["total_bytes"]
        for item in document["remedies"]
    )


def test_equal_tensors_of_repeated_modules_are_one_row(forecast: neusight.Forecast) -> None:
    rows = MemoryReport(forecast).tensors

    assert sum(row.num_bytes for row in rows) == sum(forecast.memory.by_category.values())
    assert len({row[2:] for row in rows}) == len(rows)
    assert rows == sorted(rows, key=lambda row: -row.num_bytes)


def test_the_command_exits_with_1_where_it_does_not_fit(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "neusight", "run", "--gpu", "H100", "--json", "out.json"]

    done = subprocess.run(
        [*command, "--max-memory", "0.6", "train.py"], cwd=tmp_path, capture_output=True, text=True
    )

    assert done.returncode == 1, done.stderr
    assert "H100-SXM5-80GB: does not fit into 614.4 MiB" in done.stdout
    assert "train.py:8" in done.stdout
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["fits"] is True
    assert document["max_memory"][0]["fits"] is False
