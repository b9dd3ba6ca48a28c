"""The trained correction: what it covers, what it leaves alone, and the bounds that stay."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from neusight.predictors import Kernel, KernelClass, Tiled, find_gpu, gpus, predict
from neusight.predictors.errors import WeightsError
from neusight.predictors.kernel import (
    OUTER_SCALED,
    RECURRENT,
    TENSOR_SCALED,
    ConvolutionSize,
    Layout,
    RowsSize,
    Variant,
)
from neusight.predictors.learned.correction import (
    FAMILIES,
    UNSEEN,
    Adjustment,
    NetworkFolder,
    Trained,
    architecture_of,
    family_of,
    knowledge_of,
    network_text,
    shipped,
)
from neusight.predictors.learned.features import BLOCK_SCALED
from neusight.predictors.learned.network import Network
from neusight.predictors.learned.radeon import RADEON_SPREAD
from neusight.predictors.physics.convolution import with_issue_of_convolutions
from neusight.predictors.physics.physical_time import PhysicalTime
from neusight.predictors.physics.roofline import flop_roofline_us
from places import ROOT

GROUPS = ConvolutionSize(8, 64, 64, 64, (28, 28), (28, 28), (3, 3), (1, 1), "forward")
WEIGHTS = ROOT / "predictors" / "weights"


def test_measured_layouts_are_trained_and_the_others_stay_physics() -> None:
    def origin(kernel: Kernel) -> str:
        return predict([kernel], "H100")[0].origin

    assert origin(Kernel.gemm(4096, 4096, 4096)) == "trained"
    assert origin(Kernel.gemm(4096, 4096, 4096, layout="nn")) == "physics"
    assert origin(Kernel.gemm(4096, 4096, 4096, layout="tn")) == "physics"
    assert origin(Kernel.gemm(4096, 4096, 4096, dtype="float32")) == "physics"
    assert origin(Kernel.gemm(4096, 4096, 4096, dtype="float32", compute="tf32")) == "physics"
    assert origin(Kernel.gemm(64, 64, 64, batch=8)) == "physics"
    assert origin(Kernel.gemm(64, 64, 64, dtype="bfloat16", batch=8, layout="nn")) == "physics"
    assert origin(Kernel.gemm(4096, 4096, 4096, dtype="float8_e4m3fn")) == "trained"


def test_fp32_products_are_trained_where_they_were_measured() -> None:
    kernel = Kernel.gemm(4096, 4096, 4096, dtype="float32")

    origins = {name: predict([kernel], name)[0].origin for name in ("V100", "A100", "H100", "L4")}

    assert origins == {"V100": "trained", "A100": "trained", "H100": "physics", "L4": "physics"}


def test_convolutions_are_trained_where_they_were_measured() -> None:
    measured = ConvolutionSize(8, 64, 64, 1, (28, 28), (28, 28), (3, 3), (1, 1), "forward")
    others = [
        measured._replace(kernel=(1, 1)),
        measured._replace(stride=(2, 2), output=(14, 14)),
        measured._replace(direction="data_gradient"),
        measured._replace(groups=2),
    ]

    origins = [
        predict([Kernel.convolution(size, dtype="float32")], "T4")[0].origin
        for size in (measured, *others)
    ]

    assert origins == ["trained", *["physics"] * len(others)]


@pytest.mark.parametrize("compute", ["tf32", "fp16", "bf16"])
def test_images_are_trained_on_hoppers_tensor_cores(compute: str) -> None:
    dtype = {"tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}[compute]
    image = ConvolutionSize(8, 64, 64, 1, (28, 28), (28, 28), (3, 3), (1, 1), "forward")
    volume = image._replace(input=(8, 28, 28), output=(8, 28, 28), kernel=(3,) * 3, stride=(1,) * 3)

    def family(gpu: str, size: ConvolutionSize = image, unit: str = compute) -> str | None:
        return family_of(Kernel.convolution(size, dtype=dtype, compute=unit), find_gpu(gpu))

    assert {family(name) for name in ("H100", "H100-PCIE", "H200")} == {"convolution_hopper"}
    assert {family(name) for name in ("A100", "L40S", "B200")} == {None}
    assert family("H100", size=volume) is None
    assert family("H100", size=image._replace(groups=2)) == "convolution_groups"
    assert family("H100", unit="fp32") in (None, "convolution_fp32")


def test_images_under_an_older_cudnn_are_priced_by_physics() -> None:
    """The network was fitted to a newer cuDNN's kernels; patches take longer with cuDNN 9.1's."""
    patches = ConvolutionSize(8, 3, 768, 1, (224, 224), (14, 14), (16, 16), (16, 16), "forward")
    kernel = Kernel.convolution(patches, dtype="bfloat16", compute="bf16")

    assert family_of(kernel, find_gpu("H100")) == "convolution_hopper"
    assert family_of(replace(kernel, variant="cudnn_9_1"), find_gpu("H100")) is None


def test_attention_is_trained_where_its_library_was_measured() -> None:
    def origin(name: Variant, gpu_name: str, *, backward: bool = False) -> str:
        kernel = Kernel.attention(
            4, 16, 16, 1024, 1024, 64, causal=True, dtype="bfloat16", name=name, backward=backward
        )
        return predict([kernel], gpu_name)[0].origin

    assert origin("flash_attention", "A100") == "trained"
    assert origin("flash_attention", "H100") == "physics"
    assert origin("flash_attention_3", "H100") == "trained"
    assert origin("cudnn_attention", "B200") == "trained"
    assert origin("efficient_attention", "A100") == "physics"
    assert origin("flash_attention", "A100", backward=True) == "physics"


def test_collectives_are_trained_on_switched_links_within_a_host() -> None:
    def origin(gpu_name: str, ranks: int = 8, nodes: int = 1) -> str:
        kernel = Kernel.collective("all_reduce", 10**7, ranks, num_nodes=nodes)
        return predict([kernel], gpu_name)[0].origin

    assert origin("H100") == "trained"
    assert origin("H100", ranks=16, nodes=2) == "physics"
    assert origin("L40S") == "physics"


def test_unmeasured_layouts_have_wider_intervals() -> None:
    def width(layout: str) -> float:
        [found] = predict([Kernel.gemm(4096, 4096, 4096, layout=layout)], "H100")  # type: ignore[arg-type]  # a literal
        return found.high_us / found.latency_us

    assert width("nn") > width("nt")
    assert width("tn") > 1.2


def test_the_interval_widens_from_known_over_unseen_to_unmeasured_gpus() -> None:
    def width(name: str) -> float:
        [found] = predict([Kernel.gemm(4096, 4096, 4096)], name)
        return found.high_us / found.latency_us

    assert width("H100") < width("H100-PCIE")


def test_unseen_gpus_are_distinguished_by_architecture_and_constants() -> None:
    general = NetworkFolder(WEIGHTS)["gemm_16bit" + UNSEEN]
    fitted = replace(find_gpu("H100"), name="H123", constants_origin="fitted on something")
    prior = replace(fitted, constants_origin="prior")
    new = replace(fitted, compute_capability=(13, 0))

    rows = [knowledge_of(item, general) for item in (fitted, prior, new)]

    assert rows == [0, 1, 2]
    assert (np.diff(general.spreads[[0, 1, 3]], axis=0) >= 0).all()


def test_what_does_not_carry_over_to_unseen_gpus_stays_physics() -> None:
    softmax = Kernel.rows(
        KernelClass.SOFTMAX,
        "softmax",
        4096,
        2048,
        dtype="float32",
        bytes_read=2**25,
        bytes_written=2**25,
    )

    seen, unseen = (predict([softmax], name)[0] for name in ("V100-PCIE-32GB", "L4"))

    assert (seen.origin, unseen.origin) == ("trained", "physics")
    [plain] = Tiled(correction=None).predict([softmax], find_gpu("L4"))
    assert unseen.latency_us == plain.latency_us


def test_block_scaled_products_stay_physics_on_other_architectures() -> None:
    kernel = Kernel.gemm(4096, 4096, 4096, dtype="float8_e4m3fn", name=BLOCK_SCALED)

    origins = [predict([kernel], name)[0].origin for name in ("H200", "H100-NVL", "RTX-5090")]

    assert origins == ["trained", "trained", "physics"]


def test_gpus_are_alike_by_architecture() -> None:
    names = ("P4", "V100", "T4", "A100", "A10", "L4", "H100", "B200", "RTX-5090", "MI210")

    found = [architecture_of(find_gpu(name)) for name in names]

    assert found == ["Pascal", "Volta", "Turing", "Ampere", "Ampere", "Ada", "Hopper",
                     "Blackwell", "Blackwell RTX", "AMD"]  # fmt: skip


@pytest.mark.parametrize(("size", "size_class"), [(1024, 0), (2048, 1), (4096, 2), (8192, 3)])
def test_the_interval_is_that_of_the_class_of_its_duration(size: int, size_class: int) -> None:
    network = NetworkFolder(WEIGHTS)["gemm_16bit"]
    of_gpu = network.spreads[network.gpus.index("H100-SXM5-80GB")]

    [found] = predict([Kernel.gemm(size, size, size)], "H100")

    classes = (0.0, 10.0, 100.0, 1000.0, math.inf)
    assert classes[size_class] < found.latency_us < classes[size_class + 1]
    assert found.high_us / found.latency_us - 1 == pytest.approx(of_gpu[size_class], abs=1e-3)


def test_shapes_outside_the_training_are_reported() -> None:
    inside, outside = predict([Kernel.gemm(512, 4096, 4096), Kernel.gemm(2**24, 4096, 512)], "H100")

    assert (inside.in_range, outside.in_range) == (True, False)
    assert outside.high_us / outside.latency_us > inside.high_us / inside.latency_us


@settings(max_examples=80)
@given(
    st.sampled_from(gpus()),
    st.integers(0, 2**31),
    st.integers(0, 2**20),
    st.integers(0, 2**20),
    st.sampled_from(["bfloat16", "float16"]),
)
@example("H100-NVL-94GB", 16, 17, 0, "bfloat16")
def test_corrected_times_stay_finite_and_above_the_roofline(
    name: str, m: int, n: int, k: int, dtype: str
) -> None:
    kernel = Kernel.gemm(m, n, k, dtype=dtype)

    [found] = predict([kernel], name)

    assert math.isfinite(found.latency_us) and math.isfinite(found.high_us)
    assert found.latency_us >= flop_roofline_us(kernel, find_gpu(name)) * (1 - 1e-9) - 1e-3
    assert 0 < found.low_us <= found.latency_us <= found.high_us


@given(
    st.sampled_from(["H100", "B200", "A100", "V100", "T4", "P100", "RTX 4090"]),
    st.sampled_from(["float32", "bfloat16"]),
    st.integers(1, 2048),
    st.integers(1, 64),
)
@settings(max_examples=60)
def test_no_network_makes_a_kernel_shorter_than_one_that_does_nothing(
    name: str, dtype: str, batch: int, edge: int
) -> None:
    gpu = find_gpu(name)
    kernel = Kernel.gemm(edge, edge, edge, batch=batch, dtype=dtype, layout="nn")

    [by_physics] = Tiled(correction=None).predict([kernel], gpu)
    [estimate] = Tiled().predict([kernel], gpu)

    assert estimate.latency_us >= 0.999 * min(gpu.floor_us, by_physics.latency_us)


def test_without_a_correction_the_physics_is_left_alone() -> None:
    kernel = Kernel.gemm(4096, 4096, 4096)

    [plain] = Tiled(correction=None).predict([kernel], find_gpu("H100"))

    assert plain.origin == "physics"
    assert not plain.in_range


def quantised(rows: int) -> Kernel:
    return replace(
        Kernel.elementwise("quant_fp8_static", 64, dtype="bfloat16"), size=RowsSize(rows, 64)
    )


@pytest.mark.parametrize(
    ("kernel", "gpu", "family"),
    [
        (Kernel.gemm(64, 64, 64), "MI210", None),
        (Kernel.elementwise("add", 100, dtype="bfloat16"), "H100", None),
        (Kernel.gemm(0, 64, 64), "H100", None),
        (quantised(1), "H100", "quantisation"),
        (quantised(0), "H100", None),
        (quantised(1), "MI210", None),
    ],
)
def test_families_are_of_what_was_measured(kernel: Kernel, gpu: str, family: str | None) -> None:
    assert family_of(kernel, find_gpu(gpu)) == family


#: A family, a GPU, and a kernel that is of it there: at the bounds of what was measured.
OF_FAMILIES = """\
gemm_16bit A100 gemm(1, 64, 64)
gemm_16bit A100 gemm(1, 1, 1)
None A100 gemm(64, 64, 0)
None A100 gemm(64, 64, 64, batch=2)
None A100 gemm(64, 64, 64, dtype="float64")
gemm_fp32 V100 gemm(64, 64, 64, dtype="float32")
gemm_fp32_pascal P100 gemm(64, 64, 64, dtype="float32")
gemm_fp32_amd MI210 gemm(64, 64, 64, dtype="float32")
None V100 gemm(64, 0, 64, dtype="float32")
gemm_fp32 V100 gemm(64, 64, 64, batch=3, dtype="float32")
None V100 gemm(64, 1, 64, dtype="float32")
None A100 gemm(64, 64, 64, dtype="float32", compute="tf32")
None RTX-3060 gemm(64, 64, 64)
gemm_16bit L40S gemm(64, 64, 64)
None RTX-4090 gemm(64, 64, 64)
None V100 gemm(64, 64, 64)
gemm_fp8 H100 gemm(64, 64, 64, dtype="float8_e4m3fn")
None H100 gemm(64, 64, 64, dtype="float8_e4m3fn", name=TENSOR_SCALED)
None H100 gemm(64, 64, 64, dtype="float8_e4m3fn", name=OUTER_SCALED)
gemm_fp8 B200 gemm(64, 64, 64, dtype="float8_e4m3fn", name=OUTER_SCALED)
None H100 gemm(64, 64, 64, dtype="int8")
collective H100 collective("all_reduce", 1, 2)
None H100 collective("all_reduce", 0, 2)
None H100 collective("all_reduce", 1, 1)
collective H100 collective("all_reduce", 1, 8)
None H100 collective("all_reduce", 1, 9)
None H100 collective("broadcast", 1, 8)
collective A100 collective("all_to_all", 1, 8)
None T4 collective("all_reduce", 1, 8)
attention_prefill A100 att("flash_attention", 2, 4, 4, 9, 9, 64)
attention_decode A100 att("flash_attention", 2, 4, 4, 1, 9, 64)
None H100 att("flash_attention", 2, 4, 4, 9, 9, 64)
attention_prefill H100 att("flash_attention_3", 2, 4, 4, 2, 9, 64)
attention_prefill H100 att("flash_attention_3", 2, 4, 4, 2, 1, 1)
None H100 att("flash_attention_3", 2, 4, 4, 2, 0, 64)
None H100 att("flash_attention_3", 2, 4, 4, 2, 9, 64, backward=True)
None H100 att("flash_attention_3", 2, 4, 4, 2, 9, 64, head_dim_v=32)
attention_prefill B200 att("cudnn_attention", 2, 4, 4, 2, 9, 64)
None H100 att("cudnn_attention", 2, 4, 4, 2, 9, 64)
convolution_hopper H100 conv()
None H100 conv(batch=0)
convolution_hopper H100 conv(batch=1, in_channels=1, out_channels=1, input=(1, 1), output=(1, 1))
None H100 conv(output=(0, 9))
None H100 conv(variant="cudnn_9_1")
convolution_groups H100 conv(groups=2)
None H100 conv(groups=2, kernel=(3, 5))
convolution_groups A100 conv(groups=2)
None L40S conv(groups=2)
None V100 conv(groups=2)
None A100 conv()
convolution_fp32 A100 conv("float32", "fp32")
None A100 conv("float32", "fp32", direction="data_gradient")
None A100 conv("float32", "fp32", kernel=(5, 5))
None A100 conv("float32", "fp32", stride=(2, 2))
convolution_fp32 P100 conv("float32", "fp32", variant="fastest")
convolution_fp32 A100 conv("float32", "fp32", variant="fastest")
None V100 conv(variant="fastest")
convolution_volta V100 conv(variant="fastest", layout="channels_last")
None T4 conv(variant="fastest", layout="channels_last")
None P100 conv("float32", "fp32", variant="dilated")
None P100 conv("float32", "fp32", kernel=(3, 3, 3), stride=(1, 1, 1))
None H100 conv("float32", "fp32", kernel=(3, 3, 3), stride=(1, 1, 1))
convolution_miopen MI300X conv()
None MI300X conv("float64")
"""


def test_what_was_measured_ends_at_these_sizes_forms_and_gpus() -> None:
    image = ConvolutionSize(2, 8, 8, 1, (9, 9), (9, 9), (3, 3), (1, 1), "forward")

    def conv(
        dtype: str = "float16", compute: str = "", variant: Variant = "",
        layout: Layout = "contiguous", **changed: Any,
    ) -> Kernel:  # fmt: skip
        size = image._replace(**changed)
        return Kernel.convolution(
            size, dtype=dtype, compute=compute or None, layout=layout, variant=variant
        )

    def att(name: Variant, *sizes: int, **more: Any) -> Kernel:
        return Kernel.attention(*sizes, causal=False, dtype="float16", name=name, **more)

    names = {
        "gemm": Kernel.gemm, "collective": Kernel.collective, "conv": conv, "att": att,
        "TENSOR_SCALED": TENSOR_SCALED, "OUTER_SCALED": OUTER_SCALED,
    }  # fmt: skip
    found = []
    for row in OF_FAMILIES.splitlines():
        _, gpu, text = row.split(" ", 2)
        found.append(f"{family_of(eval(text, names), find_gpu(gpu))} {gpu} {text}")

    assert found == OF_FAMILIES.splitlines()


@pytest.mark.parametrize(
    ("kernel", "gpu", "text"),
    [
        (
            Kernel.gemm(64, 64, 64),
            "H100",
            "the network gemm_16bit was fitted to .* of this GPU among others",
        ),
        (Kernel.gemm(64, 64, 64), "L4", "of other GPUs than this one, .*% off in the median group"),
        (
            Kernel.convolution(GROUPS, dtype="bfloat16"),
            "H100",
            "convolution_groups .* rows of this GPU, ",
        ),
        (Kernel.gemm(64, 64, 64), "MI210", "^$"),
    ],
)
def test_a_network_says_what_it_was_fitted_to(kernel: Kernel, gpu: str, text: str) -> None:
    assert re.search(text, network_text(kernel, find_gpu(gpu)))


def test_shipped_weights_are_small_complete_and_say_where_they_come_from() -> None:
    files = sorted(WEIGHTS.glob("*.npz"))
    networks = NetworkFolder(WEIGHTS)

    assert {path.stem for path in files} == set(networks)
    assert sum(path.stat().st_size for path in files) < 3_000_000
    assert set(FAMILIES) <= set(networks)
    assert set(networks) <= {family + kind for family in FAMILIES for kind in ("", UNSEEN)}
    for name, network in networks.items():
        assert network.features == FAMILIES[name.removesuffix(UNSEEN)].names
        assert {"data", "commit", "date", "seed", "mape"} <= set(network.provenance)


def test_a_network_is_read_once_and_when_it_is_asked_for(tmp_path: Path) -> None:
    for name in ("gemm_16bit", "gemm_16bit_unseen"):
        shutil.copy(WEIGHTS / f"{name}.npz", tmp_path)
    (tmp_path / "gemm_fp8.npz").write_bytes(b"damaged")
    networks = NetworkFolder(tmp_path)

    first, second = networks["gemm_16bit"], networks["gemm_16bit"]

    assert first is second
    assert sorted(networks) == ["gemm_16bit", "gemm_16bit_unseen", "gemm_fp8"]
    assert len(networks) == 3
    assert networks.get("rows_fp32") is None
    with pytest.raises(WeightsError, match=r"gemm_fp8\.npz cannot be read"):
        networks["gemm_fp8"]


def test_a_price_by_physics_reads_no_network() -> None:
    code = (
        "import sys; from neusight.predictors import Kernel, predict;"
        "sys.addaudithook(lambda event, args: event == 'open' and print(args[0]));"
        "predict([Kernel.elementwise('add', 100, dtype='bfloat16')], 'H100')"
    )

    command = [sys.executable, "-c", code]
    opened = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert ".json" in opened
    assert ".npz" not in opened


@pytest.mark.parametrize("kernel_class", [KernelClass.ELEMENTWISE, KernelClass.SOFTMAX])
def test_what_no_network_covers_is_priced_by_physics(kernel_class: KernelClass) -> None:
    kernel = Kernel.rows(
        kernel_class, "x", 64, 64, dtype="bfloat16", bytes_read=8192, bytes_written=8192
    )

    [found] = predict([kernel], "H100")

    assert found.origin == "physics"


def test_a_step_of_a_recurrent_network_is_no_product_of_the_tables() -> None:
    """cuDNN's kernels keep the weights: on T4 the network made 37 us of a step that takes 5."""
    step = Kernel.gemm(10, 768, 256, dtype="float32", name=RECURRENT)

    assert family_of(step, find_gpu("T4")) is None
    assert family_of(replace(step, name="gemm"), find_gpu("T4")) == "gemm_fp32"


@pytest.mark.parametrize("name", ["RTX-3090", "RTX-4070", "RTX-5090", "A10G", "L40", "H20"])
def test_cards_of_half_rate_are_priced_without_what_full_rate_taught(name: str) -> None:
    product = Kernel.gemm(4096, 4096, 4096, dtype="bfloat16")

    assert family_of(product, find_gpu(name)) is None
    assert family_of(product, find_gpu("A40")) == "gemm_16bit"
    assert family_of(product, find_gpu("RTX-6000-Ada")) == "gemm_16bit"


def test_an_fp8_product_with_one_scale_is_not_taken_for_a_serving_kernel() -> None:
    by_row = Kernel.gemm(4096, 4096, 4096, dtype="float8_e4m3fn", name="scaled_gemm_by_row")

    assert family_of(by_row, find_gpu("H100")) == "gemm_fp8"
    assert family_of(replace(by_row, name=TENSOR_SCALED), find_gpu("H100")) is None


def priced_on(name: str, *, sustained: bool) -> tuple[Adjustment, PhysicalTime]:
    size = ConvolutionSize(16, 64, 64, 1, (56, 56), (56, 56), (3, 3), (1, 1), "forward")
    kernel, gpu = Kernel.convolution(size, dtype="float32"), find_gpu(name)
    timings = Tiled(sustained=sustained, correction=None).timings([kernel], gpu)
    [adjustment] = shipped(sustained=sustained).factors([kernel], gpu, timings)
    assert adjustment is not None
    return adjustment, timings[0]


def test_a_busy_card_of_rdna_2_is_not_at_the_clocks_of_the_database() -> None:
    """data/miopen_conv: 0.87 ms for a batch of 64, at a fifth of what longer calls reach."""
    cold, _ = priced_on("RX 6800 XT", sustained=False)
    warm, _ = priced_on("RX 6800 XT", sustained=True)

    assert warm.factor < 0.7 * cold.factor
    assert (warm.trained, cold.trained) == (False, True)
    assert warm.spread == RADEON_SPREAD


def test_cards_of_data_centres_keep_their_rows_in_a_burst_and_sustained() -> None:
    burst, physical = priced_on("MI210", sustained=False)
    sustained, _ = priced_on("MI210", sustained=True)

    assert (burst.trained, sustained.trained) == (True, True)
    assert sustained.factor == pytest.approx(burst.factor, rel=0.2)
    assert physical.time_us > 0


def test_convolutions_fill_one_issue_slot_of_rdna_3() -> None:
    gpu = find_gpu("RX 7600")

    assert with_issue_of_convolutions(gpu).peak_tflops["fp32"] == gpu.peak_tflops["fp32"] / 2
    assert with_issue_of_convolutions(find_gpu("RX 6800")) == find_gpu("RX 6800")


def test_a_network_moves_what_it_was_not_fitted_to_by_a_factor_of_e_at_most() -> None:
    """Three channels to 16 in small images are outside of all layers that were measured on T4."""
    small = ConvolutionSize(128, 3, 16, 1, (32, 32), (30, 30), (3, 3), (1, 1), "forward")
    kernel = Kernel.convolution(small, dtype="float32", layout="contiguous")
    gpu = find_gpu("T4")

    [estimate] = Tiled(sustained=False).predict([kernel], gpu)
    [physics] = Tiled(sustained=False, correction=None).predict([kernel], gpu)

    assert estimate.origin == "trained" and not estimate.in_range
    ratio = estimate.latency_us / physics.latency_us
    assert math.exp(-1.0) * 0.999 <= ratio <= math.exp(1.0) * 1.001


def test_a_network_shortens_no_kernel_below_the_floor_nor_lengthens_one_that_is() -> None:
    """One that says a hundredth and less of everything, where a kernel takes 2 us at least."""
    names = FAMILIES["gemm_16bit"].names
    gpu = replace(find_gpu("A100"), floor_us=2.0)
    width, wide = len(names), np.full(len(names), 1e9)
    network = Network(
        features=names, low=-wide, high=wide, mean=np.zeros(width), scale=np.ones(width),
        layers=((np.zeros((1, width)), np.array([-1e6])),), bound=5.0,
        spreads=np.full((1, 4), 0.1), gpus=(gpu.model,), architectures=("Ampere",), provenance={},
    )  # fmt: skip
    kernels = [Kernel.gemm(64, 64, 64)] * 4
    timings = [PhysicalTime(time_us, "compute", 0.1) for time_us in (1.0, 2.0, 20.0, 4000.0)]

    found = Trained({"gemm_16bit": network}).factors(kernels, gpu, timings)

    factors = [adjustment.factor for adjustment in found if adjustment is not None]
    assert factors == pytest.approx([1.0, 1.0, 0.1, math.exp(-5.0)])
