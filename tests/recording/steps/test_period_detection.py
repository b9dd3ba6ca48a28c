"""Turns are grouped into steps by the shortest period of their sequence, as they come."""

from __future__ import annotations

import random
from itertools import pairwise, product

import pytest
import torch

from neusight.recording.steps.period_detection import (
    Lookahead,
    PeriodDetector,
    StepEndNames,
    period_at_end,
    repetition,
)
from places import require_golden


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


#: Longer than all of two letters: loops with something before, within or behind them.
LONGER = (
    "abcabcab", "xabababa", "abcabdabc", "aabaabaaab", "xyzxyzxz", "abcdabcdabxd", "xxabcabcabc",
    "aabbaabbab", "abababcabab", "xabcbcbcd", "aaabaaabaaba", "abccabccabc", "xyxyxyzxyxyxyz",
    "abcdbcdbcd", "abacabacabad", "xabaabaaba",
)  # fmt: skip


def test_sequences_are_cut_as_the_golden_table_has_them() -> None:
    """All of two letters up to six turns, and longer ones: cut as they come (`|`), then where no
    more may come (`:`); with a first turn like no other; and where the end decides.
    NEUSIGHT_UPDATE_GOLDEN=1 rewrites it."""
    short = ("a" + "".join(rest) for size in range(6) for rest in product("ab", repeat=size))

    lines = [
        f"{tokens} {_cut(tokens)} {_cut(tokens, differs=True)} {_cut(tokens, settles=True)}"
        for tokens in (*short, *LONGER)
    ]

    require_golden("step_periods.txt", lines)


def _cut(tokens: str, *, differs: bool = False, settles: bool = False) -> str:
    turns = PeriodDetector(starts_differently=differs)
    marks = {}
    for end, token in enumerate(tokens, start=1):
        marks.update(dict.fromkeys(turns.take(token, end), "|"))
    if settles:
        marks.update(dict.fromkeys(turns.settle(), "!"))
    marks.update(dict.fromkeys(turns.flush(), ":"))
    return "".join(token + marks.get(end, "") for end, token in enumerate(tokens, start=1))


@pytest.mark.parametrize("times", [2, 3])
@pytest.mark.parametrize("length", [0, 5])
def test_the_period_at_the_end_is_the_shortest_that_is_made_so_often(
    times: int, length: int
) -> None:
    """By trying: with the least period, all that repeats with it up to the end."""
    for size in range(9):
        for letters in product("ab", repeat=size):
            tokens, expected = "".join(letters), (0, 0)
            for period in range(size // times, 0, -1):
                first = size - period
                while first and tokens[first - 1] == tokens[first - 1 + period]:
                    first -= 1
                if size - first >= max(times * period, length):
                    expected = first, period

            assert period_at_end(tokens, times=times, length=length) == expected, tokens


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ("abcabcabcabc" + "12345678", (0, 3, 12)),
        ("xx" + "ab" * 4 + "yyyyyy", (2, 2, 10)),  # half of all
        ("xx" + "ab" * 4 + "yyyyyyy", (0, 0, 0)),
        ("ab" * 4 + "a", (0, 2, 8)),
        ("ababab", (0, 0, 0)),  # three times
    ],
)
def test_a_loop_repeats_four_times_over_half_of_all(
    tokens: str, expected: tuple[int, int, int]
) -> None:
    assert repetition(tokens, least=4) == expected


def test_a_lookahead_lasts_four_times_the_first_turn_and_longer_after_a_rollout() -> None:
    """Of at least a hundred ops, two thousand where iterations begin with a rollout."""

    def first_over(begun: int, first: int, *, is_longer: bool = False) -> int:
        lookahead = Lookahead(least_ops=100)
        lookahead.begin(begun)
        assert not lookahead.is_over(1, first, is_longer=is_longer)
        return next(
            at for at in range(first, 9000) if lookahead.is_over(2, at, is_longer=is_longer)
        )

    assert first_over(0, 10) == 110
    assert first_over(0, 300) == 1500
    assert first_over(200, 300) == 700
    assert first_over(0, 10, is_longer=True) == 2010
    assert first_over(0, 600, is_longer=True) == 3000


def test_a_lookahead_begins_again_once_it_is_over() -> None:
    lookahead = Lookahead()

    assert [
        lookahead.is_over(turn, num_ops)
        for turn, num_ops in enumerate((10, 50_009, 50_010, 100_009, 100_010), start=1)
    ] == [False, False, True, False, True]


def test_turns_are_named_one_by_one_up_to_four() -> None:
    names = StepEndNames()
    a, b, c = (names.of_method(name) for name in "abc")
    graph = names.of_graph(7)

    assert (names.of_method("a"), names.of_graph(7), names.of_graph(8)) == (a, graph, 4)
    assert names.words([a], of="call") == "one call of a"
    assert names.words([a, a, b, graph], of="call") == (
        "2 calls of a, then one call of b, then one call of a CUDA graph"
    )
    assert names.words([a, b, a, c], of="step") == (
        "one step of a, then one step of b, then one step of a, then one step of c"
    )
    assert names.words([a, b, a, c, b, b], of="step") == "6 steps in turn, of 3 different ones"


def test_optimizers_that_take_turns_are_named_by_what_distinguishes_them() -> None:
    def optimizer() -> torch.optim.Optimizer:
        return torch.optim.SGD([torch.zeros(1)])

    names, first, second = StepEndNames(), optimizer(), optimizer()

    turns = [names.of_optimizer(first, ("Net", "Net.a")), names.of_optimizer(second, ("Net", "b"))]

    assert turns == [0, 1] == [names.of_optimizer(first, ("Net", "Net.a")), 1]
    assert names.words(turns, of="step") == "one step of SGD of Net.a, then one step of SGD of b"
    assert names.words([0, 0], of="step") == "2 steps of SGD"
    names.of_optimizer(second, ("Net", "Net.a"))
    assert names.words(turns, of="step") == "one step of SGD, then one step of SGD"
    assert names.of_function(print, "print") == 2


def test_modules_without_parameters_count_by_their_class() -> None:
    names = StepEndNames()
    linear, other = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)

    numbers = [
        names.of_module(module)
        for module in (torch.nn.ReLU(), linear, other, linear, torch.nn.ReLU())
    ]

    assert numbers == [0, 1, 2, 1, 0]
