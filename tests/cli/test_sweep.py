"""An argument of the script over several values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from neusight.integrations.cli.commands import run
from neusight.integrations.cli.main import _parser, main
from neusight.integrations.cli.planning import points as planning_points
from neusight.integrations.cli.planning import processes
from neusight.integrations.cli.planning.candidates import Candidate
from neusight.integrations.cli.planning.points import PlanPoint
from neusight.integrations.cli.sweep import (
    Sweep,
    SweepPoint,
    parse_sweep,
    sweep_table,
    unit_of,
    with_argument,
)
from neusight.integrations.program.program import Program
from neusight.predictors.errors import OptionError
from warm_python import run_python

GIB = 2**30
TRAIN = """
import argparse, torch
from torch import nn
parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=1)
batch = parser.parse_args().batch
model = nn.Conv2d(3, 64, 3).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.randn(batch, 3, 512, 512, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def point(value: str, ms: float, used: int, *, capacity: int = 80) -> SweepPoint:
    return SweepPoint(
        value=value, gpu="H100", latency_us=ms * 1e3, low_us=ms * 900, high_us=ms * 1100,
        bound="memory", fits=used <= capacity, used_bytes=used * GIB, capacity_bytes=capacity * GIB,
        tokens_per_second=float(value) / ms * 1e3,
        memory_verdict="fits" if used <= capacity else "does not fit",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--batch", "8", "--lr", "1"], ["--batch", "2", "--lr", "1"]),
        (["--batch=8"], ["--batch=2"]),
        (["train", "batch=8"], ["train", "batch=2"]),
        (["+batch=8"], ["+batch=2"]),
        (["--config", "{batch}.yaml"], ["--config", "2.yaml"]),
        (["--lr", "1"], ["--lr", "1", "--batch", "2"]),
        ([], ["--batch", "2"]),
        (["--batch"], ["--batch", "--batch", "2"]),
    ],
)
def test_an_argument_is_set_where_it_stands_or_added(
    arguments: list[str], expected: list[str]
) -> None:
    assert list(with_argument(arguments, "batch", "2")) == expected


def test_dashes_and_underscores_are_the_same_argument() -> None:
    assert with_argument(["--batch_size", "8"], "batch-size", "2") == ("--batch_size", "2")
    assert with_argument(["-b", "8"], "b", "2") == ("-b", "2")


def test_a_sweep_reads_as_written() -> None:
    assert parse_sweep("batch= 1, 2,2") == Sweep("batch", ("1", "2"))


def test_a_flag_is_left_out_and_given_where_flags_are_taken() -> None:
    flag = parse_sweep("--use-checkpoint", takes_flags=True)

    assert [flag.set_in(["--use_checkpoint", "--lr=1"], value) for value in flag.values] == [
        ("--lr=1",), ("--lr=1", "--use-checkpoint"),
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["batch", "batch=", "=1,2", "batch=,", ""])
def test_what_is_no_sweep_is_reported(text: str) -> None:
    with pytest.raises(OptionError, match="--sweep got"):
        parse_sweep(text)


def test_the_largest_that_fits_and_where_memory_ends_are_stated() -> None:
    points = [point("1", 10, 10), point("4", 20, 40), point("8", 40, 80), point("16", 90, 160)]

    table = sweep_table(Sweep("batch", ("1", "4", "8", "16")), points)

    assert "most tokens/s that fit: batch 4" in table  # 8 in 40 ms is as fast; the first counts
    assert "largest that fits: 8 (memory grows by 10 GiB each: full at about 8)" in table
    assert [line.count("█") for line in table.splitlines()[2:6]] == [12, 24, 24, 21]


def test_the_table_in_full() -> None:
    """Of steps, as the batch is not known; of tokens with their cost."""
    steps = [
        replace(point(value, ms, used), tokens_per_second=None)
        for value, ms, used in (("1", 100, 1), ("2", 101, 3), ("4", 150, 90))
    ]
    steps[2] = replace(steps[2], latency_us=0.0)
    little = "█" * 2 + "·" * 22
    cheap = replace(point("1", 16, 10), cost_per_million_tokens=0.1234, tokens_per_second=625.4)
    unknown = replace(point("2", 10, 10), tokens_per_second=62.6)

    assert sweep_table(Sweep("batch", ("1", "2", "4")), steps).splitlines() == [
        "H100",
        "batch  ms a step        80 % range   bound         GiB  fits  steps/s",
        f"1         100.00   90.00 to 110.00  memory   1.0 of 80   yes       10  {'█' * 24}",
        f"2         101.00   90.90 to 111.10  memory   3.0 of 80   yes      9.9  {'█' * 24}",
        f"4         0.0000  135.00 to 165.00  memory  90.0 of 80    NO        0  {'·' * 24}",
        "the batch of a step is not known, so no value is called the best; largest that fits: 2 "
        "(memory grows by 43.5 GiB each: full at about 3)",
    ]
    assert sweep_table(Sweep("lr", ("1", "2")), [cheap, unknown]).splitlines() == [
        "H100",
        "lr  ms a step      80 % range   bound         GiB  fits  tokens/s  1M tokens",
        f"1       16.00  14.40 to 17.60  memory  10.0 of 80   yes       625      0.123  {'█' * 24}",
        f"2       10.00   9.00 to 11.00  memory  10.0 of 80   yes        63          0  {little}",
        "most tokens/s that fit: lr 1; largest that fits: 2",
    ]
    document = Sweep("lr", ("1",)).to_json([])
    assert document == {"schema_version": 1, "argument": "lr", "points": []}
    assert SweepPoint("9", gpu="", failure="no").to_json() == {
        "value": "9", "gpu": "", "latency_us": 0.0, "low_us": 0.0, "high_us": 0.0, "bound": "",
        "fits": False, "used_bytes": 0, "capacity_bytes": 0, "samples_per_second": None,
        "tokens_per_second": None, "cost_per_million_samples": None,
        "cost_per_million_tokens": None, "memory_verdict": "does not fit", "batch_source": "",
        "ttft_us": None, "tpot_us": None, "failure": "no",
    }  # fmt: skip


def test_a_number_that_is_written_in_two_ways_is_one() -> None:
    points = [point("0", 20, 40), point("0.0", 10, 40), point("2", 10, 60)]

    table = sweep_table(Sweep("lr", ("0", "0.0", "2")), points)

    assert "largest that fits: 2 (memory grows by 10 GiB each: full at about 4)" in table


def test_the_knee_is_where_more_throughput_costs_more_latency() -> None:
    """With a step of 8 ms and 1 ms a sample, throughput over latency is n / (8 + n)², at most
    where n is 8 (Kleinrock 1979)."""
    values = ("1", "2", "4", "8", "16", "32")
    points = [point(value, 8 + float(value), 10) for value in values]

    assert "; knee: batch 8; " in sweep_table(Sweep("batch", values), points)
    assert "knee" not in sweep_table(Sweep("batch", values[:2]), points[:2])


def test_a_model_that_generates_has_columns_of_its_own() -> None:
    points = [
        replace(point(value, 10, 10), ttft_us=float(value) * 1e3, tpot_us=500.0)
        for value in ("1", "2")
    ]

    header, first, _ = sweep_table(Sweep("batch", ("1", "2")), points).splitlines()[1:4]
    assert "ms to first token  ms a token" in header
    assert "1.00      0.5000" in first
    one_without = [points[0], replace(points[1], ttft_us=None, tpot_us=None)]
    assert "token" not in sweep_table(Sweep("batch", ("1", "2")), one_without).replace(
        "tokens/s", ""
    )


def test_what_is_too_close_to_call_is_distinguished() -> None:
    points = [point("1", 10, 10), point("8", 40, 79)]
    points[1] = replace(points[1], memory_verdict="close")

    table = sweep_table(Sweep("batch", ("1", "8")), points)

    assert "largest that fits: 1" in table
    assert table.endswith("; close: 8")


def test_values_that_are_no_numbers_have_no_largest() -> None:
    points = [point("1", 10, 10), point("1", 20, 90)]
    named = [SweepPoint(**{**points[0].to_json(), "value": "small"})]

    assert "largest" not in sweep_table(Sweep("size", ("small",)), named)
    assert "no size of these fits" in sweep_table(Sweep("size", ("1",)), points[1:])


def test_a_failed_value_is_reported_with_the_scripts_own_reason() -> None:
    points = [point("1", 1, 1), SweepPoint("bad", gpu="", failure="no such size")]

    assert "size bad failed: no such size" in sweep_table(Sweep("size", ("1", "bad")), points)


def test_a_table_is_shown_and_a_page_written_also_where_another_file_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TRAIN)
    Path("file").touch()
    found = [point("1", 10, 10), point("4", 20, 40)]
    monkeypatch.setattr(run, "_swept", lambda request, sweep: found)
    words = ["run", "--gpu", "H100", "--sweep", "batch=1,4", "--html", "o.html", "train.py"]

    assert main(words) == 0
    assert main([*words[:-1], "--json", "file/o.json", "train.py"]) == 2

    shown = capsys.readouterr()
    table = sweep_table(Sweep("batch", ("1", "4")), found)
    assert shown.out == f"{table}\n\nreport: o.html\n" * 2
    assert shown.err == "neusight: file/o.json cannot be written: File exists\n"
    assert "<svg" in Path("o.html").read_text()


@pytest.mark.parametrize(("num_cores", "at_once"), [(1, 1), (2, 2), (16, 2)])
def test_two_values_are_run_at_once_where_there_are_cores(
    num_cores: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def evaluated(
        _: object, candidates: Sequence[Candidate], *, at_once: int, **__: object
    ) -> Iterator[tuple[int, list[PlanPoint]]]:
        asked.append(at_once)
        yield from ((n, [PlanPoint(one, problem="no")]) for n, one in enumerate(candidates))

    monkeypatch.setattr(planning_points, "evaluated_in_turn", evaluated)
    monkeypatch.setattr(processes, "num_cores", lambda: num_cores)
    options = _parser().parse_args(["run", "--gpu", "H100", "--quiet"])
    options.is_command_line = False
    request = run._requested(options, Program("json.tool", (), is_module=True))

    found = run._swept(request, Sweep("lr", ("1", "2")))

    assert asked == [at_once]
    assert [(point.value, point.failure) for point in found] == [("1", "no"), ("2", "no")]


def test_a_script_is_swept_end_to_end(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)

    done = run_python(
        "-m", "neusight", "run", "--gpu", "H100", "--gpu", "T4",
        "--sweep", "batch=2,64,few", "--json", "o.json", "train.py", cwd=tmp_path,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    points = json.loads((tmp_path / "o.json").read_text())["points"]
    assert [(item["value"], item["gpu"]) for item in points] == [
        ("2", "H100-SXM5-80GB"), ("2", "T4"), ("64", "H100-SXM5-80GB"), ("64", "T4"),
        ("few", ""),
    ]  # fmt: skip
    assert "argument --batch: invalid int value: 'few'" in points[4]["failure"]
    assert points[2]["latency_us"] > points[0]["latency_us"]
    assert "H100-SXM5-80GB\nbatch" in done.stdout
    assert "samples/s" in done.stdout


def test_an_argument_that_the_script_does_not_take_fails(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)

    done = run_python(
        "-m", "neusight", "run", "--gpu", "H100", "--sweep", "width=2", "train.py", cwd=tmp_path
    )

    assert done.returncode == 3
    assert "unrecognized arguments: --width 2" in done.stdout


def test_throughput_is_compared_in_what_all_points_know_or_not_at_all() -> None:
    points = [point("1", 10, 10), point("4", 20, 40)]
    mixed = [replace(points[0], samples_per_second=100.0, tokens_per_second=None),
             replace(points[1], samples_per_second=200.0)]  # fmt: skip
    unknown = [replace(item, tokens_per_second=None) for item in points]

    assert "most samples/s that fit: batch 4" in sweep_table(Sweep("batch", ("1", "4")), mixed)
    table = sweep_table(Sweep("batch", ("1", "4")), unknown)
    assert "the batch of a step is not known, so no value is called the best" in table
    assert "that fit:" not in table
    assert "largest that fits: 4" in table
    of_other_means = [points[0], replace(points[1], batch_source="loader")]
    assert unit_of(points) == "tokens/s"
    assert unit_of(of_other_means) == "steps/s"
