"""What a step takes in is read off the program, or not told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import neusight
from neusight.forecast import Forecast
from neusight.output.batch import Batch, batch_of, stated_batch


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(50, 8)
        self.positions = nn.Embedding(16, 8)
        self.head = nn.Linear(8, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        out: torch.Tensor = self.head(self.tokens(tokens) + self.positions(positions))
        return out


def batch(step: Callable[[], object]) -> Batch:
    with neusight.forecast_on("H100") as forecast:
        for _ in range(3):
            step()
            forecast.step()
    return forecast.verdict.batch


def trained(model: nn.Module, *inputs: torch.Tensor) -> Callable[[], None]:
    optimizer: list[torch.optim.Optimizer] = []

    def step() -> None:
        model.cuda()
        if not optimizer:
            optimizer.append(torch.optim.SGD(model.parameters(), lr=0.1))
        for data in inputs:
            model(data.cuda()).float().mean().backward()
        optimizer[0].step()
        optimizer[0].zero_grad()

    return step


def test_token_ids_tell_samples_and_tokens() -> None:
    found = batch(trained(Language(), torch.zeros(4, 16, dtype=torch.long)))

    assert (found.samples, found.tokens) == (4, 64)
    assert found.known_by == "token ids [4 x 16] in Language.tokens"


def test_buckets_of_distances_are_no_tokens() -> None:
    class Relative(Language):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            places = torch.arange(tokens.shape[1], device=tokens.device)
            distances = (places[:, None] - places[None, :]).abs()
            bias = self.positions(distances).mean()
            out: torch.Tensor = self.head(self.tokens(tokens)) + bias
            return out

    found = batch(trained(Relative(), torch.zeros(2, 16, dtype=torch.long)))

    assert (found.samples, found.tokens) == (2, 32)


def test_accumulated_batches_add_up() -> None:
    ids = torch.zeros(4, 16, dtype=torch.long)

    found = batch(trained(Language(), ids, ids, ids))

    assert (found.samples, found.tokens) == (12, 192)
    assert "3 times [4 x 16]" in found.known_by


def test_the_first_convolution_tells_samples() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))

    found = batch(trained(model, torch.randn(6, 3, 12, 12)))

    assert (found.samples, found.tokens) == (6, None)


def test_nothing_is_told_of_a_discriminator_that_sees_a_batch_twice() -> None:
    first, second = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
    optimizers: list[torch.optim.Optimizer] = []

    def step() -> None:
        first.cuda(), second.cuda()
        if not optimizers:
            optimizers.extend(torch.optim.SGD(m.parameters(), lr=0.1) for m in (first, second))
        images = torch.randn(2, 3, 8, 8, device="cuda")
        for optimizer in optimizers:
            (second(first(images)).mean() + second(images).mean()).backward()
            optimizer.step()

    assert not batch(step)


def test_rows_of_features_are_samples() -> None:
    found = batch(trained(nn.Sequential(nn.Linear(8, 8)), torch.randn(4, 8), torch.randn(6, 8)))

    assert (found.samples, found.tokens) == (10, None)
    assert found.known_by == "inputs 2 times [4 x 8] in Sequential.0"


def test_images_made_flat_keep_their_samples() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8, bias=False))

    assert batch(trained(model, torch.randn(4, 3, 2, 2))).samples == 4


def test_features_of_a_sequence_tell_nothing() -> None:
    """Whether [4, 16, 8] are four samples or sixteen, only the program knows."""
    assert batch(trained(nn.Linear(8, 8), torch.randn(4, 16, 8))) == Batch()


def test_a_product_outside_of_modules_tells_nothing() -> None:
    weight = torch.randn(8, 8)

    assert batch(lambda: torch.randn(4, 8).cuda() @ weight.cuda()) == Batch()


def test_position_ids_alone_tell_nothing() -> None:
    assert not batch(trained(nn.Embedding(16, 8), torch.arange(16)))


def test_recomputation_does_not_count_twice() -> None:
    class Checkpointed(Language):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            from torch.utils.checkpoint import checkpoint

            out: torch.Tensor = checkpoint(super().forward, tokens, use_reentrant=False)
            return out

    found = batch(trained(Checkpointed(), torch.zeros(4, 16, dtype=torch.long)))

    assert found.tokens == 64


def test_rates_prefer_tokens() -> None:
    assert Batch(2, 20).per_second(10.0) == (2e6, "tokens")
    assert Batch(2).per_second(10.0) == (2e5, "samples")
    assert Batch().per_second(10.0) is None
    assert Batch(2).per_second(0.0) is None


def test_an_empty_step_tells_nothing() -> None:
    assert batch_of([]) == Batch()


def test_what_was_stated_survives_saving(tmp_path: Path) -> None:
    with neusight.forecast_on("H100") as forecast:
        torch.ones(4, device="cuda") + 1
    forecast.recording.options["samples_per_step"] = "32"
    forecast.save(tmp_path / "f.json")

    loaded = Forecast.load(tmp_path / "f.json")

    assert loaded.verdict.batch == stated_batch({"samples_per_step": "32"})
    assert loaded.to_json()["samples_per_step"] == 32


@pytest.mark.parametrize("options", [{}, {"other": "1"}])
def test_nothing_stated_is_no_batch(options: dict[str, str]) -> None:
    assert not stated_batch(options)
