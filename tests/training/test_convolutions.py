"""Convolutions by pass as two sources write them, and a family fitted across folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from neusight.predictors.errors import DataError
from neusight.predictors.kernel import ConvolutionSize, Kernel
from neusight.predictors.learned.correction import family_of
from neusight.predictors.training import fit
from neusight.predictors.training.reading import read_dataset

CUDNN_HEAD = "gpu,dtype,n,c,h,w,k,filter_h,filter_w,pad_h,pad_w,stride_h,stride_w,pass,latency_us\n"
MIOPEN_HEAD = (
    "gpu,dtype,layout,pass,n,c,d,h,w,k,kernel_d,kernel_h,kernel_w,pad_d,pad_h,pad_w,stride_d,"
    "stride_h,stride_w,dilation_d,dilation_h,dilation_w,groups,solver,naive_only,latency_us\n"
)


def kernels_in(folder: Path) -> list[Kernel]:
    groups = read_dataset(folder, tables=("conv",)).groups
    return [kernel for group in groups for launch in group.launches for kernel in launch]


def test_cudnns_convolutions_are_the_fastest_ones(tmp_path: Path) -> None:
    rows = (
        "V100-SXM2-16GB (DGX-1),fp32,8,64,56,56,128,3,3,1,1,2,2,backward_weight,90.0\n"
        "V100-SXM2-16GB (DGX-1),fp16_tensor_core,8,64,56,56,128,1,1,0,0,1,1,forward,20.0\n"
        "GTX 1080 Ti,int8,8,64,56,56,128,1,1,0,0,1,1,forward,20.0\n"
    )
    (tmp_path / "conv.csv").write_text(CUDNN_HEAD + rows)

    dataset = read_dataset(tmp_path, tables=("conv",))
    half, full = kernels_in(tmp_path)

    assert full == Kernel.convolution(
        ConvolutionSize(8, 64, 128, 1, (56, 56), (28, 28), (3, 3), (2, 2), "weight_gradient"),
        dtype="float32",
        compute="fp32",
        layout="contiguous",
        variant="fastest",
    )
    assert (half.dtype, half.layout) == ("float16", "channels_last")
    assert [group.gpu.name for group in dataset.groups] == ["V100-SXM2-16GB"] * 2
    assert dataset.left_out == ("conv: 1 rows of GTX 1080 Ti: torch has none in int8",)


def test_miopens_have_groups_dilations_and_volumes(tmp_path: Path) -> None:
    rows = (
        "MI210,fp16,NCDHW,backward_input,2,8,4,16,16,8,3,3,3,1,2,2,1,1,1,1,2,2,8,S,False,50.0\n"
        "RX 6800 XT class,fp32,NHWC,forward,2,8,1,16,16,8,1,3,3,0,1,1,1,1,1,1,1,1,1,S,False,9.0\n"
        "MI210,fp32,NCHW,forward,2,8,1,2,2,8,1,5,5,0,0,0,1,1,1,1,1,1,1,S,False,9.0\n"
    )
    (tmp_path / "conv.csv").write_text(MIOPEN_HEAD + rows)

    volume, image = kernels_in(tmp_path)  # the third has no output

    assert volume.size == ConvolutionSize(
        2, 8, 8, 8, (4, 16, 16), (4, 16, 16), (3, 3, 3), (1, 1, 1), "data_gradient"
    )
    assert (volume.variant, volume.layout) == ("dilated", "contiguous")
    assert (image.variant, image.layout) == ("", "channels_last")


def test_a_family_of_two_tables_is_fitted_on_two_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = fit.RECIPES["convolution_fp32"]._replace(
        hidden=(8,), epochs=4, unseen_epochs=2, batch_rows=16, unseen_batch_rows=16, num_folds=2
    )
    monkeypatch.setitem(fit.RECIPES, "convolution_fp32", recipe)
    by_pass, forward = tmp_path / "by_pass", tmp_path / "forward"
    by_pass.mkdir()
    forward.mkdir()
    (by_pass / "conv.csv").write_text(
        CUDNN_HEAD
        + "".join(
            f"T4,fp32,8,{8 * width},28,28,64,3,3,1,1,1,1,backward_input,{40.0 * width}\n"
            for width in range(1, 41)
        )
    )
    head = "gpu,B,Input_Channel,Output_Channel,Kernel_Szie,Input_Size,Stride,Padding,latency_us\n"
    (forward / "conv_kernels.csv").write_text(
        head + "".join(f"P4,8,{8 * i},64,3,28,1,1,{30.0 * 1.3**i}\n" for i in range(1, 41))
    )

    with pytest.raises(DataError, match="holds none of the tables"):
        fit.fit_folders([tmp_path], tmp_path / "out", show_progress=False)
    alone = fit.fit_folders([by_pass], tmp_path / "out", show_progress=False)
    made = fit.fit_folders([by_pass, forward], tmp_path / "out", show_progress=False)

    assert alone == {}
    assert made["convolution_fp32"].gpus == ("P4", "T4")
    assert set(made["convolution_fp32"].provenance["mape"]) == {
        "P4 fp32 conv",
        "T4 fp32 backward_input NCHW",
    }
    assert (tmp_path / "out" / "convolution_fp32_unseen.npz").exists()


def written_convolutions(folder: Path, added_us: NDArray[np.float64]) -> Path:
    """Short and long convolutions in turn; a row takes 50 µs, its kernel and `added_us`."""
    lines = ["gpu,B,Input_Channel,Output_Channel,Kernel_Szie,Input_Size,Stride,Padding,latency_us"]
    for index, added in enumerate(added_us):
        batch, channels = (1 + index % 7, 8 + index % 90) if index % 2 else (64, 300)
        flops = 2 * batch * channels * 64 * 14 * 14 * 9
        lines.append(f"V100,{batch},{channels},64,3,14,1,1,{50.0 + flops / 1e8 + added}")
    (folder / "conv_kernels.csv").write_text("\n".join(lines))
    return folder


def test_what_the_overhead_grew_by_is_taken_off_the_labels(tmp_path: Path) -> None:
    order = np.linspace(0.0, 1.0, 600)

    table = written_convolutions(tmp_path, 40.0 * order + 200.0 * order**2)
    [group] = read_dataset(table, tables=("conv_kernels",)).groups

    assert 400 < len(group.launches) < 600  # half of the short ones say what it grew by
    expected = [50.0 + kernel.flops / 1e8 for [kernel] in group.launches]
    assert group.latency_us.tolist() == pytest.approx(expected, abs=1.0)


def test_a_table_of_few_short_convolutions_is_taken_as_it_is(tmp_path: Path) -> None:
    table = written_convolutions(tmp_path, np.linspace(0.0, 240.0, 60))
    [group] = read_dataset(table, tables=("conv_kernels",)).groups

    assert len(group.launches) == 60
    assert group.latency_us[-1] > 280.0


def test_each_shape_is_in_one_fold() -> None:
    shapes = np.arange(5000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)

    folds = fit.folds_of(shapes, 5)

    assert np.bincount(folds).tolist() == pytest.approx([1000] * 5, rel=0.15)


@pytest.mark.parametrize(
    ("gpu", "variant", "compute", "family"),
    [
        ("V100", "fastest", "fp32", "convolution_fp32"),
        ("V100", "", "fp32", None),  # a gradient by the heuristic's algorithm
        ("V100", "fastest", "fp16", None),  # on tensor cores
        ("P100", "fastest", "fp16", "convolution_fp32"),
        ("A100", "fastest", "fp32", None),
        ("MI210", "", "bf16", "convolution_miopen"),
    ],
)
def test_who_covers_a_gradient(gpu: str, variant: str, compute: str, family: str | None) -> None:
    from neusight.predictors.gpu import find_gpu

    dtype = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}[compute]
    size = ConvolutionSize(8, 64, 64, 1, (28, 28), (28, 28), (3, 3), (1, 1), "data_gradient")
    kernel = Kernel.convolution(size, dtype=dtype, compute=compute)
    if variant:
        kernel = Kernel.convolution(size, dtype=dtype, compute=compute, variant="fastest")

    assert family_of(kernel, find_gpu(gpu)) == family
