"""Generators of random numbers on the GPU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import neusight
from neusight.fake_cuda.torch_api.native import generators


def test_seeds_and_states_are_kept() -> None:
    with neusight.forecast_on("H100"):
        torch.ones(8, device="cuda").relu_()
        torch.manual_seed(7)
        assert torch.cuda.initial_seed() == 7
        state = torch.cuda.get_rng_state()
        torch.cuda.manual_seed(8)
        assert torch.cuda.initial_seed() == 8
        torch.cuda.set_rng_state(state)
        assert torch.cuda.initial_seed() == 7
        with pytest.raises(RuntimeError, match="RNG state is wrong size"):
            torch.cuda.set_rng_state(torch.zeros(5000, dtype=torch.uint8))


def test_a_generator_is_of_one_kind_of_device() -> None:
    with neusight.forecast_on("H100"):
        of_gpu, of_cpu = torch.Generator("cuda").manual_seed(3), torch.Generator().manual_seed(3)
        assert (str(of_gpu.device), str(of_cpu.device)) == ("cuda:0", "cpu")
        assert isinstance(of_gpu, torch.Generator)
        assert torch.randn(4, device="cuda", generator=of_gpu).is_cuda
        assert not torch.randn(4, generator=of_cpu).is_cuda
        torch.rand(4, device="cuda", generator=of_gpu.clone_state())
        with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but"):
            torch.randn(4, device="cuda", generator=of_cpu)
        with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but"):
            torch.randn(4, generator=of_gpu)


def test_each_gpu_of_a_node_has_its_generator() -> None:
    with neusight.forecast_on("H100", world_size=8, gpus_per_node=4):
        torch.ones(8, device="cuda").relu_()
        torch.manual_seed(7)
        seeds = [generator.initial_seed() for generator in torch.cuda.default_generators]
        assert seeds == [7, 7, 7, 7]


def test_a_state_holds_the_seed_and_how_much_was_drawn() -> None:
    with neusight.forecast_on("H100"):
        torch.ones(8, device="cuda").relu_()
        generator = torch.Generator("cuda")
        first = generator.initial_seed()
        generator.manual_seed(2**64 + 258)
        generator.set_offset(8)
        state = bytes(generator.get_state().tolist())
        short = torch.tensor([5, 1, *6 * [0]], dtype=torch.uint8)
        generator.set_state(short)
        restored = generator.initial_seed(), generator.get_offset()
        other = torch.Generator("cuda")
        other.graphsafe_set_state(generator.graphsafe_get_state())
        drawn = {generator.seed() for _ in range(3)}
        with pytest.raises(RuntimeError, match="offset must be a multiple of 4"):
            generator.set_offset(6)
        with pytest.raises(TypeError, match=r"RNG state must be a torch\.ByteTensor"):
            generator.set_state(torch.zeros(16))

    assert first == 67280421310721
    assert state == bytes([2, 1, *6 * [0], 8, *7 * [0]])
    assert restored == (261, 0) == (other.initial_seed(), other.get_offset())
    assert len(drawn) == 3 and max(drawn) < 2**53


def test_a_seed_is_drawn_of_as_many_bits_as_fit_a_double(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generators, "secrets", SimpleNamespace(randbits=lambda bits: 2**bits - 1))
    with neusight.forecast_on("H100"):
        torch.ones(8, device="cuda")
        assert torch.Generator("cuda").seed() == 2**53 - 1
        with pytest.raises(RuntimeError, match="RNG state is wrong size"):
            torch.Generator("cuda").set_state(torch.zeros(24, dtype=torch.uint8))
