"""Products are padded where torch's rule says so, by prices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from compiled_net import ops, quiet, torch_compile
from torch._inductor import config as inductor_config

import neusight
from neusight.fake_cuda.compiling.choices.padding import (
    Product,
    _is_timed,
    _padded,
    is_padded,
    padding_query_result,
)
from neusight.predictors.errors import ForecastStateError
from neusight.predictors.gpu import find_gpu
from neusight.recording.recording import TensorSpec

MM = "aten::mm"


def product(m: int, n: int, k: int, dtype: str = "bfloat16", **others: Any) -> Product:
    left, right = TensorSpec((m, k), (k, 1), dtype), TensorSpec((k, n), (n, 1), dtype)
    return Product(others.pop("op", MM), left, right, **others)


def run(gpu: str) -> neusight.Forecast:
    """A product that sums over 4,095, twice."""
    with quiet(), neusight.forecast_on(gpu) as forecast, torch.no_grad():
        weight = torch.randn(4095, 4096, device="cuda", dtype=torch.bfloat16)
        function = torch_compile(lambda x: torch.relu(x @ weight))
        for _ in range(2):
            function(torch.randn(4096, 4095, device="cuda", dtype=torch.bfloat16))
            torch.cuda.synchronize()
            forecast.step()
    return forecast


@pytest.fixture(scope="module")
def padded() -> neusight.Forecast:
    return run("A100")


def test_margins_lead_to_the_next_aligned_size_but_for_ones() -> None:
    assert product(1, 4095, 768).margins == (0, 1, 0)
    assert product(4097, 1, 3, "float32").margins == (3, 0, 1)
    assert product(7, 7, 7, "float64").margins == (0, 0, 0)


def test_a_product_is_padded_where_that_is_a_tenth_faster_copies_included() -> None:
    a100 = find_gpu("A100")

    assert is_padded(product(4096, 4096, 4095), a100)
    assert not is_padded(product(4096, 4096, 4096), a100)  # nothing to pad
    assert not is_padded(product(512, 512, 511), a100)  # the copies take longer
    assert not is_padded(product(4096, 4096, 4095, "float32"), a100)  # no faster


def test_an_operand_is_copied_into_a_larger_one_or_its_margin_is_filled_with_zeros() -> None:
    copied, filled, _ = _padded(product(16, 15, 15, left_is_planned=False, right_is_planned=True))

    assert (copied.op, copied.by_name["pad"]) == ("aten::constant_pad_nd", (0, 1, 0, 0))
    assert copied.output_tensors[0].shape == (16, 16)
    assert (filled.op, filled.output_tensors[0].shape) == ("aten::fill_", (1, 1))


def signatures(**product_of: Any) -> list[str]:
    """Each call that torch times of the padded form: its tensors' sizes, and what it makes."""
    return [
        f"{call.op} {[spec.shape for spec in call.input_tensors]} -> {call.output_tensors[0].shape}"
        for call in _padded(product(**product_of))
    ]


@pytest.mark.parametrize(
    ("added", "calls"),
    [
        (None, ["aten::mm [(16, 16), (16, 24)] -> (16, 24)"]),
        (
            (17,),
            [
                "aten::fill_ [(7,)] -> (7,)", "aten::cat [(17,), (7,)] -> (24,)",
                "aten::addmm [(24,), (16, 16), (16, 24)] -> (16, 24)",
            ],
        ),
        (
            (13, 17),
            [
                "aten::fill_ [(13, 7)] -> (13, 7)", "aten::cat [(13, 17), (13, 7)] -> (13, 24)",
                "aten::fill_ [(3, 24)] -> (3, 24)", "aten::cat [(13, 24), (3, 24)] -> (16, 24)",
                "aten::addmm [(16, 24), (16, 16), (16, 24)] -> (16, 24)",
            ],
        ),
        ((1, 1), ["aten::addmm [(1, 1), (16, 16), (16, 24)] -> (16, 24)"]),
    ],
)  # fmt: skip
def test_the_margins_of_all_operands_are_written_before_the_product(
    added: tuple[int, ...] | None, calls: list[str]
) -> None:
    spec = None if added is None else TensorSpec(added, (1,) * len(added), "bfloat16")
    op = MM if added is None else "aten::addmm"

    if spec is not None:
        *_, added_up = _padded(product(13, 17, 11, op=op, added=spec))
        assert (added_up.by_name["beta"], added_up.by_name["alpha"]) == (1, 1)
    assert signatures(m=13, n=17, k=11, op=op, added=spec) == [
        "aten::constant_pad_nd [(13, 11)] -> (16, 16)",
        "aten::constant_pad_nd [(11, 17)] -> (16, 24)",
        *calls,
    ]


@pytest.mark.parametrize(
    ("gpu", "sizes", "options", "is_timed"),
    [
        # Half of the FLOPs a byte at which compute and memory are even: 148 on an H100 in bfloat16.
        ("H100", (444, 444, 444), {}, True),
        ("H100", (443, 443, 443), {}, False),
        ("H100", (64, 64, 65), {}, False),
        ("A100", (64, 64, 65), {}, True),  # a long sum in bfloat16, before Hopper
        ("A100", (64, 64, 64), {}, False),
        ("A100", (64, 64, 65), {"dtype": "float16"}, False),
        ("A100", (100, 100, 100), {"dtype": "float32"}, True),
        ("A100", (100, 100, 100), {"dtype": "float32", "allows_tf32": True}, False),
    ],
)
def test_products_bound_by_compute_are_timed(
    gpu: str, sizes: tuple[int, int, int], options: dict[str, Any], is_timed: bool
) -> None:
    assert _is_timed(product(*sizes, **options), find_gpu(gpu)) is is_timed


def test_what_can_be_made_padded_is_not_copied() -> None:
    gpu, copied = find_gpu("H100"), product(1024, 1024, 1023)
    planned = copied._replace(left_is_planned=True, right_is_planned=True)

    assert not is_padded(copied, gpu)
    assert is_padded(planned, gpu)


def test_products_bound_by_memory_are_not_timed() -> None:
    assert not is_padded(product(16, 4096, 4095), find_gpu("H100"))


def test_batched_and_added_products_are_judged_too() -> None:
    gpu = find_gpu("A100")
    batched = Product(
        "aten::bmm",
        TensorSpec((8, 2048, 2048), (2048 * 2048, 2048, 1), "bfloat16"),
        TensorSpec((8, 2048, 2047), (2048 * 2047, 2047, 1), "bfloat16"),
    )
    bias = TensorSpec((8191,), (1,), "bfloat16")

    assert is_padded(batched, gpu)
    assert is_padded(product(8192, 8191, 4096, op="aten::addmm", added=bias), gpu)


def test_a_question_holds_all_that_its_answer_depends_on() -> None:
    on_query = product(
        33, 35, 37, added=TensorSpec((35,), (1,), "bfloat16"), right_is_planned=True,
        allows_tf32=True,
    )  # fmt: skip

    assert Product.of(on_query.device_query()) == on_query


def test_questions_of_others_and_damaged_ones_have_no_answer() -> None:
    gpu = find_gpu("A100")

    assert padding_query_result("get_device_name", gpu) is None
    assert padding_query_result("pad_mm aten::mm bfloat16:4x", gpu) is None


def test_inductor_pads_and_the_time_falls(padded: neusight.Forecast) -> None:
    with inductor_config.patch(shape_padding=False):
        plain = run("A100")

    launched = ops(padded.recording.steps[-2])
    assert launched["aten::mm"] == 1
    assert any("_mm_" in name for name in launched)  # the copy with its margin
    assert padded.step_latency_us.median < 0.8 * plain.step_latency_us.median


def test_another_answer_is_another_recording(padded: neusight.Forecast) -> None:
    [device_query] = [item for item in padded.recording.queries if item[0].startswith("pad_mm")]
    assert device_query[1] == "True"

    other = neusight.Forecast(replace(padded.recording, queries=(device_query,)), padded.options)

    with pytest.raises(ForecastStateError, match="for pad_mm"):
        other.on("V100")
