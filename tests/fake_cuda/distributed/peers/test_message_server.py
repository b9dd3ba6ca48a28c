"""What ranks send each other, without processes: who gets what, and what is an error."""

from __future__ import annotations

import pytest

from neusight.fake_cuda.distributed.peers.message_server import (
    Inbox,
    Messages,
    MessageServer,
    Reply,
    StoreKeys,
)


def exchange_of(*ranks: int) -> MessageServer:
    exchange = MessageServer()
    for rank in ranks:
        exchange.begin(rank)
    return exchange


def starting_exchange(reserve: int | None = None) -> tuple[MessageServer, list[int]]:
    """One that starts who is needed, and whom it started."""
    begun: list[int] = []

    def start(rank: int) -> None:
        begun.append(rank)
        exchange.begin(rank)

    exchange = MessageServer(start, reserve)
    return exchange, begun


def box(source: int, target: int | None = None, what: str = "objects sent") -> Inbox:
    return Inbox(what, "world", source, target)


def reported(exchange: MessageServer) -> list[tuple[int, Reply]]:
    answers, exchange.answers = exchange.answers, []
    return answers


def test_messages_arrive_in_the_order_they_were_sent() -> None:
    exchange = exchange_of(0, 1)
    exchange.post([(box(0, 1), b"first"), (box(0, 1), b"second")])

    exchange.want(1, Messages((box(0, 1),)), "train.py:3")
    exchange.want(1, Messages((box(0, 1),)), "train.py:3")

    assert reported(exchange) == [
        (1, Reply("value", {0: b"first"})),
        (1, Reply("value", {0: b"second"})),
    ]


def test_who_waits_is_answered_once_the_letter_is_there() -> None:
    exchange = exchange_of(0, 1)

    exchange.want(1, Messages((box(0, 1),)), "train.py:3")
    before = reported(exchange)
    exchange.post([(box(0, 1), b"late")])

    assert (before, reported(exchange)) == ([], [(1, Reply("value", {0: b"late"}))])


def test_what_is_left_for_all_is_read_by_each_even_one_that_begins_later() -> None:
    exchange = MessageServer(start=lambda rank: None)
    exchange.begin(0)
    exchange.post([(box(0), b"seed")])
    for late in (1, 2):
        exchange.begin(late)
        exchange.want(late, Messages((box(0),)), "")

    assert [answer.value for _, answer in reported(exchange)] == [{0: b"seed"}, {0: b"seed"}]


def test_the_first_of_several_senders_is_taken() -> None:
    exchange = exchange_of(0, 1, 2)
    exchange.want(0, Messages((box(1, 0), box(2, 0)), is_any=True), "")

    exchange.post([(box(2, 0), b"two")])

    assert reported(exchange) == [(0, Reply("value", {2: b"two"}))]


def test_ranks_that_are_not_run_are_done_without_only_when_nobody_can_go_on() -> None:
    exchange = exchange_of(0, 1)
    everybody = tuple(box(rank) for rank in range(4))
    exchange.post([(box(0), b"zero")])
    exchange.want(0, Messages(everybody[1:], may_be_missing=True), "")
    early = reported(exchange)
    exchange.post([(box(1), b"one")])
    exchange.want(1, Messages((everybody[0], *everybody[2:]), may_be_missing=True), "")

    assert early == []
    assert sorted(reported(exchange)) == [
        (0, Reply("value", {1: b"one"})),
        (1, Reply("value", {0: b"zero"})),
    ]


def test_a_rank_that_is_needed_is_started() -> None:
    exchange, begun = starting_exchange()
    exchange.begin(0)

    exchange.require_rank(2)
    exchange.want(0, Messages((box(3, 0),)), "")

    assert begun == [2, 3]
    assert reported(exchange) == []


def test_before_an_error_the_rank_in_reserve_is_started() -> None:
    exchange, begun = starting_exchange(reserve=7)
    exchange.begin(0)

    exchange.want(0, StoreKeys(("ready",)), "")
    exchange.set("ready", b"yes")

    assert begun == [7]
    assert reported(exchange) == [(0, Reply("value", [b"yes"]))]


def test_ranks_that_wait_for_each_other_are_an_error_with_both_lines() -> None:
    exchange = exchange_of(0, 1)
    exchange.want(0, Messages((box(1, 0),)), "train.py:3")
    exchange.want(1, StoreKeys(("store\nready",)), "train.py:9")

    [(rank, answer)] = reported(exchange)

    assert (rank, answer.kind) == (0, "hang")
    assert answer.value == (
        "no rank can continue: rank 0 at train.py:3 waits for objects sent by rank 1; "
        'rank 1 at train.py:9 waits for the key "ready"'
    )


def test_waiting_for_a_rank_that_is_not_run_is_refused_with_what_to_say() -> None:
    exchange = exchange_of(0)

    exchange.want(0, Messages((box(3, 0),)), "train.py:3")

    [(_, answer)] = reported(exchange)
    assert answer.kind == "unanswered"
    assert "--rank all-distinct or --rank 0,3 runs them together" in answer.value


@pytest.mark.parametrize(
    ("sends", "words"),
    [
        (True, ""),
        (
            False,
            "no rank can continue: rank 0 at train.py:3 waits for objects sent by rank 1, which "
            "has ended",
        ),
    ],
)
def test_a_rank_that_comes_later_must_send_what_was_done_without(sends: bool, words: str) -> None:
    exchange = exchange_of(0)
    exchange.want(0, Messages((box(1),), may_be_missing=True), "train.py:3")
    exchange.begin(1)
    if sends:
        exchange.post([(box(1), b"one")])
    exchange.end(1, "well")

    assert exchange.unmet() == words


def test_who_waits_for_a_rank_that_has_ended_is_reported_once_nobody_can_go_on() -> None:
    exchange = exchange_of(0, 1, 2)
    exchange.want(0, Messages((box(1, 0), box(2, 0))), "")
    exchange.end(1, "well")
    assert reported(exchange) == []

    exchange.want(2, Messages((box(1, 2),)), "")

    [(_, answer)] = reported(exchange)
    assert answer.kind == "hang"
    assert answer.value.count("but rank 1 has ended") == 2
    assert "rank 0 waits" in answer.value
    assert "rank 2 waits" in answer.value


def test_several_ranks_that_have_ended_are_named_together() -> None:
    exchange = exchange_of(0, 1, 2)
    exchange.end(1, "well")
    exchange.end(2, "well")

    exchange.want(0, Messages((box(1, 0), box(2, 0))), "")

    [(_, answer)] = reported(exchange)
    assert answer.kind == "unanswered"
    assert answer.value.endswith(", but ranks 1,2 have ended")


@pytest.mark.parametrize(
    ("run", "words"),
    [((0,), "which another process would set; that process is not run"), ((0, 1), '"ready"')],
)
def test_a_key_of_a_process_that_is_not_run_is_named_so(run: tuple[int, ...], words: str) -> None:
    exchange = exchange_of(*run)
    for rank in run[1:]:
        exchange.end(rank, "well")

    exchange.want(0, StoreKeys(("ready",)), "train.py:3")

    [(_, answer)] = reported(exchange)
    assert words in answer.value
    assert ("which another process" in answer.value) is (len(run) == 1)


@pytest.mark.parametrize(
    ("run", "ended", "wanted", "reason"),
    [
        (1, (), Messages((box(3, 0),)), "objects sent by rank 3, which is not run; --rank "
         "all-distinct or --rank 0,3 runs them together"),
        (1, (), Messages((box(3, 0), box(2, 0))), "objects sent by ranks 2,3, which are not run; "
         "--rank all-distinct or --rank 0,2,3 runs them together"),
        (1, (), Messages((box(2, 0), box(3, 0)), is_any=True), "objects sent by one of ranks 2,3, "
         "which are not run; --rank all-distinct or --rank 0,2,3 runs them together"),
        (2, (1,), Messages((box(1, 0),)), "objects sent by rank 1, but rank 1 has ended"),
        (3, (1, 2), Messages((box(1, 0), box(2, 0))), "objects sent by ranks 1,2, but ranks 1,2 "
         "have ended"),
        (1, (), StoreKeys(("a\nb", "c")), 'the key "b", "c", which another process would set; '
         "that process is not run (--rank all-distinct runs it)"),
        (2, (1,), StoreKeys(("c",)), 'the key "c"'),
    ],
)  # fmt: skip
def test_why_a_rank_cannot_go_on_is_said_in_full(
    run: int, ended: tuple[int, ...], wanted: Messages | StoreKeys, reason: str
) -> None:
    for site, where in (("", "rank 0"), ("a.py:3", "rank 0 at a.py:3")):
        exchange = exchange_of(*range(run))
        for rank in ended:
            exchange.end(rank, "well")

        exchange.want(0, wanted, site)

        assert reported(exchange) == [(0, Reply("unanswered", f"{where} waits for {reason}"))]


@pytest.mark.parametrize("num_sent", [0, 1, 2])
def test_as_many_messages_must_come_later_as_were_done_without(num_sent: int) -> None:
    """Ranks 0 and 2 each go on without two messages that rank 1 leaves for all."""
    exchange = exchange_of(0, 2)
    for _ in range(2):
        for rank in (0, 2):
            exchange.want(rank, Messages((box(1),), may_be_missing=True), "a.py:3")
    exchange.begin(1)
    exchange.post([(box(1), b"late")] * num_sent)
    exchange.end(1, "well")

    missing = "ranks 0,2 at a.py:3 wait for objects sent by rank 1, which has ended"
    assert exchange.unmet() == ("" if num_sent == 2 else f"no rank can continue: {missing}")


@pytest.mark.parametrize("wanted", [Messages((box(1, 0),)), StoreKeys(("step",))])
def test_partners_of_a_rank_that_was_stopped_early_stop_too(wanted: Messages | StoreKeys) -> None:
    exchange = exchange_of(0, 1)
    exchange.end(1, "early")

    exchange.want(0, wanted, "")

    assert reported(exchange) == [(0, Reply("stop"))]


def test_an_interrupt_ends_every_wait_from_then_on() -> None:
    exchange = exchange_of(0, 1)
    exchange.want(0, Messages((box(1, 0),)), "")

    exchange.interrupt()
    exchange.want(1, StoreKeys(("ready",)), "")

    assert reported(exchange) == [(0, Reply("interrupt")), (1, Reply("interrupt"))]


def test_a_key_that_nobody_sets_is_named_with_the_limit() -> None:
    exchange = exchange_of(0, 1)
    exchange.want(0, StoreKeys(("store\nready",)), "train.py:3")

    exchange.give_up(0, 60.0)

    [(_, answer)] = reported(exchange)
    assert answer.value == (
        'rank 0 at train.py:3 waits for the key "ready", but got no reply within 60 s (--wait)'
    )


def test_keys_count_and_compare_as_torchs_do() -> None:
    exchange = exchange_of(0)

    counted = [exchange.add("n", 2), exchange.add("n", 3)]
    made = exchange.compare_set("who", b"", b"me")
    kept = exchange.compare_set("who", b"", b"you")
    exchange.append("who", b"!")

    assert counted == [2, 5]
    assert (made, kept, exchange.values(["n", "who"])) == (b"me", b"me", [b"5", b"me!"])
    assert exchange.list_keys("w") == ["who"]
    assert (exchange.delete("who"), exchange.delete("who")) == (True, False)
