"""Pointwise ops, fills and losses: what they read and write."""

from __future__ import annotations

import pytest

from op_calls import call, kernels, names, spec


def test_a_broadcast_operand_is_read_once() -> None:
    (kernel,) = kernels(call("add", spec(64, 32), self=spec(64, 32), other=spec(32), alpha=1))

    assert (kernel.name, kernel.bytes_read, kernel.bytes_written) == ("add", 4 * 2080, 4 * 2048)
    assert kernel.layout == "strided"


def test_in_place_and_out_forms_move_the_same() -> None:
    x = spec(64, 32)
    plain = kernels(call("mul", x, self=x, other=x))

    assert kernels(call("mul_", x, self=x, other=x)) == plain
    assert kernels(call("mul", x, overload="out", self=x, other=x, out=x)) == plain


def test_a_scalar_tensor_on_the_host_is_not_read() -> None:
    (kernel,) = kernels(call("mul", spec(8), self=spec(8), other=spec(device="cpu")))

    assert kernel.bytes_read == 32


def test_dropout_writes_a_byte_of_mask() -> None:
    (kernel,) = kernels(
        call(
            "native_dropout",
            spec(100),
            spec(100, dtype="bool"),
            input_=spec(100),
            p=0.1,
            train=True,
        )
    )

    assert (kernel.bytes_read, kernel.bytes_written) == (400, 500)


def test_fills_only_write() -> None:
    (kernel,) = kernels(call("zero_", spec(100), self=spec(100)))

    assert (kernel.name, kernel.bytes_read, kernel.bytes_written) == ("fill", 0, 400)


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
    arguments = {"self": x, "mask": spec(8, dtype="bool"), "indices": (index, None)}

    got = names(call("_unsafe_masked_index", x, **arguments, fill=0))
    put = names(call("_unsafe_masked_index_put_accumulate", x, **arguments, values=x))

    assert got == put == ["clamp", "index", "masked_fill"]
