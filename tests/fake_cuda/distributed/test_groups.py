"""Process groups in few words, and the devices that their backends take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

import neusight
from neusight.fake_cuda.distributed.groups import Groups
from neusight.fake_cuda.distributed.rank import Rank, ranks_text
from neusight.predictors.gpu import find_gpu
from neusight.recording.recording import FIRST_COMMUNICATION_STREAM

NO_BACKEND = "No backend type associated with device type cpu: NCCL moves tensors of GPUs only"


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


@contextmanager
def two_ranks(backend: str | None) -> Iterator[None]:
    with neusight.forecast_on("H100", world_size=2):
        dist.init_process_group(backend)
        torch.ones(1, device="cuda")
        yield


def test_nccl_alone_refuses_a_tensor_on_the_cpu() -> None:
    with two_ranks("nccl"):
        for call in (dist.all_reduce, lambda tensor: dist.send(tensor, 1)):
            with pytest.raises(RuntimeError, match=NO_BACKEND):
                call(torch.ones(2))


def test_a_group_within_nccl_refuses_it_too() -> None:
    with two_ranks("nccl"):
        with pytest.raises(RuntimeError, match=NO_BACKEND):
            dist.all_reduce(torch.ones(2), group=dist.new_group([0, 1]))
        dist.all_reduce(torch.ones(2), group=dist.new_group([0, 1], backend="gloo"))


@pytest.mark.parametrize("backend", [None, "gloo", "cpu:gloo,cuda:nccl"])
def test_other_backends_take_it(backend: str | None) -> None:
    with two_ranks(backend):
        dist.all_reduce(torch.ones(2))
        dist.all_reduce(torch.ones(2), group=dist.new_group([0, 1]))


def test_objects_travel_under_nccl_by_way_of_the_gpu() -> None:
    with two_ranks("nccl"):
        gathered: list[object] = [None, None]

        dist.all_gather_object(gathered, "mine")

        assert gathered[0] == "mine"


def test_a_group_that_is_opened_again_has_the_backend_of_then() -> None:
    with two_ranks("nccl"):
        dist.destroy_process_group()
        dist.init_process_group("gloo")

        dist.all_reduce(torch.ones(2), group=dist.new_group([0, 1]))

        assert dist.get_backend() == "gloo"


def all_reduces(
    monkeypatch: pytest.MonkeyPatch, tensor: torch.Tensor, *, gpu: str = "H100", **options: object
) -> list[str]:
    """The kernels that add a tensor up where torch's own all-reduce is on, it by its variant."""
    monkeypatch.setenv("ENABLE_INTRA_NODE_COMM", "1")
    with neusight.forecast_on(gpu, world_size=16, gpus_per_node=8) as forecast:
        dist.init_process_group("nccl")
        group = dist.new_group(list(range(options.pop("ranks", 8))))  # type: ignore[call-overload]
        dist.all_reduce(tensor.to("cuda"), group=group, **options)  # type: ignore[arg-type]
    kernels = [kernel for kernel, _ in forecast.kernels]
    return [k.variant if k.name == "all_reduce" else k.name for k in kernels[1:]]


SMALL = torch.zeros(4096, dtype=torch.bfloat16)


def test_torchs_own_all_reduce_is_taken_where_the_program_turns_it_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large = torch.zeros(4096, 512, dtype=torch.bfloat16)

    assert all_reduces(monkeypatch, SMALL) == ["memcpy_d2d", "one_shot"]
    assert all_reduces(monkeypatch, large) == ["memcpy_d2d", "two_shot", "memcpy_d2d"]


def test_it_takes_sums_of_two_types_inside_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all_reduces(monkeypatch, SMALL.half()) == [""]
    assert all_reduces(monkeypatch, SMALL, op=dist.ReduceOp.MAX) == [""]
    assert all_reduces(monkeypatch, SMALL, ranks=16) == [""]
    assert all_reduces(monkeypatch, SMALL.repeat(4096)) == [""]


def test_without_nvlink_nccl_takes_them_and_nothing_is_copied_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert all_reduces(monkeypatch, SMALL, gpu="L40S") == [""]


@pytest.mark.parametrize(
    ("ranks", "per_node", "text"),
    [
        ((0,), 16, "size=1 nodes=1 per_node=16 name=g ranks=0"),
        ((0, 1), 16, "size=2 nodes=1 per_node=16 name=g ranks=0,1 intra_node=1"),
        (range(8), 16, "size=8 nodes=1 per_node=16 name=g ranks=0..7 intra_node=1"),
        (range(9), 16, "size=9 nodes=1 per_node=16 name=g ranks=0..8"),
        (range(3, 5), 4, "size=2 nodes=2 per_node=4 name=g ranks=3,4"),
    ],
)
def test_groups_of_two_to_eight_ranks_inside_a_node_may_read_each_other(
    ranks: Sequence[int], per_node: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENABLE_INTRA_NODE_COMM", "YES")
    queries: list[tuple[str, object]] = []
    groups = Groups(
        Rank(0, 16, per_node), find_gpu("H100"), lambda *device_query: queries.append(device_query)
    )
    group: Any = SimpleNamespace(group_name="g")

    assert [groups.text_of(group, tuple(ranks)) for _ in range(2)] == [text] * 2
    assert queries == [("intra_node_comm", True)] * ("intra" in text)


def test_each_communicator_has_a_stream_of_its_own() -> None:
    groups = Groups(Rank(), find_gpu("H100"), lambda *_: None)
    first, second = (SimpleNamespace(group_name=name) for name in "ab")

    streams = [groups.stream_of(*key) for key in ((first,), (second,), (first, 1), (first,))]

    assert [stream - FIRST_COMMUNICATION_STREAM for stream in streams] == [0, 1, 2, 0]
