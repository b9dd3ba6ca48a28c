"""Files that commands write."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import join

import neusight
from neusight.integrations.cli.files import write_chakra_traces, write_json, write_traces


def reduced(world_size: int = 4, *, rank: int = 0, sends: bool = False) -> neusight.Forecast:
    with neusight.forecast_on("H100", world_size=world_size, rank=rank) as forecast:
        join()
        for _ in range(3):
            x = torch.ones(1024, device="cuda") + 1
            dist.all_reduce(x)
            if sends:
                dist.send(x, 1)
            forecast.step()
    return forecast


def side_by_side(*ranks: neusight.Forecast) -> neusight.Forecast:
    recordings = [rank.recording for rank in ranks]
    return neusight.Forecast(recordings[0], ranks[0].options, ranks=recordings)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_equal_documents_are_written_as_equal_bytes(tmp_path: Path) -> None:
    write_json(str(tmp_path / "o.json"), {"b": [1], "a": "x"})

    text = (tmp_path / "o.json").read_text(encoding="utf-8")
    assert text == '{\n "a": "x",\n "b": [\n  1\n ]\n}\n'


def test_a_trace_of_one_rank_is_named_by_it(tmp_path: Path) -> None:
    forecast = reduced()

    assert write_traces(str(tmp_path / "runs"), [forecast]) == []

    traces = [name for name in names(tmp_path / "runs") if "trace" in name]
    assert traces == ["node0_0.1.pt.trace.json.gz"]
    assert forecast.trace_path == str(tmp_path / "runs" / traces[0])


def test_ranks_that_were_run_side_by_side_have_a_trace_each(tmp_path: Path) -> None:
    forecast = side_by_side(reduced(rank=0), reduced(rank=3))

    assert write_traces(str(tmp_path), [forecast]) == []
    assert write_chakra_traces(str(tmp_path / "et"), [forecast]) == []

    traces = [name for name in names(tmp_path) if "trace" in name]
    assert traces == ["node0_0.1.pt.trace.json.gz", "node0_3.1.pt.trace.json.gz"]
    paths = [rank.trace_path for rank in forecast.ranks]
    assert paths == [str(tmp_path / name) for name in traces]
    assert forecast.trace_path == paths[0]
    assert len(names(tmp_path / "et")) == 4 + 1


def test_every_rank_has_a_chakra_trace_in_a_folder_for_each_gpu(tmp_path: Path) -> None:
    forecast = reduced()

    assert write_chakra_traces(str(tmp_path), [forecast, forecast.on("A100")]) == []

    assert names(tmp_path) == ["A100-SXM4-80GB", "H100-SXM5-80GB"]
    for folder in tmp_path.iterdir():
        assert names(folder) == ["comm_groups.json", *(f"forecast.{rank}.et" for rank in range(4))]


def test_it_is_reported_why_ranks_have_no_chakra_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert write_chakra_traces(str(tmp_path), [reduced(sends=True)]) == []

    assert "rank 0 exchanges with rank 1, which was not run" in capsys.readouterr().err
    assert names(tmp_path) == ["comm_groups.json", "forecast.0.et"]


def test_what_cannot_be_written_is_reported_and_nothing_is_raised(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    forecast = reduced(world_size=1)

    for write in (write_traces, write_chakra_traces):
        (problem,) = write(str(tmp_path / "file"), [forecast])
        assert "Choose a folder that can be written" in problem
