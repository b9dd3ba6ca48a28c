"""Values: what a script can know is right, what nobody can know is invented, and said."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributions as D
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import neusight
from neusight.recording.recording import OpCall, Synchronize
from neusight.recording.values import FIRST_FLOAT, FLOAT_DECAY


def values_of(program: Any) -> Any:
    """What the program returns inside a forecast."""
    with neusight.forecast_on("H100"):
        torch.zeros(1, device="cuda")
        return program()


def invented(forecast: neusight.Forecast) -> str:
    return next((text for text in forecast.warnings if "invented" in text), "")


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
        ]

    assert values_of(program) == [
        3.0, [1, 2, 3], [[0, 0], [0, 0]], 7, True, 45, torch.float16, [[3, 1], [1, 3]], True,
        "0.50", True,
    ]  # fmt: skip


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
@settings(max_examples=15, deadline=None)
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


def test_masks_with_known_values_count_exactly() -> None:
    def program() -> list[Any]:
        positions = torch.arange(8, device="cuda")
        mask = positions < 3
        rows = torch.randn(8, 5, device="cuda")
        rows[mask] = 0.0
        return [
            tuple(rows[mask].shape), tuple(mask.nonzero().shape),
            tuple(torch.masked_select(rows[:, 0], mask).shape),
            tuple(torch.where(mask)[0].shape), mask.sum().item(),
            tuple(torch.repeat_interleave(rows, positions, dim=0).shape),
        ]  # fmt: skip

    assert values_of(program) == [(3, 5), (3, 1), (3,), (3,), 3, (28, 5)]


def test_known_values_are_selected_and_told_apart() -> None:
    def program() -> list[Any]:
        x = torch.tensor([3, 1, 3, 2], device="cuda")
        unique, inverse = torch.unique(x, return_inverse=True)
        return [unique.tolist(), inverse.tolist(), (x == 3).nonzero().flatten().tolist()]

    assert values_of(program) == [[1, 2, 3], [2, 0, 2, 1], [0, 2]]


def test_a_mask_is_broadcast_before_it_selects() -> None:
    def program() -> list[Any]:
        rows = torch.randn(4, 6, device="cuda")
        known = torch.tensor([[True], [False], [True], [False]], device="cuda")
        return [tuple(rows.masked_select(known).shape), tuple(rows.unique(dim=0).shape)]

    assert values_of(program) == [(12,), (2, 6)]


def test_unknown_masks_select_half() -> None:
    def program() -> tuple[int, ...]:
        return tuple((torch.randn(1000, device="cuda") > 0).nonzero().shape)

    assert values_of(program) == (500, 1)


def test_the_scale_of_a_gradient_scaler_is_its_own() -> None:
    def program() -> tuple[float, float]:
        model = nn.Linear(4, 4).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
        first = scaler.get_scale()
        scaler.scale(model(torch.ones(1, 4, device="cuda")).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        return first, scaler.get_scale()

    assert values_of(program) == (1024.0, 1024.0)


def test_small_parameters_keep_their_values_on_the_way_to_the_gpu() -> None:
    def program() -> tuple[float, float]:
        scale = nn.Parameter(torch.tensor(2.0))
        with torch.no_grad():
            scale.mul_(2)
        return scale.item(), scale.cuda().square().item()

    assert values_of(program) == (4.0, 16.0)


# -- invented values -------------------------------------------------------------------------------


def test_unknown_numbers_fall_slowly_at_each_line_and_stay_positive() -> None:
    def program() -> tuple[list[float], float]:
        losses = [torch.randn(3, device="cuda").sum().item() for _ in range(5)]
        return losses, torch.randn(3, device="cuda").mean().item()

    losses, other = values_of(program)
    assert losses == pytest.approx([FIRST_FLOAT * FLOAT_DECAY**n for n in range(5)])
    assert other == FIRST_FLOAT
    assert all(value > 0 for value in losses)


def test_unknown_predicates_are_those_of_healthy_numbers() -> None:
    def program() -> list[bool]:
        x = torch.randn(1000, device="cuda")
        return [
            bool(x.isnan().any()), bool(x.isinf().any()), bool(x.isfinite().all()),
            bool(torch.isnan(x.sum())), math.isnan(x.sum()), math.isfinite(x.mean()),
            torch.allclose(x, x),
        ]  # fmt: skip

    assert values_of(program) == [False, False, True, False, False, True, True]


def test_invented_reads_are_reported_with_their_line() -> None:
    with neusight.forecast_on("H100") as forecast:
        loss = torch.randn(8, device="cuda").mean()
        line = sys._getframe().f_lineno + 1
        loss.item()
        torch.tensor(1.0, device="cuda").item()

    assert f"test_values.py:{line}" in invented(forecast)
    assert invented(forecast).count("test_values.py:") == 1


def test_every_read_waits_for_the_gpu() -> None:
    with neusight.forecast_on("H100") as forecast:
        x = torch.randn(8, device="cuda")
        x.sum().item()
        x.cpu()
        x.to("cpu", non_blocking=True)
        x.nonzero()
        bool((x > 0).all())

    waits = [
        entry.reason
        for step in forecast.recording.steps
        for entry in step.entries
        if isinstance(entry, Synchronize)
    ]
    assert waits == ["item", "copy", "nonzero", "item"]


def test_the_same_program_invents_the_same() -> None:
    def program() -> list[Any]:
        torch.manual_seed(0)
        model = nn.Linear(64, 64)
        x = torch.randn(128, device="cuda")
        return [
            x.sum().item(), x.cpu().tolist(), model.weight.sum().item(),
            model(torch.ones(1, 64)).tolist(),
        ]  # fmt: skip

    assert values_of(program) == values_of(program)


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


# -- parameters on the CPU -------------------------------------------------------------------------


def test_parameters_made_inside_hold_no_data_until_they_are_read() -> None:
    with neusight.forecast_on("H100") as forecast:
        model = nn.Linear(4096, 4096)
        nn.init.trunc_normal_(model.weight, std=0.02)
        model.cuda()

    assert not any("seeded random values" in text for text in forecast.warnings)


def test_cpu_code_computes_on_filled_parameters_and_is_told() -> None:
    with neusight.forecast_on("H100") as forecast:
        torch.zeros(1, device="cuda")
        model: Any = nn.Sequential(nn.Linear(100, 100), nn.LayerNorm(100), nn.Linear(100, 10))
        out = model(torch.ones(2, 100))
        loss = F.cross_entropy(out, torch.tensor([1, 2]))
        loss.backward()
        finite = [
            loss.isfinite().item(), model[0].weight.sum().isfinite().item(),
            all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None),
        ]  # fmt: skip
        consistent = [
            model[0].weight.sum().item() == model[0].weight.sum().item(),
            model[0].weight[0].tolist() == model[0].weight.tolist()[0],
            torch.equal(model[0].weight, model[0].weight.clone()),
        ]

    assert finite == [True, True, True]
    assert consistent == [True, True, True]
    assert any("seeded random values" in text for text in forecast.warnings)


def test_training_on_the_cpu_inside_moves_the_parameters() -> None:
    def program() -> tuple[bool, bool]:
        model = nn.Linear(100, 10)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        before = model.weight.detach().clone()
        for _ in range(2):
            model(torch.ones(2, 100)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return bool(torch.equal(before, model.weight)), bool(model.weight.isfinite().all())

    assert values_of(program) == (False, True)


def test_like_factories_ask_parameters_for_their_shape_only() -> None:
    def program() -> tuple[float, float]:
        weight = nn.Linear(100, 100).weight
        return torch.zeros_like(weight).sum().item(), torch.ones_like(weight).sum().item()

    assert values_of(program) == (0.0, 10_000.0)


def test_large_copies_to_the_cpu_hold_no_data_until_they_are_computed_on() -> None:
    def program() -> tuple[Any, ...]:
        big = torch.randn(2048, 1024, device="cuda").cpu()
        return big.device.type, tuple(big.shape), bool(big.sum().isfinite())

    assert values_of(program) == ("cpu", (2048, 1024), True)


# -- devices ---------------------------------------------------------------------------------------


def on_cpu(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def on_gpu(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda")


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(
    ("mix", "message"),
    [
        (lambda: on_gpu(4) + on_cpu(4), "found at least two devices, cuda:0 and cpu!"),
        (lambda: on_cpu(4) * on_gpu(4), "found at least two devices, cuda:0 and cpu!"),
        (lambda: on_gpu(4).add_(on_cpu(4)), "found at least two devices, cuda:0 and cpu!"),
        (
            lambda: on_gpu(4, 4) @ on_cpu(4, 4),
            "got mat2 is on cpu, different from other tensors on cuda:0",
        ),
        (
            lambda: nn.Linear(4, 4)(on_gpu(4, 4)),
            "got mat1 is on cuda:0, different from other tensors on cpu",
        ),
        (
            lambda: F.cross_entropy(on_gpu(4, 4), torch.zeros(4, dtype=torch.long)),
            "got target is on cpu, different from other tensors on cuda:0",
        ),
        (
            lambda: F.conv2d(on_gpu(1, 1, 4, 4), on_cpu(1, 1, 2, 2)),
            "Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be "
            "the same",
        ),
    ],
)
def test_mixing_devices_fails_as_on_a_gpu(mix: Any, message: str, times: int) -> None:
    with neusight.forecast_on("H100"):
        for _ in range(times):
            with pytest.raises(RuntimeError) as caught:
                mix()

    assert message in str(caught.value)
    if "Input type" not in message:
        assert str(caught.value).startswith("Expected all tensors to be on the same device, but ")


def test_scalars_on_the_cpu_mix_with_anything() -> None:
    with neusight.forecast_on("H100") as forecast:
        x = on_gpu(4) + torch.tensor(2.0)
        x[torch.tensor([0, 1])]
        x.index_select(0, torch.tensor([0], device="cuda"))

    calls = [e for step in forecast.recording.steps for e in step.entries if isinstance(e, OpCall)]
    assert "aten::add" in {call.signature.op for call in calls}


def test_copies_know_whether_their_source_is_pinned() -> None:
    with neusight.forecast_on("H100") as forecast:
        plain = torch.ones(8)
        pinned = plain.pin_memory()
        plain.to("cuda")
        pinned.to("cuda", non_blocking=True)
        torch.empty(8, device="cuda").copy_(pinned)

    calls = [
        entry.signature
        for step in forecast.recording.steps
        for entry in step.entries
        if isinstance(entry, OpCall)
    ]
    sources = [spec for call in calls for spec in call.input_tensors if spec.device == "cpu"]
    assert [spec.is_pinned for spec in sources] == [False, True, True]


def test_tensors_made_pinned_are_ordinary_memory_that_is_remembered() -> None:
    with neusight.forecast_on("H100"):
        made = [
            torch.empty(8, pin_memory=True),
            torch.zeros(2, 3, pin_memory=True),
            torch.empty_like(torch.ones(4), pin_memory=True),
            torch.tensor([1.0, 2.0], pin_memory=True, requires_grad=True),
            torch.tensor(3, dtype=torch.float16, pin_memory=True),
        ]
        pinned = [tensor.is_pinned() for tensor in made]
        plain = torch.empty(8).is_pinned()
        made[0].to("cuda")
        there = torch.tensor([1.0], device="cuda", pin_memory=True)
        with pytest.raises(RuntimeError, match="Can't pin tensor constructed from numpy"):
            torch.tensor(np.ones(2), pin_memory=True)

    assert (pinned, plain) == ([True] * 5, False)
    assert made[1].tolist() == [[0.0] * 3] * 2
    assert (made[3].tolist(), made[3].requires_grad) == ([1.0, 2.0], True)
    assert (made[4].item(), made[4].dtype) == (3.0, torch.float16)
    assert (there.device.type, there.is_pinned()) == ("cuda", False)


def _policies(size: int) -> dict[str, Any]:
    """Distributions as reinforcement learning makes them, of `size` environments."""

    def mean() -> Any:
        return torch.randn(size, 6, device="cuda")

    def logits() -> Any:
        return torch.randn(size, 18, device="cuda")

    def scale() -> Any:
        return F.softplus(mean())

    return {
        "normal": lambda: D.Normal(mean(), mean().exp()),
        "normal of softplus": lambda: D.Normal(mean(), scale()),
        "independent": lambda: D.Independent(D.Normal(mean(), mean().exp()), 1),
        "categorical": lambda: D.Categorical(logits=logits()),
        "categorical of probabilities": lambda: D.Categorical(probs=logits().softmax(-1)),
        "bernoulli": lambda: D.Bernoulli(logits=logits()),
        "bernoulli of probabilities": lambda: D.Bernoulli(probs=logits().sigmoid()),
        "multivariate": lambda: D.MultivariateNormal(mean(), torch.diag_embed(scale())),
        "triangular": lambda: D.MultivariateNormal(mean(), scale_tril=torch.diag_embed(scale())),
        "beta": lambda: D.Beta(scale(), scale()),
        "gamma": lambda: D.Gamma(scale(), scale()),
    }


@pytest.mark.parametrize("size", [2, 64])  # small tensors are followed, large ones are not
def test_distributions_take_values_that_nobody_knows_for_valid(size: int) -> None:
    with neusight.forecast_on("H100") as forecast:
        for make in _policies(size).values():
            policy = make()
            action = policy.sample()
            (policy.log_prob(action).mean() + policy.entropy().mean()).item()
            if not isinstance(policy, D.Gamma):
                D.kl_divergence(policy, make()).mean()

    reads = [
        entry.reason
        for step in forecast.recording.steps
        for entry in step.entries
        if isinstance(entry, Synchronize)
    ]
    assert reads.count("item") > 3 * len(_policies(size))  # each check waits, as on a GPU
    assert forecast.unmapped == []


def test_arguments_that_are_known_are_still_checked() -> None:
    def program() -> None:
        with pytest.raises(ValueError, match="Expected parameter scale"):
            D.Normal(torch.zeros(3, device="cuda"), -torch.ones(3, device="cuda"))
        with pytest.raises(ValueError, match="Expected parameter loc"):
            D.Normal(torch.full((3,), math.nan, device="cuda"), torch.ones(3, device="cuda"))
        with pytest.raises(ValueError, match="Expected value argument"):
            categorical = D.Categorical(logits=torch.zeros(2, device="cuda"))
            categorical.log_prob(torch.tensor(2, device="cuda"))

    values_of(program)


def test_checks_of_arguments_are_not_reported_as_invented() -> None:
    with neusight.forecast_on("H100") as forecast:
        D.Normal(torch.randn(4, device="cuda"), torch.randn(4, device="cuda").exp())

    assert invented(forecast) == ""


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
