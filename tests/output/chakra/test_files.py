"""Chakra's files of several ranks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from chakra_reader import attributes, kind, read_chakra
from chakra_simulator import Simulation
from ranks import Block, join
from unequal_ranks import COLLECTIVE_US, NUM_BYTES, NUM_COLLECTIVES, unequal_ranks

import neusight
from neusight.output.chakra.files import GROUPS_FILE, write_chakra
from neusight.output.chakra.tasks import Task, tasks_of
from neusight.predictors.errors import TraceError
from neusight.recording.recording import Recording
from neusight.timeline.spans import Timeline
from neusight.timeline.steady import steady_step_of

Rank = tuple[Recording, Timeline]


@pytest.fixture(scope="module")
def unequal() -> list[Rank]:
    return [(rank.recording, rank.timeline) for rank in unequal_ranks()]


def steady_tasks(timeline: Timeline) -> list[Task]:
    step = steady_step_of(timeline)
    assert step is not None
    return tasks_of(timeline, step)


def collectives(nodes: list[Any]) -> list[dict[str, Any]]:
    return [attributes(node) for node in nodes if kind(node) == "COMM_COLL_NODE"]


def test_each_rank_has_a_file_and_all_of_its_work(unequal: list[Rank], tmp_path: Path) -> None:
    written = write_chakra(tmp_path, unequal, gpu="H100")

    assert [path.name for path in written.paths] == ["forecast.0.et", "forecast.1.et"]
    assert written.missing == ""
    for path, (_, timeline) in zip(written.paths, unequal, strict=True):
        metadata, nodes = read_chakra(path)
        assert metadata.version == "0.0.4"
        assert "forecast for H100" in attributes(metadata)["producer"]
        assert [node.id for node in nodes] == list(range(len(nodes)))
        assert len(nodes) == len(steady_tasks(timeline))
        assert collectives(nodes) == NUM_COLLECTIVES * [
            {"is_cpu_op": False, "comm_type": 0, "comm_size": NUM_BYTES, "pg_name": "0"}
        ]
        durations = [n.duration_micros for n in nodes if kind(n) == "COMM_COLL_NODE"]
        assert durations == NUM_COLLECTIVES * [COLLECTIVE_US]


def test_whole_microseconds_lose_no_time(unequal: list[Rank], tmp_path: Path) -> None:
    (path, _) = write_chakra(tmp_path, unequal, gpu="H100").paths
    _, nodes = read_chakra(path)
    tasks = steady_tasks(unequal[0][1])

    for lane in {task.lane for task in tasks}:
        own = [place for place, task in enumerate(tasks) if task.lane == lane]
        whole_ns = sum(tasks[place].duration_ns for place in own)
        assert sum(nodes[place].duration_micros for place in own) == whole_ns // 1000


def test_dependencies_are_those_of_the_tasks(unequal: list[Rank], tmp_path: Path) -> None:
    (path, _) = write_chakra(tmp_path, unequal, gpu="H100").paths
    _, nodes = read_chakra(path)

    for node, task in zip(nodes, steady_tasks(unequal[0][1]), strict=True):
        assert tuple(node.data_deps) == task.after
        assert tuple(node.ctrl_deps) == ((task.launch,) if task.launch >= 0 else ())
        assert attributes(node)["is_cpu_op"] == (task.kind == "host")


def one_of_eight() -> neusight.Forecast:
    """Tensor parallel of two on each of four: its own group, its data-parallel one, and all."""
    with neusight.forecast_on("H100", world_size=8, gpus_per_node=2) as forecast:
        join()
        pairs = [dist.new_group([first, first + 1]) for first in range(0, 8, 2)]
        across = [dist.new_group(list(range(first, 8, 2))) for first in range(2)]
        block, x = Block().cuda(), torch.ones(4, 16, 64, device="cuda")
        for _ in range(2):
            y = block(x)
            dist.all_reduce(y, group=pairs[0])
            dist.all_reduce(y, group=across[0])
            dist.all_reduce(y)
            shares = torch.empty(8 * 4, 16, 64, device="cuda")
            dist.all_gather_single(shares, y)
            forecast.step()
    return forecast


def test_ranks_that_were_not_run_meet_those_of_their_own_groups(tmp_path: Path) -> None:
    forecast = one_of_eight()

    written = write_chakra(tmp_path, [(forecast.recording, forecast.timeline)], gpu="H100")

    assert len(written.paths) == 8
    groups = json.loads((tmp_path / GROUPS_FILE).read_text())
    assert sorted(groups.values()) == sorted(
        [[0, 1], [2, 3], [4, 5], [6, 7], [0, 2, 4, 6], [1, 3, 5, 7]]
    )
    for rank, path in enumerate(written.paths):
        pair, across, everyone, gathered = collectives(read_chakra(path)[1])
        assert groups[pair["pg_name"]] == [rank // 2 * 2, rank // 2 * 2 + 1]
        assert groups[across["pg_name"]] == list(range(rank % 2, 8, 2))
        assert (everyone["pg_name"], everyone["comm_type"]) == ("0", 0)
        # What a rank puts in.
        assert (gathered["comm_type"], gathered["comm_size"]) == (2, 4 * 16 * 64 * 4)


def test_equal_ranks_lie_on_the_disk_once(tmp_path: Path) -> None:
    with neusight.forecast_on("H100", world_size=4) as forecast:
        join()
        for _ in range(2):
            dist.all_reduce(torch.ones(64, device="cuda"))
            forecast.step()

    for _ in range(2):  # also where files are there already
        paths = write_chakra(tmp_path, [(forecast.recording, forecast.timeline)], gpu="H100").paths

    assert len({path.stat().st_ino for path in paths}) == 1
    assert len(paths) == 4
    assert len(collectives(read_chakra(paths[3])[1])) == 1


def two_stages(rank: int) -> Rank:
    """A pipeline's stage on its own: it sends to the other one and receives from it at once."""
    with neusight.forecast_on("H100", world_size=2, rank=rank) as forecast:
        join()
        x = torch.ones(64, device="cuda")
        for _ in range(2):
            peer = 1 - rank
            batch = [dist.P2POp(dist.irecv, x, peer), dist.P2POp(dist.isend, x, peer)]
            for work in dist.batch_isend_irecv(batch):
                work.wait()
            x = x + 1
            forecast.step()
    return forecast.recording, forecast.timeline


def test_a_batch_is_a_node_for_each_transfer_and_what_follows_waits_for_all(
    tmp_path: Path,
) -> None:
    paths = write_chakra(tmp_path, [two_stages(0), two_stages(1)], gpu="H100").paths

    for rank, path in enumerate(paths):
        _, nodes = read_chakra(path)
        sent, received = [node for node in nodes if kind(node).startswith("COMM")]
        assert (kind(sent), kind(received)) == ("COMM_SEND_NODE", "COMM_RECV_NODE")
        reported = attributes(sent)
        assert (reported["comm_src"], reported["comm_dst"], reported["comm_size"]) == (
            rank,
            1 - rank,
            256,
        )
        assert attributes(received)["comm_src"] == 1 - rank
        assert list(sent.data_deps) == list(received.data_deps)
        (added,) = [
            node for node in nodes if kind(node) == "COMP_NODE" and "num_ops" in attributes(node)
        ]
        assert {sent.id, received.id} <= set(added.data_deps)


def test_a_simulator_comes_to_the_end_when_the_forecast_does(
    unequal: list[Rank], tmp_path: Path
) -> None:
    paths = write_chakra(tmp_path, unequal, gpu="H100").paths

    simulated = Simulation(paths, {})

    assert simulated.left == [0, 0]
    for end_us, (_, timeline) in zip(simulated.end_us, unequal, strict=True):
        step = steady_step_of(timeline)
        assert step is not None
        assert end_us == pytest.approx((step.done_ns - step.start_ns) / 1000, abs=20)


def test_neighbours_that_send_to_each_other_at_once_do_not_wait_for_ever(tmp_path: Path) -> None:
    paths = write_chakra(tmp_path, [two_stages(0), two_stages(1)], gpu="H100").paths

    assert Simulation(paths, {}).left == [0, 0]


def test_ranks_that_were_not_run_find_those_they_meet(tmp_path: Path) -> None:
    forecast = one_of_eight()
    paths = write_chakra(tmp_path, [(forecast.recording, forecast.timeline)], gpu="H100").paths

    simulated = Simulation(paths, json.loads((tmp_path / GROUPS_FILE).read_text()))

    assert simulated.left == [0] * 8
    assert len(set(simulated.end_us)) == 1


def test_a_stage_alone_is_written_and_why_the_others_are_not_is_stated(tmp_path: Path) -> None:
    written = write_chakra(tmp_path, [two_stages(0)], gpu="H100")

    assert [path.name for path in written.paths] == ["forecast.0.et"]
    assert "rank 0 exchanges with rank 1, which was not run" in written.missing


def test_equal_forecasts_are_equal_files(tmp_path: Path) -> None:
    contents = []
    for name in ("one", "two"):
        ranks = [(rank.recording, rank.timeline) for rank in unequal_ranks()]
        paths = write_chakra(tmp_path / name, ranks, gpu="H100").paths
        contents.append([path.read_bytes() for path in paths])

    assert contents[0] == contents[1]


def test_files_that_cannot_be_linked_are_written_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(source: Path, target: Path) -> None:
        raise PermissionError

    monkeypatch.setattr("os.link", refuses)
    with neusight.forecast_on("H100", world_size=2) as forecast:
        join()
        dist.all_reduce(torch.ones(64, device="cuda"))

    first, second = write_chakra(
        tmp_path, [(forecast.recording, forecast.timeline)], gpu="H100"
    ).paths

    assert first.read_bytes() == second.read_bytes()
    assert first.stat().st_ino != second.stat().st_ino


def test_ranks_with_unequal_numbers_of_steps_have_the_steady_one_of_each(
    unequal: list[Rank], tmp_path: Path
) -> None:
    (recording, timeline), other = unequal
    shorter = replace(timeline, steps=timeline.steps[:-1])

    written = write_chakra(tmp_path, [(recording, shorter), other], gpu="H100")

    counts = [len(read_chakra(path)[1]) for path in written.paths]
    assert counts == [len(steady_tasks(shorter)), len(steady_tasks(other[1]))]


def test_a_folder_that_cannot_be_written_is_a_trace_error(
    unequal: list[Rank], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(TraceError, match="Cannot write Chakra traces"):
        write_chakra(tmp_path / "file", unequal, gpu="H100")


def test_a_program_without_steps_has_no_traces(tmp_path: Path) -> None:
    empty = Timeline((), (), (), 0)

    with pytest.raises(TraceError, match="no steps"):
        write_chakra(tmp_path, [(Recording((), "H100", "2.13"), empty)], gpu="H100")
