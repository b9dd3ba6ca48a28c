"""Pointwise ops, fills and losses: what they read and write."""

from __future__ import annotations

from typing import Any

import pytest

from op_calls import call, kernels, names, spec


def test_a_broadcast_operand_is_read_once() -> None:
    (kernel,) = kernels(call("add", spec(64, 32), self=spec(64, 32), other=spec(32), alpha=1))

    assert (kernel.name, kernel.bytes_read, kernel.bytes_written) == ("add", 4 * 2080, 4 * 2048)
    assert kernel.layout == "scalar"


def test_floats_of_two_types_meet_element_by_element() -> None:
    halves, floats = spec(64, dtype="bfloat16"), spec(64)

    (mixed,) = kernels(call("mul", floats, self=halves, other=floats))
    (masked,) = kernels(call("where", halves, condition=spec(64, dtype="bool"), self=halves,
                             other=halves))  # fmt: skip

    assert (mixed.layout, masked.layout) == ("scalar", "contiguous")


def test_in_place_and_out_forms_move_the_same() -> None:
    x = spec(64, 32)
    plain = kernels(call("mul", x, self=x, other=x))

    assert kernels(call("mul_", x, self=x, other=x)) == plain
    assert kernels(call("mul", x, overload="out", self=x, other=x, out=x)) == plain


def test_a_scalar_tensor_on_the_host_is_not_read() -> None:
    (kernel,) = kernels(call("mul", spec(8), self=spec(8), other=spec(device="cpu")))

    assert kernel.bytes_read == 32


def test_a_masked_fill_copies_first_unless_in_place() -> None:
    x, mask = spec(8, 8), spec(8, 8, dtype="bool")

    assert names(call("masked_fill", x, self=x, mask=mask, value=0)) == [
        "memcpy_d2d",
        "masked_fill",
    ]
    assert names(call("masked_fill_", x, self=x, mask=mask, value=0)) == ["masked_fill"]


@pytest.mark.parametrize(
    ("exponent", "name"), [(2, "pow_by_products"), (0.5, "pow_by_products"), (2.5, "pow")]
)
def test_a_power_costs_its_logarithm_only_where_products_do_not_do(
    exponent: float, name: str
) -> None:
    tensor = spec(128)

    assert names(call("pow", tensor, self=tensor, exponent=exponent)) == [name]
    assert names(call("pow", tensor, self=tensor, exponent=tensor)) == ["pow"]


def test_values_put_by_a_masked_index_are_no_index() -> None:
    x, index = spec(8, 8), spec(8, dtype="int64")
    arguments: dict[str, Any] = {"self": x, "mask": spec(8, dtype="bool"), "indices": (index, None)}

    got = names(call("_unsafe_masked_index", x, **arguments, fill=0))
    put = names(call("_unsafe_masked_index_put_accumulate", x, **arguments, values=x))

    assert got == put == ["clamp", "index", "masked_fill"]


def test_random_numbers_are_written_and_scaled_by_tensors_in_another_pass() -> None:
    x, mean = spec(100), spec(100)

    (plain,) = kernels(call("normal_", x, self=x, mean=0.0, std=1.0))
    draw, scale = kernels(call("normal", x, overload="Tensor_float", mean=mean, std=1.0))

    assert (plain.name, plain.bytes_read, plain.bytes_written) == ("normal", 0, 400)
    assert (draw.bytes_read, scale.name, scale.bytes_read) == (0, "normal_transform", 800)


def test_drawing_in_place_reads_probabilities_alone() -> None:
    x = spec(100)

    def read(op: str, overload: str, p: object) -> int:
        (kernel,) = kernels(call(op, x, overload=overload, self=x, p=p))
        return kernel.bytes_read

    assert read("bernoulli_", "float", 0.5) == 0
    assert read("bernoulli_", "Tensor", x) == 400
    assert read("bernoulli", "p", 0.5) == 400


def test_dropout_at_inference_launches_nothing() -> None:
    x = spec(100)

    assert names(call("native_dropout", x, x, input_=x, p=0.1, train=False)) == []


def test_a_loss_is_a_pass_into_a_temporary_and_a_sum_unless_it_is_kept() -> None:
    """100 floats against 100 targets."""
    x = spec(100)

    each, mean = kernels(call("mse_loss", spec(), self=x, target=x, reduction=1))
    (kept,) = kernels(call("mse_loss", x, self=x, target=x, reduction=0))

    assert (each.bytes_read, each.bytes_written) == (800, 400)
    assert (mean.name, mean.bytes_read, mean.bytes_written) == ("mean", 400, 4)
    assert (kept.bytes_read, kept.bytes_written) == (800, 400)


def test_a_cross_entropy_of_logits_goes_op_by_op() -> None:
    x = spec(8, 10)

    def launched(**weights: Any) -> list[str]:
        return names(
            call("binary_cross_entropy_with_logits", spec(), self=x, target=x, reduction=2,
                 **weights)
        )  # fmt: skip

    plain = ["rsub", "mul", "log_sigmoid", "sub"]
    assert launched() == [*plain, "sum"]
    assert launched(weight=x) == [*plain, "mul", "sum"]
    assert launched(pos_weight=spec(10)) == ["sub", *plain, "mul", "add", "mul", "sum"]


def test_questions_to_a_tensor_are_answered_over_the_bus() -> None:
    x = spec(100)

    assert names(call("is_nonzero", True, self=spec())) == ["memcpy_d2h"]
    assert names(call("allclose", True, self=x, other=x))[-2:] == ["all", "memcpy_d2h"]
    assert names(call("equal", True, self=x, other=x)) == ["eq", "all", "memcpy_d2h"]
    assert names(call("equal", False, self=x, other=spec(5))) == []
