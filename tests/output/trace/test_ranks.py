"""The traces of several ranks in one folder."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from unequal_ranks import COLLECTIVE_US, NUM_COLLECTIVES, unequal_ranks

from neusight.output.trace.ranks import RankForecast, worker_of, write_rank_traces
from neusight.predictors.gpu import find_gpu
from neusight.recording.recording import Recording

H100 = find_gpu("H100")


@pytest.fixture(scope="module")
def ranks() -> list[RankForecast]:
    return unequal_ranks()


def read(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return loaded


def collectives(trace: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["name"].startswith("ncclDevKernel")]


def test_each_rank_has_a_file_named_by_its_host_and_number(
    ranks: list[RankForecast], tmp_path: Path
) -> None:
    paths = write_rank_traces(tmp_path, ranks, H100)

    assert [path.name for path in paths] == [
        "node0_0.1.pt.trace.json.gz",
        "node1_1.1.pt.trace.json.gz",
    ]
    infos = [read(path)["distributedInfo"] for path in paths]
    assert [(info["rank"], info["world_size"]) for info in infos] == [(0, 2), (1, 2)]


def test_the_files_of_ranks_are_on_one_clock(ranks: list[RankForecast], tmp_path: Path) -> None:
    slow, fast = ranks[::-1]
    first, second = [read(path) for path in write_rank_traces(tmp_path, [fast, slow], H100)]

    assert first["baseTimeNanoseconds"] == second["baseTimeNanoseconds"]
    ends = [
        [round(event["ts"] + event["dur"], 3) for event in collectives(trace)]
        for trace in (first, second)
    ]
    assert ends[0] == ends[1]  # they leave it together, whenever they came


def test_a_rank_waits_inside_its_collective(ranks: list[RankForecast], tmp_path: Path) -> None:
    fast, slow = [collectives(read(path)) for path in write_rank_traces(tmp_path, ranks, H100)]

    assert len(fast) == len(slow) == NUM_COLLECTIVES * len(ranks[0].timeline.steps)
    for early, late in zip(fast, slow, strict=True):
        assert late["dur"] == COLLECTIVE_US
        assert early["dur"] == pytest.approx(COLLECTIVE_US + early["args"]["waited for ranks us"])
        assert early["args"]["waited for ranks us"] > COLLECTIVE_US > 0
        assert early["args"]["Seq"] == late["args"]["Seq"]


def test_a_rank_alone_has_one_file(ranks: list[RankForecast], tmp_path: Path) -> None:
    (path,) = write_rank_traces(tmp_path, ranks[1:], H100, use_gzip=False)

    assert path.name == "node1_1.1.pt.trace.json"
    assert json.loads(path.read_text())["distributedInfo"]["rank"] == 1


def test_the_first_file_may_be_named_otherwise(ranks: list[RankForecast], tmp_path: Path) -> None:
    paths = write_rank_traces(tmp_path, ranks, H100, worker="mine_7")

    assert [path.name.partition(".")[0] for path in paths] == ["mine_7", "node1_1"]


def test_equal_forecasts_are_equal_files(ranks: list[RankForecast], tmp_path: Path) -> None:
    contents = []
    for name in ("one", "two"):
        (folder := tmp_path / name).mkdir()
        paths = write_rank_traces(folder, unequal_ranks(), H100)
        contents.append([path.read_bytes() for path in paths])

    assert contents[0] == contents[1]


def test_a_process_alone_bears_the_name_of_its_host() -> None:
    assert worker_of(Recording((), "H100", "2.13"), "mine") == "mine_0"
