"""Processes of ranks: what one sends reaches another, and the end of one may be that of all."""

from __future__ import annotations

import os
import re
import signal
from typing import Any

import pytest

from neusight.fake_cuda.distributed.peers.link import Link
from neusight.fake_cuda.distributed.peers.message_server import Inbox
from neusight.integrations.program.ranks.rank_process import RankEnd
from neusight.integrations.program.ranks.side_by_side import Ranks, run_side_by_side
from neusight.predictors.errors import HangError, UnansweredRankError


def box(source: int, target: int) -> Inbox:
    return Inbox("objects sent", "world", source, target)


def answers(ranks: Ranks) -> dict[int, Any]:
    return {
        rank: None if process.done is None else process.done.answer
        for rank, process in ranks.processes.items()
    }


def test_ranks_exchange_messages() -> None:
    def work(rank: int, link: Link) -> tuple[RankEnd, Any]:
        other = 1 - rank
        link.post({box(rank, other): b"from %d" % rank})
        return "well", link.take([box(other, rank)])

    ranks = run_side_by_side(work, ranks=[0, 1], wait_s=60)

    assert answers(ranks) == {0: {1: b"from 1"}, 1: {0: b"from 0"}}
    assert ranks.failed is None


def test_peers_run_as_well_and_then_the_others_that_did_not() -> None:
    def work(rank: int, link: Link) -> tuple[RankEnd, Any]:
        if rank < 2:
            link.require_rank(rank + 1)
        return "early", rank

    ranks = run_side_by_side(
        work, ranks=[0], last=7, others=lambda found: [7, *found.processes, 5], wait_s=60
    )

    assert list(answers(ranks).items()) == [(0, 0), (1, 1), (2, 2), (7, 7), (5, 5)]


def test_what_others_print_is_kept_until_one_fails(capfd: pytest.CaptureFixture[str]) -> None:
    def work(rank: int, link: Link) -> tuple[RankEnd, Any]:
        print("line of", rank, flush=True)
        return ("failed" if rank == 5 else "well"), None

    run_side_by_side(work, ranks=[0], last=7, others=lambda found: [3, 7, 4, 5], wait_s=60)

    assert capfd.readouterr().out == "line of 0\n[rank 5] line of 5\n"


def test_what_one_that_died_printed_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    def work(rank: int, link: Link) -> tuple[RankEnd, Any]:
        if rank == 5:
            os.write(1, b"last words\n")
            os._exit(3)
        return "well", None

    run_side_by_side(work, ranks=[0], last=7, others=lambda found: [5, 7], wait_s=60)

    assert capfd.readouterr().out == "[rank 5] last words\n"


def test_many_cores_begin_no_more_ranks_than_may_run_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(96))

    def work(rank: int, link: Link) -> tuple[RankEnd, Any]:
        return "well", rank

    ranks = run_side_by_side(work, ranks=[0], last=79, others=lambda found: range(1, 80), wait_s=60)

    assert len(answers(ranks)) == 80


def test_who_went_on_without_what_a_later_rank_never_sent_is_named() -> None:
    def box_of(source: int) -> Inbox:
        return Inbox("a barrier", "world", source)

    def work(rank: int, link: Link) -> tuple[RankEnd, Any]:
        if rank != 2:
            link.post({box_of(rank): b""})
            link.take([box_of(one) for one in range(4) if one != rank], may_be_missing=True)
        return "well", None

    ranks = run_side_by_side(work, ranks=[0], last=3, others=lambda found: range(1, 4), wait_s=60)

    assert re.fullmatch(
        r"no rank can continue: ranks 0,1,3 at test_side_by_side.py:\d+ wait for a barrier by "
        "rank 2, which has ended",
        ranks.unmet,
    )


def test_what_other_ranks_than_the_first_print_has_their_number(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def work(rank: int, link: Link) -> tuple[RankEnd, Any]:
        os.write(1, b"half a line")
        os.write(1, b", and its end\nno end")
        return "well", None

    run_side_by_side(work, ranks=[0, 3], wait_s=60)

    own, others = capfd.readouterr().out, "[rank 3] half a line, and its end\n[rank 3] no end\n"
    assert sorted(own.replace(others, "").splitlines()) == ["half a line, and its end", "no end"]


def test_the_first_that_fails_ends_the_others() -> None:
    def work(rank: int, link: Link) -> tuple[RankEnd, Any]:
        if rank == 1:
            return "failed", "no such layer"
        signal.pause()
        return "well", "never"

    ranks = run_side_by_side(work, ranks=[0, 1], wait_s=60)

    assert (ranks.failed, answers(ranks)) == (1, {0: None, 1: "no such layer"})
    assert os.waitstatus_to_exitcode(ranks.processes[0].status or 0) == -signal.SIGKILL


def test_a_process_that_ends_without_a_word_has_failed() -> None:
    def work(rank: int, link: Link) -> tuple[RankEnd, Any]:
        if rank == 1:
            os._exit(7)
        return "well", link.take([box(1, 0)])

    ranks = run_side_by_side(work, ranks=[0, 1], wait_s=60)

    assert ranks.failed == 1
    assert os.waitstatus_to_exitcode(ranks.processes[1].status or 0) == 7


def test_ranks_that_wait_for_each_other_end_with_both_lines() -> None:
    def work(rank: int, link: Link) -> tuple[RankEnd, Any]:
        return "well", link.take([box(1 - rank, rank)])

    ranks = run_side_by_side(work, ranks=[0, 1], wait_s=60)

    assert ranks.failed == 0
    done = ranks.processes[0].done
    assert done is not None
    assert isinstance(done.error, HangError)
    assert "rank 0 at test_side_by_side.py:" in str(done.error)
    assert "rank 1 at test_side_by_side.py:" in str(done.error)


def test_a_key_that_nobody_sets_is_waited_for_no_longer_than_the_limit() -> None:
    def work(rank: int, link: Link) -> tuple[RankEnd, Any]:
        if rank == 0:
            link.wait(["ready"])
        signal.pause()
        return "well", None

    ranks = run_side_by_side(work, ranks=[0, 1], wait_s=0.01)

    done = ranks.processes[0].done
    assert done is not None
    assert isinstance(done.error, UnansweredRankError)
    assert "--wait" in str(done.error)


def test_ctrl_c_ends_the_wait_of_every_rank() -> None:
    own = os.getpid()
    caught: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: caught.append(number))

    def work(rank: int, link: Link) -> tuple[RankEnd, Any]:
        try:
            if rank == 0:
                os.kill(own, signal.SIGINT)
            link.take([box(1 - rank, rank)])
        except KeyboardInterrupt:
            return "well", "interrupted"
        return "well", "never"

    try:
        ranks = run_side_by_side(work, ranks=[0, 1], wait_s=60)
        is_put_back = signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)

    assert answers(ranks) == {0: "interrupted", 1: "interrupted"}
    assert (caught, is_put_back) == ([], True)


def test_too_many_ranks_that_exchange_something_are_refused() -> None:
    def work(rank: int, link: Link) -> tuple[RankEnd, Any]:
        for peer in range(1, 100):
            link.require_rank(peer)
        return "well", None

    with pytest.raises(ValueError, match="more than 64 ranks"):
        run_side_by_side(work, ranks=[0], last=99, wait_s=60)
