"""Turns are grouped into steps by the shortest period of their sequence, as they come."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from neusight.recording.steps.period_detection import PeriodDetector, period_at_end, repetition


def steps_of(tokens: str, *, starts_differently: bool = False) -> list[str]:
    """The steps that a sequence of turns is cut into, in the end."""
    turns = PeriodDetector(starts_differently=starts_differently)
    ends = [0]
    for end, token in enumerate(tokens, start=1):
        ends += turns.take(token, end)
    ends += turns.flush()
    return [tokens[start:end] for start, end in pairwise(ends)]


@pytest.mark.parametrize(
    ("tokens", "steps"),
    [
        ("a", ["a"]),
        ("aaaa", ["a"] * 4),
        ("DGDGDGD", ["DG", "DG", "DG", "D"]),
        ("RuuuRuuuRuuu", ["Ruuu"] * 3),
        ("RuuuRuuuRuRuuu", ["Ruuu", "Ruuu", "Ru", "Ruuu"]),  # an iteration that ended early
        ("RuuRuuuRuu", ["RuuRuuuRuu"[:3], "Ruu", "u", "Ruu"]),  # and a turn too many
        ("aaaabbbb", ["a"] * 4 + ["b"] * 4),
        ("xaaa", ["x", "a", "a", "a"]),
        ("abc", ["abc"]),
        ("DGDGD", ["DG", "DG", "D"]),
        ("cgcccccgccccc", ["cgcccc", "cgcccc", "c"]),
        ("abbaba", ["a", "b", "ba", "ba"]),
        ("abaaabab", ["abaaab", "ab"]),
        ("ababaab", ["ab", "ab", "a", "ab"]),
        ("abcbcb", ["a", "bc", "bc", "b"]),
        ("abac", ["abac"]),
        ("abcb", ["abcb"]),
    ],
)
def test_a_step_is_the_shortest_period(tokens: str, steps: list[str]) -> None:
    assert steps_of(tokens) == steps


def test_nothing_is_decided_while_a_longer_period_may_come() -> None:
    turns = PeriodDetector()

    found = [turns.take(c, end, may_decide=end >= 4) for end, c in enumerate("cccgcccgcccg", 1)]

    assert found == [[]] * 7 + [[4, 8]] + [[]] * 3 + [[12]]


def test_the_first_turn_may_be_like_no_other() -> None:
    assert steps_of("xbababab", starts_differently=True) == ["xb", "ab", "ab", "ab"]
    assert steps_of("abcbc", starts_differently=True) == ["ab", "cb", "c"]
    turns = PeriodDetector(starts_differently=True)
    assert [turns.take(c, end) for end, c in enumerate("xaaa", 1)] == [[], [], [1, 2, 3], [4]]


def test_who_waits_no_longer_takes_what_repeats_at_the_end() -> None:
    turns = PeriodDetector()
    for end, token in enumerate("xyabab", start=1):
        assert turns.take(token, end) == []

    assert turns.settle() == [1, 2, 4, 6]
    assert turns.pattern == ("a", "b")


def test_a_step_cut_short_may_stay_open() -> None:
    turns = PeriodDetector()
    for end, token in enumerate("ababa", start=1):
        turns.take(token, end)

    assert turns.flush(is_cut_short=True) == []
    assert not turns


def test_every_turn_belongs_to_one_step_whatever_comes() -> None:
    randomly = random.Random(7)
    for _ in range(500):
        tokens = "".join(randomly.choice("aab") for _ in range(randomly.randrange(1, 40)))
        for starts_differently in (True, False):
            assert "".join(steps_of(tokens, starts_differently=starts_differently)) == tokens
            assert all(steps_of(tokens, starts_differently=starts_differently))


def test_a_period_at_the_end_is_the_shortest_there_is() -> None:
    assert period_at_end("xyababab") == (2, 2)
    assert period_at_end("aaaa") == (0, 1)
    assert period_at_end("abcab") == (0, 0)
    assert period_at_end("") == (0, 0)


def test_a_loop_is_found_between_what_comes_before_and_after() -> None:
    assert repetition("setup" + "abc" * 5 + "!", least=4) == (5, 3, 20)
    assert repetition("abcabcabc", least=4) == (0, 0, 0)  # too few
    assert repetition("a long setup without end" + "xy" * 4, least=4) == (0, 0, 0)  # too little
    assert repetition("", least=4) == (0, 0, 0)


def test_a_long_sequence_takes_time_in_proportion() -> None:
    turns = PeriodDetector()
    ends = 0
    for end in range(200_000):
        ends += len(turns.take(end % 1000, end))

    assert ends == 200
    assert repetition([at % 1000 for at in range(200_000)], least=4) == (0, 1000, 200_000)
