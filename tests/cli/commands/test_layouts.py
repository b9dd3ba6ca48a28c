"""`neusight plan --model`: what its options mean, and which mean nothing."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from model_of_blocks import MODEL
from neusight.fake_cuda.distributed.rank import Rank
from neusight.integrations.cli.commands import layouts
from neusight.integrations.cli.commands.layouts import (
    _request,
    _run_whole,
    _whole_training,
    _world_sizes,
    token_count,
)
from neusight.integrations.cli.main import _parser, main
from neusight.integrations.cli.planning.candidates import Candidate
from neusight.integrations.cli.planning.points import PlanRequest
from neusight.integrations.layouts import report, search
from neusight.integrations.layouts.whole_training import WholeTraining
from neusight.predictors.clusters.named import find_topology
from neusight.predictors.clusters.topology import Level
from neusight.predictors.errors import OptionError

WORDS = ("plan", "--gpu", "H100", "--quiet", "--sequence", "128")
NO_DATA = ("--loader-tokens", "0")
FAST = ("--network-gbps", "fast")


def parsed(*words: str) -> argparse.Namespace:
    return _parser().parse_args(["plan", "--gpu", "H100", *words])


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1048576", 2**20), ("8k", 8 * 2**10), (" 4M ", 4 * 2**20), ("2g", 2 * 2**30), ("1.5k", 1536)],
)
def test_tokens_are_counted_in_powers_of_two(text: str, expected: int) -> None:
    assert token_count(text) == expected


@pytest.mark.parametrize("text", ["0", "-4k", "1.5", "4T", ""])
def test_what_is_no_number_of_tokens_is_reported(text: str) -> None:
    with pytest.raises(OptionError, match=r"--tokens is .*; it must be a number above 0"):
        token_count(text)


def test_a_whole_training_is_counted_in_powers_of_ten() -> None:
    found = {
        text: _whole_training(parsed("--train-tokens", text, "--mtbf", "9"))
        for text in ("15T", "300b", "7M", "8")
    }

    assert found == {
        "15T": WholeTraining(15e12, 9.0), "300b": WholeTraining(300e9, 9.0),
        "7M": WholeTraining(7e6, 9.0), "8": WholeTraining(8.0, 9.0),
    }  # fmt: skip
    assert _whole_training(parsed()) is None
    assert _whole_training(parsed("--train-tokens", "8", "--mtbf", "0.5")) == WholeTraining(
        8.0, 0.5
    )


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--train-tokens", "15k"), "--train-tokens is '15k'"),
        (("--train-tokens", "0T"), "--train-tokens is '0T'"),
        (("--train-tokens", "1T", "--mtbf", "0"), "--mtbf is 0; it must be hours between 0 and"),
        (("--train-tokens", "1T", "--mtbf", "1e10"), "it must be hours between 0 and 1e.10"),
    ],
)
def test_a_training_that_means_nothing_is_reported(words: tuple[str, ...], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        _whole_training(parsed(*words))


def test_several_numbers_of_ranks_are_each_tried_once() -> None:
    assert _world_sizes("8, 1,8") == [8, 1]
    for text in ("8,", "0", "-8", "few"):
        with pytest.raises(OptionError, match="--world-size is"):
            _world_sizes(text)


@pytest.mark.parametrize(
    ("pipeline", "world_size", "row", "ranks", "expected"),
    [
        (4, 16, SimpleNamespace(latency_us=7.0), (0, 4, 8, 12), 7.0),
        (2, 16, SimpleNamespace(latency_us=7.0), (0, 8), 7.0),
        (1, 4, None, None, "failed: no"),
    ],
)
def test_of_a_pipeline_a_rank_of_each_stage_is_run_whole(
    pipeline: int, world_size: int, row: object, ranks: object, expected: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    asked: list[object] = []

    def evaluated(plan: PlanRequest, candidate: Candidate) -> list[object]:
        text = Path(candidate.program.target).read_text()
        asked.extend([plan.ranks, plan.options.steps, plan.options.predictor, candidate.rank, text])
        return [SimpleNamespace(row=row, problem="failed: no")]

    monkeypatch.setattr(layouts, "evaluated", evaluated)
    monkeypatch.setattr(report, "script_text", lambda *_, gpus_per_node: f"# {gpus_per_node}")
    layout = SimpleNamespace(world_size=world_size, pipeline=pipeline)
    request: Any = SimpleNamespace(source="model.py:build", work=None, gpus_per_node=8)
    price: Any = SimpleNamespace(layout=layout, gpu="H100")

    assert _run_whole(parsed("--clock", "burst"), request, price) == expected

    rank = Rank(0, world_size, min(8, world_size))
    assert asked == [ranks, 1, "tiled_burst", rank, "# 8"]


@pytest.mark.parametrize(
    ("prices", "least_needed_bytes", "code"), [(["best"], 0, 0), ([], 9, 1), ([], 0, 3)]
)
def test_what_was_found_is_shown_and_written(
    prices: list[str], least_needed_bytes: int, code: int,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    found = SimpleNamespace(prices=prices, least_needed_bytes=least_needed_bytes)

    def reported(found: Any, *others: Any) -> Any:
        text, document = (lambda: "the table"), (lambda: {"found": len(found.prices)})
        return SimpleNamespace(found=found, script=others[-2], text=text, to_json=document)

    monkeypatch.setattr(search, "find_layouts", lambda *_, **__: found)
    monkeypatch.setattr(report, "LayoutReport", reported)
    monkeypatch.setattr(report, "script_text", lambda *_, gpus_per_node: f"# {gpus_per_node}")
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)

    words = ("--model", "model.py:build", "--world-size", "8", "--tokens", "4k")
    assert main([*WORDS, *words, "--script", "train.py", "--json", "o.json"]) == code

    assert capsys.readouterr().out == "the table\n"
    assert json.loads(Path("o.json").read_text()) == {"found": len(prices)}
    assert [path.read_text() for path in tmp_path.glob("train.py")] == ["# 8"] * len(prices)


def test_layouts_are_priced_on_the_network_that_is_stated(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)

    def network_of(*words: str) -> Level | None:
        model = f"{tmp_path}/model.py:build"
        options = parsed("--model", model, "--world-size", "16", "--tokens", "4k", *words)
        [gpu] = _request(options, 4096, ["H100"]).gpus
        return gpu.topology.network if gpu.topology else None

    assert network_of() is None
    assert network_of("--topology", "p4d") == find_topology("p4d").network
    stated = network_of("--network-gbps", "12.5x4")
    assert stated is not None
    assert (stated.gbps, stated.nics_per_node) == (12.5, 4)


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (("--model", "model.py:build"), "wants to know --world-size and the --tokens"),
        (("--model", "none.json", "--world-size", "8", "--tokens", "4k"), "the file must be there"),
        (("--model", "model.py:build", "--world-size", "3", "--tokens", "4k"), "cannot share"),
        (("--model", "model.py:build", "--world-size", "8", "--tokens", "few"), "--tokens is"),
        (
            ("--model", "model.py:build", "--world-size", "8", "--tokens", "4k", *NO_DATA),
            "--loader-tokens is 0",
        ),
        (
            ("--model", "m.py:build", "--world-size", "8", "--tokens", "4k", "--storage-gbps", "0"),
            "--storage-gbps is 0; it must be above 0",
        ),
        (
            ("--model", "model.py:build", "--world-size", "8", "--tokens", "4k", "--mtbf", "9"),
            "--mtbf is for a whole training",
        ),
        (("--model", "model.py:none", "--world-size", "8", "--tokens", "4k"), "makes no model"),
        (
            ("--model", "model.py:build", "--world-size", "8", "--tokens", "4k", "--sweep", "a=1"),
            "--sweep, --rank and --ray are for a script",
        ),
        (
            ("--model", "model.py:build", "--world-size", "8", "--tokens", "4k", *FAST),
            "--network-gbps is 'fast'",
        ),
    ],
)
def test_what_cannot_be_laid_out_is_wrong_use(
    words: tuple[str, ...],
    reported: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)

    code = main([*WORDS, *words])

    stderr = capsys.readouterr().err
    assert code == 2, stderr
    assert reported in stderr
    assert "Traceback" not in stderr
