"""Process groups in few words."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from neusight.fake_cuda.distributed.rank import ranks_text


def ranks_of(text: str) -> list[int]:
    if ".." not in text:
        return [int(part) for part in text.split(",")]
    bounds, _, step = text.partition("/")
    first, last = bounds.split("..")
    return list(range(int(first), int(last) + 1, int(step or 1)))


@given(st.lists(st.integers(0, 4096), min_size=1, unique=True))
def test_any_ranks_can_be_read_back(ranks: list[int]) -> None:
    assert ranks_of(ranks_text(ranks)) == ranks


@given(st.integers(0, 100), st.integers(3, 5000), st.integers(1, 64))
def test_ranks_in_equal_steps_take_few_text(first: int, count: int, step: int) -> None:
    ranks = range(first, first + count * step, step)

    text = ranks_text(ranks)

    assert len(text) < 24
    assert ranks_of(text) == list(ranks)
