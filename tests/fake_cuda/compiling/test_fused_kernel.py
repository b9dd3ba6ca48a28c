"""The record of a kernel that Inductor wrote."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
import torch
from compiled_net import steady
from torch._inductor import config as inductor_config

import neusight
from neusight.fake_cuda.compiling import fused_kernel
from neusight.fake_cuda.compiling.fused_kernel import (
    FusedKernel,
    TouchedBuffer,
    loads_by_loop,
    num_instructions,
    num_operations,
)
from neusight.recording.recording import OpSignature
from places import require_golden

#: The parts of a softmax over rows too long for registers, as torch 2.13 writes it.
LOOPED = """
def triton_red_fused__softmax_0(in_ptr0, out_ptr2, xnumel, r0_numel):
    x0 = xindex
    for r0_offset in tl.range(0, r0_numel, R0_BLOCK):
        tmp0 = tl.load(in_ptr0 + (r0_1 + 9000*x0), r0_mask, other=0.0)
        tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
        tmp3 = triton_helpers.maximum(_tmp2, tmp1)
    tmp2 = triton_helpers.max2(_tmp2, 1)[:, None]
    for r0_offset in tl.range(0, r0_numel, R0_BLOCK):
        tmp4 = tl.load(in_ptr0 + (r0_1 + 9000*x0), r0_mask, other=0.0)
        tmp5 = tmp4.to(tl.float32)
        tmp6 = tmp4 - tmp2
        tl.store(out_ptr2 + (r0_1 + 9000*x0), tmp6, r0_mask)
"""


def launch(forecast: neusight.Forecast) -> OpSignature:
    [found] = [call.signature for call in steady(forecast) if "triton" in call.signature.op]
    return found


def compiled(function: Any, *shape: int) -> OpSignature:
    with neusight.forecast_on("H100") as forecast:
        run: Any = torch.compile(function)
        x = torch.randn(*shape, device="cuda")
        for _ in range(2):
            run(x)
            torch.cuda.synchronize()
            forecast.step()
    return launch(forecast)


def test_loops_that_read_an_argument_are_counted() -> None:
    assert loads_by_loop(LOOPED) == {"in_ptr0": 2}


def test_values_are_counted_once_each_without_loads_and_casts() -> None:
    assert num_operations(LOOPED) == 3  # two maxima, one difference
    assert num_operations("") == 1


def test_instructions_of_a_loop_are_those_of_each_element() -> None:
    assert num_instructions(LOOPED) == 2 + 3  # load, maximum; load, difference, store
    assert num_instructions(LOOPED.replace("tmp4 - tmp2", "tl_math.exp(tmp4)")) == 2 + 3 + 6
    assert num_instructions(LOOPED.replace("tmp4 - tmp2", "tmp4 / tmp2")) == 2 + 3 + 6


def test_each_line_of_triton_has_its_instructions() -> None:
    calls = [f"tmp1 = libdevice.{name}(tmp0)" for name in fused_kernel._INSTRUCTIONS]
    lines = [
        "tmp1 = tmp0 + tmp2", "tmp1 = tmp0 / tmp2", "tmp1 = (tmp0 / tmp2) / tmp3",
        "x1 = xindex // 64", "x0 = xindex % 64 // 8", "tmp1 = x0 // 2",
        "tmp1 = tl.load(in_ptr0 + (x0), None)", "tmp1 = tl.load(in_ptr0 + (x0 % 8), None)",
        "tmp1 = tl.load(in_ptr0 + (x0), tmp0, other=0.0)", "tl.store(out_ptr0 + (x0), tmp1, None)",
        "xindex = xoffset + tl.arange(0, XBLOCK)[:]", "tmp1 = tmp0.to(tl.float32)",
    ]  # fmt: skip

    require_golden(
        "triton_instructions.txt",
        [f"{num_instructions(line):3} {line}" for line in (*lines, *calls)],
    )


@pytest.mark.parametrize(
    ("divisor", "instructions"),
    [(4, 5 + 1 + 6), (6, 5 + 1 + 21), (8, 5 + 1 + 6)],
)
def test_what_is_the_same_for_four_neighbours_is_computed_once(
    divisor: int, instructions: int
) -> None:
    """A hyperbolic tangent, 21 with its value, of what a row holds."""
    source = f"""
    x1 = xindex // {divisor}
    tmp0 = tl.load(in_ptr0 + (x0), None)
    tmp1 = libdevice.tanh(x1)
"""

    assert num_instructions(source) == instructions


#: A product of a vector, activated first, with a matrix, as torch 2.13 writes it (shortened).
MATRIX_VECTOR = """
def triton_red_fused_mm_silu_0(in_ptr0, in_ptr1, out_ptr0, xnumel, r0_numel):
    tmp7 = tl.load(in_ptr2 + (0))
    x0 = xindex
    for r0_offset in tl.range(0, r0_numel, R0_BLOCK):
        tmp0 = tl.load(in_ptr0 + (r0_1 + 11008*tmp7), r0_mask, other=0.0)
        tmp1 = tl.load(in_ptr1 + (r0_1 + 11008*x0), r0_mask, other=0.0)
        tmp2 = libdevice.exp(tmp0)
        tmp3 = tmp2 + tmp0
        tmp4 = tmp3 * tmp1
        tmp5 = tl.broadcast_to(tmp4, [XBLOCK, R0_BLOCK])
        tmp6 = _tmp5 + tmp5
    tmp5 = tl.sum(_tmp5, 1)[:, None]
    tl.store(out_ptr0 + (x0), tmp5, None)
"""


def test_rows_of_a_cta_share_what_is_computed_of_their_columns_alone() -> None:
    alone = num_instructions(MATRIX_VECTOR)  # loads 1 + 1, exp 7, sum 1, product 1, sum 1

    assert alone == 12
    assert num_instructions(MATRIX_VECTOR, rows=8) == 3 + 2  # 9 of them are shared: 2 a row
    assert num_operations(MATRIX_VECTOR) - num_operations(MATRIX_VECTOR, rows=8) == 1


def activated_product(**settings: bool) -> OpSignature:
    def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return (torch.nn.functional.silu(x) * weight).sum(1)

    with neusight.forecast_on("A100") as forecast, inductor_config.patch(settings):
        weight = torch.randn(4096, 11008, device="cuda")
        x = torch.randn(11008, device="cuda")
        run: Any = torch.compile(product)
        for _ in range(2):
            run(x, weight)
            torch.cuda.synchronize()
            forecast.step()
    return launch(forecast)


def test_coordinate_descent_lets_a_cta_take_more_rows_at_once() -> None:
    plain = activated_product().by_name
    tuned = activated_product(coordinate_descent_tuning=True).by_name

    assert tuned["bytes_read"] == plain["bytes_read"]
    assert int(str(tuned["num_instructions"])) < int(str(plain["num_instructions"])) / 2


def test_a_quantized_weight_beside_a_table_is_no_index_into_it() -> None:
    def product(ids: torch.Tensor, table: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return (table[ids] * weight.to(table.dtype)).sum(1)

    with neusight.forecast_on("H100") as forecast:
        table = torch.randn(5000, 4096, device="cuda")
        weight = torch.zeros(1024, 4096, dtype=torch.int8, device="cuda")
        run: Any = torch.compile(product)
        for _ in range(2):
            run(torch.zeros(1, dtype=torch.long, device="cuda"), table, weight)
            torch.cuda.synchronize()
            forecast.step()
    read = int(str(launch(forecast).by_name["bytes_read"]))

    assert read == 8 + 4 * 4096 + 1024 * 4096  # the index, one row of the table, the weight


def test_a_load_behind_a_computed_condition_costs_more() -> None:
    plain = "    tmp3 = tl.load(in_ptr0 + (x0), xmask)"
    guarded = "    tmp3 = tl.load(in_ptr0 + (x0), tmp2 & xmask, other=0.0)"

    assert num_instructions(guarded) > num_instructions(plain) == 1


def test_a_condition_that_neighbours_share_is_computed_once_for_four_of_them() -> None:
    """Two matrices, of which the row says which is read, or the column. 12 for the indices, the
    choice and the store; 27 for the conditions and the loads that they guard."""
    source = """@triton.jit
    x1 = xindex // 4096
    x0 = xindex % 4096
    tmp0 = (PLACE).to(tl.int64)
    tmp1 = tl.full([1], 1024, tl.int64)
    tmp2 = tmp0 < tmp1
    tmp3 = tl.load(in_ptr0 + (x0 + 4096*x1), tmp2, other=0.0)
    tmp4 = tmp0 >= tmp1
    tmp5 = tl.load(in_ptr1 + (x0 + 4096*x1), tmp4, other=0.0)
    tmp6 = tl.where(tmp2, tmp3, tmp5)
    tl.store(out_ptr0 + (x2), tmp6, None)"""

    rows, columns = (num_instructions(source.replace("PLACE", name)) for name in ("x1", "x0"))

    assert (rows, columns) == (12 + -(-27 // 4), 12 + 27)


def test_an_argument_is_read_or_written_by_its_name() -> None:
    flags = [
        (buffer.is_read, buffer.is_written)
        for buffer in (TouchedBuffer(name, 1) for name in ("in_ptr0", "in_out_ptr0", "out_ptr1"))
    ]

    assert flags == [(True, False), (True, True), (False, True)]


def test_a_kernel_goes_over_the_product_of_its_sizes() -> None:
    assert FusedKernel("k", "reduction", (("x", 8), ("r0_", 16))).num_elements == 128


def test_a_chain_reads_and_writes_once() -> None:
    call = compiled(lambda x: torch.tanh(torch.relu(x) + 1) * 2, 1024, 1024).by_name

    assert call["kind"] == "pointwise"
    assert (call["bytes_read"], call["bytes_written"]) == (4 * 2**20, 4 * 2**20)
    assert call["origins"] == ("add.Tensor", "mul.Tensor", "relu.default", "tanh.default")


def test_a_slice_counts_what_is_touched() -> None:
    call = compiled(lambda x: x[:, :64] + x[:, 64:128], 512, 1024).by_name

    assert (call["bytes_read"], call["bytes_written"]) == (2 * 512 * 64 * 4, 512 * 64 * 4)


def looked_up(function: Any, ids: int) -> OpSignature:
    with neusight.forecast_on("H100") as forecast:
        table, weight = torch.randn(5000, 256, device="cuda"), torch.randn(3000, 256, device="cuda")
        run: Any = torch.compile(function)
        for _ in range(2):
            run(torch.zeros(ids, dtype=torch.long, device="cuda"), table, weight)
            torch.cuda.synchronize()
            forecast.step()
    return launch(forecast)


def test_a_row_looked_up_once_counts_once_however_often_it_is_used() -> None:
    signature = looked_up(lambda i, t, w: (t[i] * w).sum(-1), 1)

    assert signature.by_name["bytes_read"] == 8 + 256 * 4 + 3000 * 256 * 4


def test_rows_looked_up_count_and_not_the_table() -> None:
    signature = looked_up(lambda i, t, w: t[i].square().sum(-1), 64)

    assert signature.by_name["bytes_read"] == 64 * (8 + 256 * 4)


def test_of_a_small_table_no_more_is_read_than_it_holds() -> None:
    signature = looked_up(lambda i, t, w: t[:16][i].square().sum(-1), 64)

    assert signature.by_name["bytes_read"] == 64 * (8 + 256 * 4)


def test_indices_that_a_kernel_computes_are_not_taken_for_one() -> None:
    call = compiled(
        lambda x: torch.nn.functional.interpolate(x, scale_factor=0.5) * 2, 1, 4, 512, 512
    ).by_name

    assert call["bytes_read"] == 4 * 256 * 256 * 4


def test_a_norm_of_long_rows_reads_them_again() -> None:
    call = compiled(lambda x: torch.softmax(x, -1), 2048, 20_000).by_name

    assert call["kind"] == "reduction"
    assert call["numels"] == (2048, 20_000)
    assert call["bytes_read_again"] == call["bytes_read"] == 2048 * 20_000 * 4


def test_a_norm_of_short_rows_keeps_them() -> None:
    call = compiled(lambda x: torch.softmax(x, -1), 64, 512).by_name

    assert (call["kind"], call["bytes_read_again"]) == ("persistent_reduction", 0)


def test_sizes_of_a_pointwise_launch_are_its_own_where_they_change() -> None:
    """Its text has sizes of the tensors among its arguments, and none of a reduced row."""

    def rolled(x: torch.Tensor) -> torch.Tensor:
        return torch.roll(x * 2.0, 3, 0)

    with neusight.forecast_on("H100") as forecast:
        run: Any = torch.compile(rolled, dynamic=True)
        for rows in (64, 64, 96):
            run(torch.randn(rows, 128, device="cuda"))
            torch.cuda.synchronize()
            forecast.step()

    sizes: Any = launch(forecast).by_name["numels"]
    assert prod(sizes) == 96 * 128


def test_a_reduction_over_columns_says_so() -> None:
    assert compiled(lambda x: x.sum(1), 4, 4096, 8192).by_name["along_columns"] is True
    assert compiled(lambda x: x.sum(1), 8192, 4096).by_name["along_columns"] is False


def test_functions_cost_more_than_sums_and_costly_ones_more_than_cheap_ones() -> None:
    def cost(*names: str) -> int:
        lines = [f"tmp{n} = libdevice.{name}(tmp0)" for n, name in enumerate(names, start=1)]
        return num_instructions("\n".join(["@triton.jit", *lines])) - len(lines)

    assert cost("maximum") == 0
    cheap = ("exp", "sqrt", "rsqrt", "sqrt_rn", "log", "sigmoid", "erf", "log1p", "expm1")
    dear = ("tanh", "sin", "cos", "pow", "rand", "randn", "randint64", "welford_reduce")
    assert (cost(*cheap), cost(*dear)) == (89, 375)
    assert cost("rand4x", "randn4x") == cost("rand", "randn")
    assert cost("welford_combine") == cost("welford_reduce") > cost("online_softmax_reduce")
    assert cost("online_softmax_combine", "online_softmax_reduce", "associative_scan") == 100
    assert cost("div_floor_integer", "remainder_integer") == 20
