"""Calls of ranks paired off: who waits for whom, and how long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from neusight.integrations.frameworks.tensorboard_ranks import (
    Calls,
    Meeting,
    calls_of,
    set_steps,
    set_transfer_times,
    steps_of,
)

Event = dict[str, Any]


def annotation(number: int, ts: float, name: str = "nccl:all_reduce", dur: float = 10) -> Event:
    return {
        "ph": "X", "cat": "user_annotation", "name": name, "pid": 1, "tid": 1, "ts": ts,
        "dur": dur, "args": {"External id": number},
    }  # fmt: skip


def kernel(number: int, **args: Any) -> Event:
    return {
        "ph": "X", "cat": "kernel", "name": "ncclDevKernel_x", "pid": 0, "tid": 7, "ts": 0,
        "dur": 1, "args": {"External id": number, **args},
    }  # fmt: skip


def collective_call(ts: float, **args: Any) -> Event:
    return {
        "ph": "X", "cat": "cpu_op", "name": "record_param_comms", "pid": 1, "tid": 1, "ts": ts,
        "dur": 1, "args": args,
    }  # fmt: skip


GROUP = {"Process Group Name": "3", "Process Group Ranks": "[0, 1]"}


def test_a_collective_meets_in_its_group() -> None:
    events = [annotation(5, 0), collective_call(1, **GROUP), kernel(5, **GROUP)]

    assert calls_of(events) == {5: [("3", "[0, 1]")]}


def test_a_transfer_meets_in_its_two_ends() -> None:
    ends = {**GROUP, "Src Rank": 1, "Dst Rank": 0}
    events = [annotation(5, 0, "nccl:recv"), collective_call(1, **ends), kernel(5, **ends)]

    assert calls_of(events) == {5: [("3", "1", "0")]}


def test_a_batch_meets_in_each_of_its_transfers() -> None:
    events = [
        annotation(4, 0, "nccl:all_reduce"),
        annotation(5, 20, "nccl:coalesced"),
        collective_call(21, **GROUP, **{"Src Rank": 0, "Dst Rank": 1}),
        collective_call(23, **GROUP, **{"Src Rank": 2, "Dst Rank": 0}),
        kernel(5, **GROUP),
    ]

    assert calls_of(events) == {5: [("3", "0", "1"), ("3", "2", "0")]}


def test_a_profile_that_notes_no_groups_says_nothing() -> None:
    assert calls_of([annotation(5, 0), kernel(5)]) == {}


def call(number: int, *ranges: tuple[float, float]) -> Any:
    """A communication node, with the ranges of the call itself and of its kernel."""
    return SimpleNamespace(external_id=number, kernel_ranges=list(ranges), real_time_ranges=[])


def transfers(nodes: list[Any]) -> list[list[tuple[float, float]]]:
    return [node.real_time_ranges for node in nodes]


def test_transfer_is_the_end_of_what_the_one_who_came_early_spent() -> None:
    early, late = [call(1, (0, 2), (10, 100))], [call(1, (60, 61), (70, 100))]
    calls: Calls = {1: [("0", "[0, 1]")]}

    set_transfer_times([(early, calls), (late, calls)])

    assert transfers(early) == [[(1, 2), (70, 100)]]
    assert transfers(late) == [[(60, 61), (70, 100)]]


def test_calls_of_other_groups_in_between_do_not_mix_them_up() -> None:
    one = [call(1, (0, 50)), call(2, (60, 100))]
    other = [call(1, (80, 100))]
    pair: list[Meeting] = [("0", "[0, 1]")]
    alone: list[Meeting] = [("5", "[0, 2]")]

    set_transfer_times([(one, {1: alone, 2: pair}), (other, {1: pair})])

    assert transfers(one) == [[(0, 50)], [(80, 100)]]
    assert transfers(other) == [[(80, 100)]]


def test_a_batch_transfers_no_longer_than_the_shortest_of_those_it_meets() -> None:
    batch, sender, receiver = [call(1, (0, 90))], [call(1, (20, 90))], [call(1, (50, 90))]
    ends: list[Meeting] = [("0", "1", "0"), ("0", "0", "2")]

    set_transfer_times([(batch, {1: ends}), (sender, {1: ends[:1]}), (receiver, {1: ends[1:]})])

    assert transfers(batch) == [[(50, 90)]]
    assert transfers(sender) == [[(20, 90)]]


def test_a_partner_of_fewer_kernels_says_nothing_of_the_others() -> None:
    """Counted from the end, where NCCL's kernel is."""
    both, one = [call(1, (0, 30), (40, 90))], [call(1, (60, 90))]
    pair: list[Meeting] = [("0", "[0, 1]")]

    set_transfer_times([(both, {1: pair}), (one, {1: pair})])

    assert transfers(both) == [[(0, 30), (60, 90)]]
    assert transfers(one) == [[(60, 90)]]


def test_without_groups_calls_are_paired_in_their_order() -> None:
    one, other = [call(1, (0, 10)), call(2, (20, 60))], [call(7, (5, 10)), call(8, (40, 60))]

    set_transfer_times([(one, {}), (other, {})])

    assert transfers(one) == [[(5, 10)], [(40, 60)]]


def test_a_rank_alone_waits_for_nobody() -> None:
    nodes = [call(1, (0, 10))]

    set_transfer_times([(nodes, {1: [("0", "[0, 1]")]})])

    assert transfers(nodes) == [[(0, 10)]]


def test_a_call_is_of_the_step_in_which_the_host_makes_it() -> None:
    events = [annotation(2, 100, "ProfilerStep#8", 90), annotation(1, 0, "ProfilerStep#7", 90)]
    nodes = [SimpleNamespace(start_time=time, step_name="7") for time in (10, 95, 150)]
    early = SimpleNamespace(start_time=-5, step_name=None)

    steps = steps_of(events)
    set_steps([*nodes, early], steps, ["7", "8"])

    assert steps == [(0, 90, "7"), (100, 190, "8")]
    assert [node.step_name for node in (*nodes, early)] == ["7", "7", "8", None]


def test_a_step_that_is_not_shown_has_no_calls() -> None:
    node = SimpleNamespace(start_time=150, step_name="7")

    set_steps([node], [(0, 90, "7"), (100, 190, "8")], ["7"])

    assert node.step_name == "7"
