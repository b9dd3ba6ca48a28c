"""With `--rank all-distinct` no rank is left out silently: here one of four does something else."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from warm_python import run_python

START = """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank % torch.cuda.device_count())
x, w = torch.ones(2**20, device="cuda"), torch.ones(1024, 1024, device="cuda")
"""
MISMATCH = "    dist.broadcast(x, 0) if rank == 2 else dist.all_reduce(x)"
SIZE = "    dist.all_reduce(x[:1000] if rank == 2 else x)"
BARRIER = "    dist.all_reduce(x)\n    if rank != 1: dist.barrier()"
STRAGGLER = "    if rank == 2: w @ w; w @ w\n    dist.all_reduce(x)"


def forecast(
    folder: Path, body: str, *words: str, count: str = "8"
) -> subprocess.CompletedProcess[str]:
    loop = f"for i in range({count}):\n    w @ w\n{body}\ntorch.cuda.synchronize()\n"
    (folder / "ranks.py").write_text(START + loop)
    return run_python(
        "-m", "neusight", "run", "--gpu", "H100", *(words or ("--world-size", "4")),
        "--rank", "all-distinct", "--json", "found.json", "ranks.py", cwd=folder,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("body", "count", "reported"),
    [
        (MISMATCH, "8", "ranks 0,1,3 call all_reduce of 1,048,576 float32 at ranks.py:9, rank 2"),
        (SIZE, "8", "at ranks.py:9, rank 2 calls all_reduce of 1,000 float32 at ranks.py:9"),
        (BARRIER, "8", "rank 3 at ranks.py:10 waits for a barrier by ranks 0..2, but rank 1 has"),
        (
            "    dist.all_reduce(x)",
            "9 if rank == 2 else 8",
            "for ranks 0,1,3; ranks 0,1,3 have ended",
        ),
    ],
    ids=["another collective", "another size", "no barrier", "another number of loops"],
)
def test_a_rank_that_does_not_do_as_the_others_is_an_error_without_a_traceback(
    body: str, count: str, reported: str, tmp_path: Path
) -> None:
    done = forecast(tmp_path, body, count=count)

    assert done.returncode == 3, done.stdout + done.stderr
    assert reported in done.stdout
    assert "Traceback" not in done.stderr


def test_a_rank_that_computes_for_longer_is_seen_and_the_others_are_accounted_for(
    tmp_path: Path,
) -> None:
    done = forecast(tmp_path, STRAGGLER)
    rows = json.loads((tmp_path / "found.json").read_text())["ranks"]

    assert done.returncode == 0, done.stdout + done.stderr
    assert "slowest: rank 2" in done.stdout
    assert "    ranks 1,3 do the same\n" in done.stdout
    assert [row["rank"] for row in rows] == [0, 2]
    assert rows[0]["waited_us"] > rows[1]["waited_us"]


def test_ranks_that_do_the_same_are_shown_once(tmp_path: Path) -> None:
    done = forecast(tmp_path, "    dist.all_reduce(x)")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "  ranks     " not in done.stdout
    assert "            ranks 1..3 do the same\n" in done.stdout
    assert json.loads((tmp_path / "found.json").read_text())["ranks_run"] == [0, 1, 2, 3]


def test_of_many_ranks_all_are_compared_with_those_that_were_run_whole(tmp_path: Path) -> None:
    done = forecast(
        tmp_path, "    dist.all_reduce(x)\n    if rank == 20: w @ w", "--world-size", "24"
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "slowest: rank 20" in done.stdout
    assert "    ranks 1..19,21..23 do the same\n" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "reported"),
    [
        (
            "    dist.all_reduce(x, group=part) if rank != 18 else dist.reduce(x, 16, group=part)",
            "ranks 16,17,19 call all_reduce of 1,048,576 float32 at ranks.py:10, rank 18 calls",
        ),
        (
            "    dist.barrier() if rank != 2 else None",
            "ranks 0,1,3..19 at ranks.py:10 wait for a barr",
        ),
    ],
    ids=["another collective", "no barrier"],
)
def test_one_of_many_ranks_that_does_not_do_as_the_others_is_an_error_that_names_all(
    body: str, reported: str, tmp_path: Path
) -> None:
    parts = "    if i == 0: part, _ = dist.new_subgroups(4)\n"
    done = forecast(tmp_path, parts + body, "--world-size", "20", "--gpus-per-node", "4")

    assert done.returncode == 3, done.stdout + done.stderr
    assert reported in done.stdout
    assert "Traceback" not in done.stderr


def test_ranks_of_a_host_that_all_use_its_first_gpu_are_refused_as_by_nccl(tmp_path: Path) -> None:
    done = forecast(tmp_path, "    dist.all_reduce(torch.ones(8, device='cuda:0'))")

    assert done.returncode == 3, done.stdout + done.stderr
    assert "ranks 0..3 of one host run collectives on cuda:0 alike" in done.stdout


def test_a_neighbour_that_uses_the_same_gpu_is_found_where_one_rank_is_run(tmp_path: Path) -> None:
    text = """
import os, torch, torch.distributed as dist
dist.init_process_group("nccl")
dist.all_reduce(torch.ones(8, device=f"cuda{DEVICE}"))
"""
    run = ("-m", "neusight", "run", "--gpu", "H100", "--world-size", "4", "--rank", "1")
    (tmp_path / "same.py").write_text(text.replace("{DEVICE}", ""))
    (tmp_path / "own.py").write_text(text.replace("{DEVICE}", ":{os.environ['LOCAL_RANK']}"))

    same, own = (run_python(*run, name, cwd=tmp_path) for name in ("same.py", "own.py"))

    assert (same.returncode, own.returncode) == (3, 0), same.stdout + own.stderr
    assert "ranks 0,1 of one host run collectives on cuda:0 alike" in same.stdout
    assert "no other rank was run: --rank all-distinct runs and compares them" in own.stdout


@pytest.mark.parametrize(
    "body",
    [
        "    __import__('os').environ['HIP_VISIBLE_DEVICES'] = str(dist.get_rank())\n"
        "    dist.all_reduce(torch.ones(8, device='cuda:0'))",
        "    part = dist.new_group(backend='gloo')\n"
        "    dist.all_reduce(torch.ones(8, device='cuda:0'), group=part)",
    ],
    ids=["each sees one GPU", "gloo"],
)
def test_ranks_may_use_the_first_gpu_that_each_sees_and_share_one_by_gloo(
    body: str, tmp_path: Path
) -> None:
    done = forecast(tmp_path, body)

    assert done.returncode == 0, done.stdout + done.stderr
