"""Tables of profiled kernels: calls made again, totals of programs, and what is left out."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from neusight.integrations.cli.main import main
from neusight.integrations.profiles.profiled_kernels import (
    ProfiledCall,
    is_profiled,
    profiled_dataset,
    read_profiled,
    totals_table,
)
from neusight.predictors.errors import DataError
from neusight.predictors.gpu import GPU, find_gpu
from neusight.predictors.kernel import AttentionSize, ConvolutionSize, GemmSize, Kernel
from neusight.predictors.predictor import Estimate
from places import SHARED

BF16 = "c10::BFloat16"


def row(op: str, dims: list[Any], values: list[str], **others: Any) -> dict[str, Any]:
    """A row of two-byte tensors, contiguous, and scalars where `values` has a text."""
    types = [BF16 if size else "Scalar" for size in dims]
    known = {
        "gpu": "NVIDIA H100 80GB HBM3",
        "program": "net",
        "op": op,
        "input_dims": json.dumps(dims),
        "input_strides": json.dumps([strides_of(size) for size in dims]),
        "input_types": json.dumps(types),
        "concrete_inputs": json.dumps(values),
        "kernel_name": "some_kernel",
        "count": 3,
        "median_us": 8.0,
    }
    return known | others


def strides_of(size: list[int]) -> list[int]:
    return [math.prod(size[axis + 1 :]) for axis in range(len(size))]


def written(folder: Path, *rows: dict[str, Any]) -> Path:
    with (folder / "h100.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return folder


GELU = row("aten::gelu", [[4, 1024], []], ["", "none"])


def test_kernels_of_one_call_add_up_and_count_once(tmp_path: Path) -> None:
    twice = [GELU, GELU | {"kernel_name": "another", "median_us": 2.0}]

    calls, left_out = read_profiled(written(tmp_path, *twice))

    assert [(call.program, call.op, call.measured_us, call.count) for call in calls] == [
        ("net", "aten::gelu", 10.0, 3)
    ]
    assert [kernel.name for kernel in calls[0].kernels] == ["gelu"]
    assert left_out == []


def test_a_helper_that_runs_several_times_a_call_does_not_count_the_calls(tmp_path: Path) -> None:
    """MIOpen transposes image, filter and result by kernels of one name."""
    main_kernel = GELU | {"kernel_name": "igemm_fwd", "count": 10, "median_us": 20.0}
    helper = GELU | {"kernel_name": "batched_transpose", "count": 30, "median_us": 15.0}

    ((call,), _) = read_profiled(written(tmp_path, main_kernel, helper))

    assert (call.count, call.measured_us) == (10, 65.0)


def test_miopens_bias_is_an_operator_of_its_own(tmp_path: Path) -> None:
    convolution = row(
        "aten::miopen_convolution",
        [[4, 64, 28, 28], [64, 64, 3, 3], [64], *[[]] * 6],
        ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "1", "False", "False"],
        gpu="AMD Instinct MI300X",
    )

    ((call,), left_out) = read_profiled(written(tmp_path, convolution))

    assert left_out == []
    [kernel] = call.kernels  # MIOpen's own, without the transforms that cuDNN makes
    assert (kernel.name, kernel.layout) == ("convolution_forward", "contiguous")


def test_a_program_has_the_kernels_of_the_torch_that_ran_it(tmp_path: Path) -> None:
    """Unaligned rows are copied to shared memory from torch 2.7 on."""
    softmax = row("aten::_softmax", [[64, 3137], [], []], ["", "-1", "False"])
    folder = written(tmp_path, softmax, softmax | {"program": "older"})

    calls, _ = read_profiled(folder, torch_versions={"older": "2.6"})

    assert {call.program: call.kernels[0].layout for call in calls} == {
        "net": "contiguous",
        "older": "scalar",
    }


def test_a_librarys_own_operators_are_called_as_torch_calls_them(tmp_path: Path) -> None:
    no = ["False", "False", "True"]
    convolution = row(
        "aten::cudnn_convolution",
        [[4, 3, 224, 224], [768, 3, 16, 16], *[[]] * 7],
        ["", "", "[0, 0]", "[16, 16]", "[1, 1]", "1", *no],
    )
    states = [4, 197, 12, 64]
    attention = row(
        "aten::_flash_attention_forward",
        [states, states, states, *[[]] * 8],
        ["", "", "", "", "", "197", "197", "0.", "False", "False", "0.125"],
    )

    calls, left_out = read_profiled(written(tmp_path, convolution, attention))

    assert left_out == []
    sizes = [max(call.kernels, key=lambda kernel: kernel.flops).size for call in calls]
    assert isinstance(sizes[0], ConvolutionSize)
    assert (sizes[0].out_channels, sizes[0].output) == (768, (14, 14))
    assert isinstance(sizes[1], AttentionSize)
    assert (sizes[1].heads, sizes[1].seq_q, sizes[1].head_dim) == (12, 197, 64)


def test_what_cannot_be_called_again_is_named_with_its_time(tmp_path: Path) -> None:
    unknown = row("aiter::_groupnorm_run", [[4, 8]], [""])
    stranger = GELU | {"gpu": "Some Card 9000"}

    calls, left_out = read_profiled(written(tmp_path, GELU, unknown, stranger))

    assert len(calls) == 1
    assert any("aiter::_groupnorm_run" in line and "0.02 ms" in line for line in left_out)
    assert any("Some Card 9000 is not known" in line for line in left_out)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("input_dims", "[[4, 1024"),
        ("input_dims", "{}"),
        ("median_us", "-1"),
        ("median_us", "fast"),
        ("count", "0"),
        ("median_us", "nan"),
    ],
)
def test_a_damaged_row_is_named_by_its_line(tmp_path: Path, column: str, value: str) -> None:
    with pytest.raises(DataError, match=r"h100\.csv, line 3"):
        read_profiled(written(tmp_path, GELU, GELU | {column: value}))


def test_other_tables_are_not_taken_for_these(tmp_path: Path) -> None:
    (tmp_path / "gemm.csv").write_text("gpu,m,n,k\n")

    assert not is_profiled(tmp_path)


class Constant:
    """A predictor by which any kernel takes two microseconds."""

    name = "constant"

    def predict(self, kernels: Sequence[Kernel], gpu: GPU) -> list[Estimate]:
        return [Estimate(2.0, 2.0, 2.0, "memory", "physics", self.name) for _ in kernels]


def test_the_kernel_times_of_a_program_add_up_in_milliseconds() -> None:
    relu = Kernel.elementwise("relu", 8, dtype="float32")

    def call(program: str, us: float, count: int, kernels: int = 1) -> ProfiledCall:
        return ProfiledCall("H100", find_gpu("H100"), program, "op", (relu,) * kernels, us, count)

    calls = [call("net", 3.0, 1000), call("net", 5.0, 400, kernels=2), call("a", 4.0, 1000)]

    assert totals_table(calls, Constant()).splitlines() == [
        f"{'program':<52}  measured ms  forecast ms   error",
        f"{'H100 a':<52}         4.00         2.00  -50.0%",
        f"{'H100 net':<52}         5.00         3.60  -28.0%",
    ]


def test_the_command_shows_programs_and_operators(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mm = row("aten::mm", [[512, 256], [256, 128]], ["", ""], program="other")

    assert main(["evaluate", "--data", str(written(tmp_path, GELU, mm))]) == 0

    shown = capsys.readouterr().out
    assert "NVIDIA H100 80GB HBM3 net" in shown
    assert "NVIDIA H100 80GB HBM3 other" in shown
    assert " gelu " in shown


@pytest.mark.skipif(not SHARED.exists(), reason="the shared measurements are absent")
def test_the_shared_profiles_are_read_almost_whole() -> None:
    dataset = profiled_dataset(SHARED / "data" / "profiled_kernels")

    assert {group.gpu.name for group in dataset.groups} == {"H100-SXM5-80GB", "MI300X"}
    assert sum(len(group.launches) for group in dataset.groups) > 400
    products = [group for group in dataset.groups if group.phase_or_op == "addmm"]
    assert all(
        any(isinstance(kernel.size, GemmSize) for kernel in launch)
        for group in products
        for launch in group.launches
    )
