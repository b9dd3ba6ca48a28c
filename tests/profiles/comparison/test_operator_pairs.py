"""Operators of a profile paired with those of a forecast: by name, by place, with reasons."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from neusight.integrations.profiles.comparison.operator_pairs import (
    OperatorDifference,
    OperatorPairs,
    _matched,
    paired_operators,
)
from neusight.integrations.profiles.comparison.operator_reasons import reason_of
from neusight.integrations.profiles.reading.profile import HostOp, Profile, ProfileStep

STEP = ProfileStep("ProfilerStep#1", 0, 1_000_000, 1_000_000, ())


def profile(text: str) -> Profile:
    """A profile of operators: `a[b c] d` is an operator that calls two others, and one more."""
    ops: list[HostOp] = []
    opened: list[int] = []
    for time, word in enumerate(text.replace("[", " [ ").replace("]", " ] ").split(), 1):
        if word == "[":
            opened.append(len(ops) - 1)
        elif word == "]":
            index = opened.pop()
            ops[index] = ops[index]._replace(duration_ns=time - ops[index].start_ns)
        else:
            ops.append(HostOp(word, time, 1, "4000/4000"))
    return Profile("", "", False, True, (STEP,), tuple(ops), (), ())


def paired(real: str, ours: str) -> OperatorPairs:
    return paired_operators(profile(real), STEP, profile(ours), STEP)


def test_equal_trees_have_no_difference() -> None:
    text = "aten::linear[aten::t[aten::transpose] aten::addmm] aten::relu"

    assert paired(text, text) == OperatorPairs(5, 5, 5, 5)


def test_a_name_in_another_place_is_paired_by_name_only() -> None:
    found = paired("a[b] c", "a c[b]")

    assert (found.num_by_name, found.num_in_place) == (3, 2)
    assert found.differences == (
        OperatorDifference("a", "b", "", 1, 1, 0, ""),
        OperatorDifference("c", "", "b", 1, 0, 1, ""),
    )


def test_what_an_operator_without_partner_calls_counts_with_it() -> None:
    found = paired("a[permute[as_strided]] a[permute[as_strided]]", "a[transpose[as_strided]] a[t]")

    assert found.differences == (
        OperatorDifference("a", "permute", "transpose", 1, 2, 2, ""),
        OperatorDifference("a", "permute", "t", 1, 2, 1, ""),
    )
    assert (found.name_share, found.place_share) == (3 / 6, 2 / 6)


def test_a_known_difference_has_its_reason() -> None:
    found = paired(
        "aten::linear[aten::reshape[aten::view] aten::addmm]",
        "aten::linear[aten::view aten::addmm]",
    )

    assert [row.reason for row in found.differences] == [
        "torch 2.6 flattens the input of a linear layer by reshape, 2.11 by view"
    ]
    assert found.explained() == 2
    assert (found.num_by_name, found.num_excused) == (3, 1)


def test_a_reason_excuses_no_operator_that_is_missing_elsewhere() -> None:
    found = paired(
        "aten::linear[aten::reshape[aten::view] aten::addmm] x[aten::view]",
        "aten::linear[aten::view aten::addmm] x",
    )

    assert (found.num_by_name, found.num_excused) == (4, 1)


def test_what_is_called_elsewhere_needs_no_excuse() -> None:
    found = paired(
        "aten::linear[aten::reshape[aten::view] aten::addmm]",
        "aten::linear[aten::view aten::addmm] aten::reshape",
    )

    assert (found.num_by_name, found.num_excused) == (4, 0)


def test_frames_of_the_engine_are_passed_over_where_one_side_has_none() -> None:
    engine = "autograd::engine::evaluate_function:"
    real = profile("MulBackward0[aten::mul]")
    ours = profile("frame[MulBackward0[aten::mul]]")
    framed = ours.ops[0]._replace(name=f"{engine} MulBackward0")
    ours = Profile("", "", True, True, (STEP,), (framed, *ours.ops[1:]), (), ())

    found = paired_operators(real, STEP, ours, STEP)

    assert found.num_in_place == 2
    assert [row.reason for row in found.differences] == [
        "torch before 1.11 records no frame around a node"
    ]


def test_operators_of_other_steps_do_not_count() -> None:
    late = profile("a b")
    moved = tuple(op._replace(start_ns=op.start_ns + 2_000_000) for op in late.ops)

    found = paired_operators(
        Profile("", "", False, True, (STEP,), moved, (), ()), STEP, profile("a"), STEP
    )

    assert (found.num_measured, found.name_share, found.place_share) == (0, 0.0, 0.0)


def test_as_many_items_are_matched_as_the_longest_common_subsequence_has() -> None:
    numbers = random.Random(5)
    for _ in range(200):
        first, second = (
            [numbers.choice("abc") for _ in range(numbers.randrange(12))] for _ in range(2)
        )

        pairs = _matched(first, second)

        assert pairs == sorted(set(pairs))
        assert all(first[i] == second[j] for i, j in pairs)
        assert all(p[0] < q[0] and p[1] < q[1] for p, q in pairwise(pairs))
        assert len(pairs) == longest(first, second), (first, second)


def longest(first: list[str], second: list[str]) -> int:
    """The length of the longest common subsequence."""
    row = [0] * (len(second) + 1)
    for item in first:
        new = [0]
        for position, other in enumerate(second):
            is_equal = item == other
            new.append(row[position] + 1 if is_equal else max(row[position + 1], new[position]))
        row = new
    return row[-1]


def test_sides_that_share_nothing_end_without_a_pair() -> None:
    found = paired("a " * 2000, "b " * 2000)

    assert (found.num_in_place, len(found.differences)) == (0, 1)
    assert found.differences[0].measured == "a x2000"


def test_an_unknown_difference_has_no_reason() -> None:
    assert reason_of("aten::mine", "aten::yours", "") == ""


def test_shares_are_of_the_measured_operators_and_of_those_that_both_may_have() -> None:
    found, nothing = OperatorPairs(10, 20, 6, 4, num_excused=2), OperatorPairs(0, 5, 0, 0)

    assert (found.name_share, found.shared_name_share, found.place_share) == (0.6, 0.75, 0.4)
    assert (nothing.name_share, nothing.shared_name_share, nothing.place_share) == (0, 0, 0)
    assert OperatorPairs(3, 3, 0, 0, num_excused=3).shared_name_share == 0


def test_what_the_other_side_has_elsewhere_is_not_missing() -> None:
    found = paired("a[b c] d", "a[e] d[b]")

    assert [(row.measured, row.forecast, row.reason) for row in found.differences] == [
        ("b c", "e", ""), ("", "b", ""),
    ]  # fmt: skip


def test_nodes_of_autograd_are_partners_whatever_their_number() -> None:
    found = paired("x[MulBackward0[a]] Mul1", "x[MulBackward1[a]] Mul2")

    assert (found.num_by_name, found.num_in_place) == (2, 2)
    assert found.differences[:2] == (
        OperatorDifference("", "Mul1", "Mul2", 1, 1, 1, ""),
        OperatorDifference("x", "MulBackward0", "MulBackward1", 1, 1, 1, ""),
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a b c d", "a b c d"), ("a b c d e", "a b c d ..."), ("a a b b b a", "a x2 b x3 a")],
)
def test_four_names_of_a_difference_are_shown(text: str, shown: str) -> None:
    assert [row.measured for row in paired(text, "").differences] == [shown]
