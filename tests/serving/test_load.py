"""Loads: lengths, arrivals, sessions and files of requests."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from statistics import mean, pstdev

import pytest

from neusight.predictors.errors import OptionError
from neusight.serving.load import (
    InferenceRequest,
    Lengths,
    Load,
    RequestClass,
    parse_lengths,
    read_requests,
)

FIXED = RequestClass(Lengths("fixed", 100), Lengths("fixed", 10))


def test_equal_loads_give_equal_requests_and_another_seed_others() -> None:
    load = Load((FIXED,), 50, rate=4.0, seed=3)

    assert load.requests(most_tokens=1000) == load.requests(most_tokens=1000)
    other = Load((FIXED,), 50, rate=4.0, seed=4)
    assert load.requests(most_tokens=1000) != other.requests(most_tokens=1000)


@pytest.mark.parametrize("arrivals", ["poisson", "gamma", "uniform"])
def test_requests_arrive_at_the_stated_rate(arrivals: str) -> None:
    load = Load((FIXED,), 4000, arrivals=arrivals, rate=5.0)  # type: ignore[arg-type]

    last_s = load.requests(most_tokens=1000)[-1].arrival_s

    assert 4000 / last_s == pytest.approx(5.0, rel=0.06)


def test_burstiness_is_the_coefficient_of_variation_between_arrivals() -> None:
    load = Load((FIXED,), 5000, arrivals="gamma", rate=1.0, burstiness=2.0)
    times = [one.arrival_s for one in load.requests(most_tokens=1000)]
    gaps = [later - one for one, later in pairwise(times)]

    assert pstdev(gaps) / mean(gaps) == pytest.approx(2.0, rel=0.1)


def test_a_later_turn_repeats_the_session_and_finds_its_share_of_it_cached() -> None:
    load = Load((FIXED,), 2, turns=2, hit_rate=0.5, think_s=3.0)

    [first] = load.requests(most_tokens=1000)

    assert (first.input_tokens, first.cached_tokens) == (100, 50)
    assert first.next_turn is not None
    assert first.next_turn.input_tokens == 100 + 10 + 100
    assert first.next_turn.cached_tokens == 55


def test_users_of_a_closed_loop_share_the_requests() -> None:
    load = Load((FIXED,), 7, arrivals="closed", users=3)

    firsts = load.requests(most_tokens=1000)

    turns: list[int] = []
    for request in firsts:
        count = 0
        turn: InferenceRequest | None = request
        while turn is not None:
            count, turn = count + 1, turn.next_turn
        turns.append(count)
    assert turns == [3, 2, 2]


def test_classes_have_their_share_and_priority() -> None:
    urgent = RequestClass(Lengths("fixed", 10), Lengths("fixed", 5), share=3.0, priority=-1)
    load = Load((FIXED, urgent), 4000)

    found = load.requests(most_tokens=1000)

    assert sum(one.priority == -1 for one in found) / 4000 == pytest.approx(0.75, abs=0.03)


def test_stated_lengths_beyond_the_limit_are_refused() -> None:
    with pytest.raises(OptionError, match="can never be served"):
        Load((FIXED,), 5).requests(most_tokens=109)


def test_lognormal_lengths_are_cut_at_the_limit() -> None:
    wide = RequestClass(Lengths("lognormal", 500, 1.5), Lengths("fixed", 10))

    found = Load((wide,), 500).requests(most_tokens=600)

    assert max(one.input_tokens + one.output_tokens for one in found) <= 600


@pytest.mark.parametrize("text", ["0", "-1", "x", "uniform:9-2", "lognormal:1", "normal:1,2", ""])
def test_lengths_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="--input"):
        parse_lengths(text, option="--input")


def written(folder: Path, text: str) -> Path:
    path = folder / "load.csv"
    path.write_text(text)
    return path


def test_a_file_gives_its_requests_in_order_of_arrival(tmp_path: Path) -> None:
    path = written(tmp_path, "arrival_s,input_tokens,output_tokens,class\n2,5,6,b\n1,7,8,a\n")

    found = read_requests(path)

    assert [(one.arrival_s, one.input_tokens, one.name) for one in found] == [
        (1.0, 7, "a"),
        (2.0, 5, "b"),
    ]


def test_a_file_of_a_spreadsheet_is_read_and_one_in_another_encoding_refused(
    tmp_path: Path,
) -> None:
    path = written(tmp_path, "\ufeffarrival_s,input_tokens,output_tokens\n0,5,6\n")
    other = tmp_path / "other.csv"
    other.write_bytes(b"arrival_s,input_tokens,output_tokens,class\n0,1,1,\xff\n")

    assert len(read_requests(path)) == 1
    with pytest.raises(OptionError, match="is not a CSV in UTF-8"):
        read_requests(other)


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("arrival_s,input_tokens\n0,1\n", "no column output_tokens"),
        ("arrival_s,input_tokens,output_tokens\n", "no requests"),
        ("arrival_s,input_tokens,output_tokens\n-1,1,1\n", "line 2: arrival_s is -1"),
        ("arrival_s,input_tokens,output_tokens\n0,1,1\n0,x,1\n", "line 3: input_tokens is 'x'"),
        ("arrival_s,input_tokens,output_tokens\n0,0,1\n", "line 2: input_tokens is 0"),
        ("arrival_s,input_tokens,output_tokens\n0,1,1.5\n", "line 2: output_tokens is 1.5"),
        ("arrival_s,input_tokens,output_tokens\nnan,1,1\n", "line 2: arrival_s is nan"),
        ("arrival_s,input_tokens,output_tokens,cached_tokens\n0,5,1,5\n", "cached_tokens is 5"),
        ("arrival_s,input_tokens,output_tokens\n\n0,5\n", "line 3: output_tokens is ''"),
        ("arrival_s,input_tokens,output_tokens\n0,5,1,7\n", "line 2: more values than columns"),
        ("arrival_s,input_tokens,output_tokens,priority\n0,5,1,inf\n", "priority is inf"),
    ],
)
def test_a_damaged_file_is_refused_with_its_line(tmp_path: Path, text: str, stated: str) -> None:
    with pytest.raises(OptionError, match=stated):
        read_requests(written(tmp_path, text))
