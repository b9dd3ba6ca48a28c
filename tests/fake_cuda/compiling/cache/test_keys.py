"""What decides how a graph is compiled is in its key."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from neusight.fake_cuda.compiling.cache.keys import (
    aliases,
    calls_only_torch,
    digest,
    facts_of,
    settings,
    source_version,
)


def traced(function: Any, *inputs: torch.Tensor) -> Any:
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(function)(*inputs)


def test_equal_code_has_one_version() -> None:
    version = source_version()
    source_version.cache_clear()

    assert source_version() == version


def test_settings_that_choose_kernels_are_distinguished() -> None:
    before = settings()

    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
        inside = settings()

    assert inside != before
    assert settings() == before


def test_what_an_op_returns_is_a_fact_of_its_graph() -> None:
    facts = [
        list(facts_of(traced(torch.relu, torch.ones(size, dtype=torch.float32)))) for size in (3, 4)
    ]

    assert facts[0] != facts[1]
    assert any("(3,) (1,) torch.float32 cpu" in fact for fact in facts[0])


def test_the_module_that_called_an_op_is_a_fact_of_its_graph() -> None:
    graph = traced(torch.relu, torch.ones(3))
    before = list(facts_of(graph))
    for node in graph.graph.nodes:
        node.meta["nn_module_stack"] = {"key": ("L['self'].act", nn.ReLU)}

    assert "L['self'].act" not in before
    assert "L['self'].act" in list(facts_of(graph))


def test_views_of_one_memory_are_distinguished_from_tensors_of_their_own() -> None:
    whole = torch.ones(4)

    assert aliases([whole, 3, whole[:2], torch.ones(2)]) == (0, 0, 3)


def test_an_op_of_the_programs_own_is_found() -> None:
    @torch.library.custom_op("test_keys::double", mutates_args=())
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    assert calls_only_torch(traced(torch.relu, torch.ones(3)))
    assert not calls_only_torch(traced(lambda x: double(x) + 1, torch.ones(3)))


def test_a_digest_distinguishes_parts() -> None:
    assert digest(["a", "b"]) == digest(["a", "b"])
    assert digest(["a", "b"]) != digest(["ab"])
