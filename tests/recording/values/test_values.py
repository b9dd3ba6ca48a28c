"""Values: what a script can know is right, what nobody can know is invented, and said."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import neusight
from neusight.recording.values.invention import FIRST_FLOAT
from recorded_programs import invented, values_of

# -- known values ----------------------------------------------------------------------------------


def test_scalars_that_the_script_wrote_are_read_back() -> None:
    def program() -> list[Any]:
        return [
            torch.tensor(3.0, device="cuda").item(),
            torch.tensor([1, 2, 3]).cuda().tolist(),
            torch.zeros(2, 2, device="cuda").cpu().tolist(),
            torch.full((), 7, device="cuda").item(),
            bool(torch.tensor(True, device="cuda")),
            int(torch.arange(10, device="cuda").sum()),
            torch.ones(3).to("cuda", torch.float16).dtype,
            (torch.eye(2, device="cuda") * 2 + 1).tolist(),
            torch.tensor(float("inf"), device="cuda").isinf().item(),
            f"{torch.tensor(0.5, device='cuda'):.2f}",
            torch.equal(torch.ones(2, device="cuda"), torch.ones(2, device="cuda")),
            torch.equal(torch.ones(2, device="cuda"), torch.ones(3, device="cuda")),
            torch.allclose(torch.ones(2, device="cuda"), torch.full((2,), 1.5, device="cuda")),
            torch.is_nonzero(torch.tensor(0.0, device="cuda")),
            torch.is_nonzero(torch.tensor(2, device="cuda")),
        ]

    assert values_of(program) == [
        3.0, [1, 2, 3], [[0, 0], [0, 0]], 7, True, 45, torch.float16, [[3, 1], [1, 3]], True,
        "0.50", True, False, False, False, True,
    ]  # fmt: skip


def test_memory_that_nothing_was_written_to_holds_zeros() -> None:
    """On a GPU, anything: a forecast must not differ from run to run."""

    def program() -> list[Any]:
        size, sums = 4096, []
        for _ in range(4):
            torch.full((size,), 7)  # what malloc may give next
            like = torch.empty(size, dtype=torch.int64, device="cuda")
            made = [like, torch.empty_like(like), like.new_empty(size)]
            sums += [int(tensor.sum()) for tensor in made]
        return sums

    assert values_of(program) == [0] * 12


def test_writing_in_place_and_through_views_is_followed() -> None:
    def program() -> list[Any]:
        x = torch.zeros(4, device="cuda")
        x.add_(1)
        x[1:3].mul_(5)
        x[0] = 9
        y = x.view(2, 2)
        y[1, 1] = -1
        x.clamp_(max=6)
        found: list[Any] = x.tolist()
        return found

    assert values_of(program) == [6, 5, 5, -1]


def test_what_depends_on_unknown_values_is_unknown_and_no_longer_known() -> None:
    with neusight.forecast_on("H100") as forecast:
        known = torch.ones(4, device="cuda")
        unknown = torch.randn(4, device="cuda")
        mixed = (known + unknown).sum().item()
        known.copy_(unknown)
        overwritten = known.sum().item()

    assert (mixed, overwritten) == (FIRST_FLOAT, FIRST_FLOAT)
    assert invented(forecast)


@given(
    numbers=st.lists(st.integers(-5, 5), min_size=1, max_size=8),
    ops=st.lists(
        st.sampled_from(["add", "mul", "neg", "abs", "cumsum", "flip", "sort"]), max_size=5
    ),
)
@settings(max_examples=15)
def test_small_known_tensors_compute_as_on_the_cpu(numbers: list[int], ops: list[str]) -> None:
    def compute(x: torch.Tensor) -> list[int]:
        steps: dict[str, Any] = {
            "add": lambda x: x + 2, "mul": lambda x: x * 3, "neg": lambda x: -x, "abs": torch.abs,
            "cumsum": lambda x: x.cumsum(0), "flip": lambda x: x.flip(0),
            "sort": lambda x: x.sort().values,
        }  # fmt: skip
        for op in ops:
            x = steps[op](x)
        found: list[int] = x.tolist()
        return found

    assert values_of(lambda: compute(torch.tensor(numbers, device="cuda"))) == compute(
        torch.tensor(numbers)
    )


# -- invented values -------------------------------------------------------------------------------


def test_unknown_predicates_are_those_of_healthy_numbers() -> None:
    def program() -> list[bool]:
        x = torch.randn(1000, device="cuda")
        return [
            bool(x.isnan().any()), bool(x.isinf().any()), bool(x.isfinite().all()),
            bool(torch.isnan(x.sum())), math.isnan(x.sum()), math.isfinite(x.mean()),
            torch.allclose(x, x),
        ]  # fmt: skip

    assert values_of(program) == [False, False, True, False, False, True, True]


@pytest.mark.parametrize("sample", [True, False])
def test_generation_stops(sample: bool) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=50)
    config.eos_token_id = config.bos_token_id = config.pad_token_id = 49

    def program() -> tuple[int, ...]:
        model = transformers.GPT2LMHeadModel(config).cuda().eval()
        prompt = torch.tensor([[3, 4], [5, 6]], device="cuda")
        return tuple(model.generate(prompt, max_new_tokens=6, do_sample=sample).shape)

    assert values_of(program) == (2, 8)


# -- whole numbers in floats, and floats made whole ------------------------------------------------


def test_a_mask_that_is_interpolated_in_floats_is_followed() -> None:
    """As ViLT counts the patches of an image that are no padding."""

    def program() -> list[int]:
        mask = torch.zeros(1, 1, 64, 64, dtype=torch.long)
        mask[..., :32, :48] = 1
        small = torch.nn.functional.interpolate(mask.cuda().float(), size=(16, 16)).long()
        return [int(small[0, 0].sum(0)[0]), int(small[0, 0].sum(1)[0]), len(small.nonzero())]

    with neusight.forecast_on("H100") as forecast:
        found = program()

    assert found == [8, 12, 8 * 12]
    assert not invented(forecast)


def test_many_whole_floats_are_forgotten_when_something_else_is_written_there() -> None:
    with neusight.forecast_on("H100") as forecast:
        mask = torch.ones(100, dtype=torch.long, device="cuda").float()
        mask.mul_(torch.rand(100, device="cuda"))
        number = int(mask.long().sum())

    assert number == 100, "each is taken for 1"
    assert invented(forecast)


def test_lengths_made_of_floats_agree_with_their_sum() -> None:
    """As FastSpeech repeats each word by a length that a network predicts."""

    def program() -> tuple[int, int]:
        lengths = torch.randn(2, 32, device="cuda").exp().round().long()
        longest = lengths.sum(dim=1).max()
        frames = torch.zeros(2, longest, 8, device="cuda")  # type: ignore[call-overload]
        repeated = torch.repeat_interleave(torch.rand(32, 8, device="cuda"), lengths[0], dim=0)
        frames[0, : repeated.size(0)] = repeated
        return int(longest), repeated.size(0)

    assert values_of(program) == (32, 32)


def test_numbers_that_nobody_knows_are_true() -> None:
    """As reading one gives a number that is not zero: beams have the length that was generated."""

    def program() -> list[int]:
        tokens = torch.rand(4, 50, device="cuda").multinomial(6)
        counts = (tokens + 1).bool().sum(dim=1)
        return [*counts.tolist(), int(torch.rand(100, device="cuda").bool().sum())]

    assert values_of(program) == [6, 6, 6, 6, 100]


# -- parameters on the CPU -------------------------------------------------------------------------


# -- devices ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [4, 1000])
def test_a_tensor_compared_with_itself_is_equal(size: int) -> None:
    def program() -> list[bool]:
        x = torch.randn(size, device="cuda")
        equal, other = [x == x, x <= x, x >= x], [x != x, x < x, x > x]
        whole = [bool((x == x[:]).all()), bool(torch.equal(x, x))]
        return (
            [bool(each.all()) for each in equal] + [not bool(each.any()) for each in other] + whole
        )

    assert values_of(program) == [True] * 8


def test_a_known_nan_differs_from_itself() -> None:
    def program() -> Any:
        x = torch.tensor([1.0, math.nan], device="cuda")
        return (x == x).tolist()

    assert values_of(program) == [True, False]
