"""GPUs: names, figures, files, registration."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from neusight.predictors import predict
from neusight.predictors.errors import RegistrationError, UnknownGPUError, UnsupportedKernelError
from neusight.predictors.gpu import (
    GPU,
    _index,
    _registered,
    find_gpu,
    gpus,
    known_figures,
    register_gpu,
)
from neusight.predictors.kernel import Kernel
from neusight.predictors.tiled import Tiled


@pytest.fixture
def clean_registry() -> Iterator[None]:
    yield
    _registered.clear()
    _index.cache_clear()


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("H100", "H100-SXM5-80GB"),
        ("h100_sxm", "H100-SXM5-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB"),
        ("A100", "A100-SXM4-80GB"),
        ("v100", "V100-SXM2-32GB"),
        ("v100-pcie-32gb", "V100-PCIE-32GB"),
        ("Tesla P4", "P4"),
        ("rtx_pro_6000_server", "RTX-PRO-6000-Server"),
        ("h100_pcie_nvlink_pair", "H100-PCIE-80GB"),
        ("AMD Instinct MI210", "MI210"),
        ("A30", "A30"),
        ("A40-PCIE", "A40"),
        ("RTX 2080 Ti", "RTX-2080-Ti"),
        ("3060", "RTX-3060"),
        ("GTX 1080 Ti", "GTX-1080-Ti"),
        ("NVIDIA TITAN RTX", "TITAN-RTX"),
        ("titan xp", "TITAN-Xp"),
        ("7900 XTX", "RX-7900-XTX"),
        ("Radeon RX 6800 XT", "RX-6800-XT"),
        ("NVIDIA GeForce RTX 3090 Ti", "RTX-3090-Ti"),
        ("4070 ti super", "RTX-4070-Ti-SUPER"),
        ("rtx5080", "RTX-5080"),
        ("RTX 8000", "Quadro-RTX-8000"),
        ("H20", "H20-SXM5-96GB"),
        ("H800", "H800-SXM5-80GB"),
        ("NVIDIA A800-SXM4-80GB", "A800-SXM4-80GB"),
        ("NVIDIA GB10", "DGX-Spark-GB10"),
        ("DGX Spark", "DGX-Spark-GB10"),
        ("Jetson Orin", "Jetson-AGX-Orin-64GB"),
        ("Jetson Thor", "Jetson-AGX-Thor"),
        ("AMD Instinct MI325X", "MI325X"),
        ("mi355x", "MI355X"),
        ("H100-96GB", "H100-SXM5-96GB-HBM2E"),
        ("RTX PRO 6000 Blackwell Workstation", "RTX-PRO-6000-Workstation"),
    ],
)
def test_short_data_and_driver_names_mean_one_gpu(name: str, canonical: str) -> None:
    assert find_gpu(name).name == canonical


def test_unknown_name_gets_a_near_miss() -> None:
    with pytest.raises(UnknownGPUError) as caught:
        find_gpu("H10")

    assert str(caught.value) == (
        "Unknown GPU 'H10'. Did you mean 'H100'?"
        " `neusight gpus` lists all; `register_gpu` adds one."
    )


def test_a_gpu_is_given_back_as_it_is() -> None:
    assert find_gpu(find_gpu("T4")) is find_gpu("T4")
    assert find_gpu("T4@70W") is find_gpu("T4")  # its own limit


def test_names_are_sorted_and_unique() -> None:
    names = gpus()

    assert names == sorted(set(names))
    assert len(names) >= 35


@pytest.mark.parametrize("name", gpus())
def test_every_gpu_survives_json(name: str) -> None:
    one = find_gpu(name)

    again = GPU.from_json(json.loads(json.dumps(one.to_json())))

    assert again == one
    assert again.fingerprint == one.fingerprint
    assert hash(again) == hash(one)


@pytest.mark.parametrize("name", gpus())
def test_every_gpu_states_sources_and_known_units(name: str) -> None:
    one = find_gpu(name)

    assert one.sources
    assert one.peak_flops("fp32") > 0
    assert one.peak_flops("fp64") > 0
    assert one.peak_flops("bf16") >= one.peak_flops("fp32") * 0.99


#: FP32 cores of an SM (NVIDIA) or a compute unit (AMD, twice from CDNA 3 on: packed FP32; RDNA 3:
#: two issue slots), by
#: compute capability: the vendors' white papers.
CORES = {(5, 2): 128, (6, 0): 64, (6, 1): 128, (7, 0): 64, (7, 5): 64, (8, 0): 64}
AMD_CORES = {
    **dict.fromkeys(("Vega", "RDNA", "RDNA2", "CDNA", "CDNA2"), 64),
    **dict.fromkeys(("RDNA3", "CDNA3", "CDNA4"), 128),
}


@pytest.mark.parametrize("name", gpus())
def test_the_fp32_peak_is_two_flops_for_each_core_and_clock(name: str) -> None:
    gpu = find_gpu(name)
    if gpu.vendor == "amd":
        cores = AMD_CORES[gpu.architecture]
    else:
        cores = CORES.get(gpu.compute_capability, 128)

    at_boost = 2 * cores * gpu.num_sms * gpu.clock_hz

    # Hopper's and Blackwell's FP32 is stated at the highest clock, up to 8 % above their boost
    assert 0.97 < gpu.peak_flops("fp32") / at_boost < 1.09


#: 16-bit FLOP (FP32 accumulation) a clock and SM by compute capability: the vendors' white papers.
MATRIX_FLOPS = {(7, 0): 1024, (7, 5): 1024, (8, 0): 2048, (8, 6): 1024, (8, 7): 2048, (8, 9): 1024,
                (9, 0): 4096, (10, 0): 8192, (10, 3): 8192, (11, 0): 8192, (12, 0): 1024,
                (12, 1): 1024}  # fmt: skip

#: Cards whose tensor cores run 16-bit products with FP32 accumulation at half rate.
HALF_RATE = {
    "A10G",
    "L20",
    "L40",
    "RTX-2060",
    "RTX-2060-Max-Q",
    "RTX-2060-SUPER",
    "RTX-2070",
    "RTX-2070-SUPER",
    "RTX-2080",
    "RTX-2080-SUPER",
    "RTX-2080-Ti",
    "RTX-3060",
    "RTX-3060-Ti",
    "RTX-3070",
    "RTX-3070-Ti",
    "RTX-3080",
    "RTX-3080-12GB",
    "RTX-3080-Ti",
    "RTX-3090",
    "RTX-3090-Ti",
    "RTX-4060",
    "RTX-4060-Ti",
    "RTX-4060-Ti-16GB",
    "RTX-4070",
    "RTX-4070-SUPER",
    "RTX-4070-Ti",
    "RTX-4070-Ti-SUPER",
    "RTX-4080",
    "RTX-4080-SUPER",
    "RTX-4090",
    "RTX-4090-D",
    "RTX-5060-Ti",
    "RTX-5060-Ti-16GB",
    "RTX-5070",
    "RTX-5070-Ti",
    "RTX-5080",
    "RTX-5090",
}
#: Cards whose tensor cores are cut down to less than their SMs and clock give.
CUT_DOWN = {"H20-3e-141GB", "H20-SXM5-96GB"}


@pytest.mark.parametrize(
    "name",
    [
        one
        for one in gpus()
        if find_gpu(one).has_matrix_unit("fp16")
        and find_gpu(one).vendor == "nvidia"
        and one not in CUT_DOWN
    ],
)
def test_the_matrix_peak_follows_from_sms_and_clock(name: str) -> None:
    gpu = find_gpu(name)
    flops = MATRIX_FLOPS[gpu.compute_capability] * gpu.num_sms * gpu.clock_hz

    # H100 PCIe and NVL state their peak below their boost clock
    assert 0.85 < gpu.peak_flops("fp16") / (flops / 2 if name in HALF_RATE else flops) < 1.02


#: Width of the memory bus in bits and rate of a pin in Gbit/s, of cards with GDDR or LPDDR memory:
#: their product is the bandwidth.
MEMORY_BUS = {
    "RTX-2060": (192, 14), "RTX-2060-SUPER": (256, 14), "RTX-2060-Max-Q": (192, 11),
    "RTX-2070": (256, 14), "RTX-2070-SUPER": (256, 14), "RTX-2080": (256, 14),
    "RTX-2080-SUPER": (256, 15.5), "TITAN-RTX": (384, 14), "TITAN-Xp": (384, 11.4),
    "GTX-1080-Ti": (352, 11), "TITAN-X-Pascal": (384, 10), "Quadro-P4000": (256, 7.6),
    "Quadro-P5000": (256, 9), "Quadro-P6000": (384, 9), "M40": (384, 6), "GTX-TITAN-X": (384, 7),
    "A2": (128, 12.5), "A16": (128, 12.5), "RX-5700": (256, 14), "RX-6800": (256, 16),
    "RX-6800-XT": (256, 16), "RX-6900-XT": (256, 16), "RX-7600": (128, 18), "RX-7700S": (128, 18),
    "RX-7700-XT": (192, 18), "RX-7800-XT": (256, 19.5), "RX-7900-XT": (320, 20),
    "RX-7900-XTX": (384, 20),
    "RTX-2080-Ti": (352, 14), "Quadro-RTX-8000": (384, 14), "T4": (256, 10), "T4G": (256, 10),
    "RTX-3060": (192, 15), "RTX-3060-Ti": (256, 14), "RTX-3070": (256, 14),
    "RTX-3070-Ti": (256, 19), "RTX-3080": (320, 19), "RTX-3080-12GB": (384, 19),
    "RTX-3080-Ti": (384, 19), "RTX-3090": (384, 19.5), "RTX-3090-Ti": (384, 21),
    "RTX-4060": (128, 17), "RTX-4060-Ti": (128, 18), "RTX-4060-Ti-16GB": (128, 18),
    "RTX-4070": (192, 21), "RTX-4070-SUPER": (192, 21), "RTX-4070-Ti": (192, 21),
    "RTX-4070-Ti-SUPER": (256, 21), "RTX-4080": (256, 22.4), "RTX-4080-SUPER": (256, 23),
    "RTX-4090": (384, 21), "RTX-4090-D": (384, 21), "RTX-5060-Ti": (128, 28),
    "RTX-5060-Ti-16GB": (128, 28), "RTX-5070": (192, 28), "RTX-5070-Ti": (256, 28),
    "RTX-5080": (256, 30), "RTX-5090": (512, 28), "RTX-A4000": (256, 14), "RTX-A5000": (384, 16),
    "RTX-A6000": (384, 16), "A40": (384, 14.5), "A10": (384, 12.5), "A10G": (384, 12.5),
    "RTX-5000-Ada": (256, 18), "RTX-6000-Ada": (384, 20), "L4": (192, 12.5), "L40": (384, 18),
    "L40S": (384, 18), "L20": (384, 18), "RTX-PRO-6000-Workstation": (512, 28),
    "RTX-PRO-6000-Max-Q": (512, 28), "RTX-PRO-6000-Server": (512, 25),
    "DGX-Spark-GB10": (256, 8.533), "Jetson-AGX-Thor": (256, 8.533),
    "Jetson-AGX-Orin-64GB": (256, 6.4), "Jetson-AGX-Orin-32GB": (256, 6.4),
    "Jetson-Orin-NX-16GB": (128, 6.4),
    "Jetson-Orin-Nano-8GB": (128, 6.4),
}  # fmt: skip


@pytest.mark.parametrize("name", MEMORY_BUS)
def test_the_bandwidth_is_the_width_of_the_bus_times_the_rate_of_a_pin(name: str) -> None:
    width_bits, rate_gbps = MEMORY_BUS[name]

    assert find_gpu(name).bandwidth_gbps == pytest.approx(width_bits / 8 * rate_gbps, rel=0.01)


def test_a_power_limit_slows_products_and_leaves_memory_alone() -> None:
    product = Kernel.gemm(8192, 8192, 8192, dtype="float16")
    copy = Kernel.elementwise("add", 2**26, dtype="float32")
    card, limited = find_gpu("RTX 3080"), find_gpu("rtx 3080 @ 115 W")

    fast, slow = (Tiled().predict([product, copy], gpu) for gpu in (card, limited))

    assert limited.name == "RTX-3080@115W"
    assert find_gpu(limited.name) == limited
    assert slow[0].latency_us > 1.2 * fast[0].latency_us
    assert slow[1] == fast[1]


@pytest.mark.parametrize("name", ["RTX 3080@20W", "RTX 3080@500W"])
def test_a_power_limit_out_of_reach_is_refused(name: str) -> None:
    with pytest.raises(UnknownGPUError, match="a limit is from 107 to its own 320 W"):
        find_gpu(name)


def test_missing_units_fall_back_as_pytorch_does() -> None:
    v100 = find_gpu("V100")

    assert v100.peak_flops("bf16") == v100.peak_flops("fp32")
    assert v100.peak_flops("tf32") == v100.peak_flops("fp32")
    assert v100.has_matrix_unit("fp16")
    assert not v100.has_matrix_unit("bf16")
    assert not find_gpu("P100").has_matrix_unit("fp16")


#: What tensor (matrix) cores compute, by family: the vendors' white papers.
MATRIX_UNITS = {
    "P100 P4 GTX-1080 TITAN-X TITAN-Xp M40 GTX-TITAN-X": set(),
    "Quadro-P4000 Quadro-P5000 Quadro-P6000": set(),
    "MI25 MI50 MI60 Vega-Frontier-Edition RX-5700 RX-6800 RX-6900": set(),
    "V100 TITAN-V": {"fp16"},
    "T4 T4G RTX-2060 RTX-2070 RTX-2080 TITAN-RTX Quadro-RTX-8000": {"fp16", "int8"},
    "A100 A800 A30": {"fp64", "tf32", "fp16", "bf16", "int8"},
    "A2 A10 A10G A16 A40 RTX-3090 RTX-A6000 RTX-3060 RTX-3080 Jetson-AGX-Orin": {
        *("tf32", "fp16", "bf16", "int8")
    },
    "L4 L20 L40 L40S RTX-4090 RTX-5090 RTX-6000 RTX-PRO-6000": {
        *("tf32", "fp16", "bf16", "fp8", "int8")
    },
    "B300 GB300 DGX-Spark Jetson-AGX-Thor": {"tf32", "fp16", "bf16", "fp8", "int8"},
    "H100 H200 H20 H800 GH200 B200 GB200": {"fp64", "tf32", "fp16", "bf16", "fp8", "int8"},
    "RX-7600 RX-7700S RX-7700 RX-7800 RX-7900": {"fp16", "bf16", "int8"},
    "MI100": {"fp32", "fp16", "bf16", "int8"},
    "MI210 MI250 MI250X": {"fp64", "fp32", "fp16", "bf16", "int8"},
    "MI350X MI355X": {"fp64", "fp32", "fp16", "bf16", "fp8", "int8"},
    "MI300X MI300A MI325X": {"fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8"},
}


def units_of(gpu: GPU) -> set[str]:
    kinds = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8")
    return {kind for kind in kinds if gpu.has_matrix_unit(kind)}


@pytest.mark.parametrize("family", MATRIX_UNITS)
def test_the_families_have_the_matrix_units_that_their_vendors_state(family: str) -> None:
    members = [
        find_gpu(name)
        for name in gpus()
        if any(name == one or name.startswith(one + "-") for one in family.split())
    ]

    assert len(members) >= len(family.split())
    assert all(units_of(gpu) == MATRIX_UNITS[family] for gpu in members)


@pytest.mark.parametrize(
    "name", [name for name in gpus() if find_gpu(name).matrix_units is not None]
)
def test_stated_matrix_units_are_those_of_the_architecture(name: str) -> None:
    stated = find_gpu(name)
    assert stated.sources["matrix_units"]

    plain = {key: value for key, value in stated.to_json().items() if key != "matrix_units"}
    silent = GPU.from_json(plain)

    assert stated.matrix_units is not None
    assert silent.matrix_units is None
    assert "matrix_units" not in silent.to_json()
    for unit in ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8"):
        assert silent.has_matrix_unit(unit) == (unit in stated.matrix_units)


def test_a_file_may_say_that_there_are_no_matrix_units() -> None:
    card = GPU.from_json(find_gpu("T4").to_json() | {"name": "GTX 1660", "matrix_units": []})

    assert not card.has_matrix_unit("fp16")


def test_an_amd_gpu_without_an_instruction_set_goes_by_its_family() -> None:
    silent = {"gcn_arch_name": "", "matrix_units": None}

    cdna = GPU.from_json(find_gpu("MI210").to_json() | silent)
    older = GPU.from_json(find_gpu("MI210").to_json() | silent | {"architecture": "Vega"})

    assert cdna.has_matrix_unit("bf16")
    assert not older.has_matrix_unit("bf16")


@pytest.mark.parametrize("name", ["RTX-3090", "RTX-4090", "RTX-5090", "A10G"])
def test_half_rate_cards_reach_most_of_their_tensor_peak(name: str) -> None:
    product = Kernel.gemm(4096, 4096, 4096, dtype="bfloat16")

    (estimate,) = Tiled().predict([product], find_gpu(name))

    assert estimate.origin == "physics"  # the tables have no such card
    assert product.flops / estimate.latency_us * 1e6 > 0.8 * find_gpu(name).peak_flops("bf16")


@pytest.mark.parametrize(
    ("unit", "reported"),
    [("fp8", r"A100-SXM4-80GB has no fp8 unit.*H100"), ("fp2", "No known GPU has it")],
)
def test_a_unit_that_is_not_there_names_gpus_that_have_it(unit: str, reported: str) -> None:
    with pytest.raises(UnsupportedKernelError, match=reported):
        find_gpu("A100").peak_flops(unit)


def test_register_adds_a_gpu_and_rejects_another_of_its_name(clean_registry: None) -> None:
    mine = replace(find_gpu("H100"), name="H1000", driver_name="NVIDIA H1000", aliases=("kilo",))

    register_gpu(mine)

    assert find_gpu("KILO") is mine
    assert register_gpu(mine) is mine
    with pytest.raises(RegistrationError, match="already belongs to H1000"):
        register_gpu(replace(mine, num_sms=100))


def test_register_reads_a_file(tmp_path: Path, clean_registry: None) -> None:
    data = find_gpu("L4").to_json() | {"name": "L5", "driver_name": "NVIDIA L5", "aliases": []}
    path = tmp_path / "l5.json"
    path.write_text(json.dumps(data))

    register_gpu(path)

    assert find_gpu("l5").num_sms == 58


def test_a_name_of_two_packaged_files_is_reported(
    monkeypatch: pytest.MonkeyPatch, clean_registry: None
) -> None:
    packaged = find_gpu("T4"), replace(find_gpu("L4"), name="Mine", aliases=("t4",))
    monkeypatch.setattr("neusight.predictors.gpu._packaged", lambda: packaged)
    _index.cache_clear()

    with pytest.raises(RegistrationError, match="'t4' names both T4 and Mine"):
        gpus()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_sms", 0),
        ("num_sms", 1.5),
        ("bandwidth_gbps", math.nan),
        ("bandwidth_gbps", -1.0),
        ("tdp_w", math.inf),
        ("max_threads_per_sm", 16),
        ("gemm_utilization", 1.2),
        ("vendor", "acme"),
        ("matrix_units", ["bf17"]),
        ("matrix_units", ["fp4"]),
        ("matrix_units", "bf16"),
        ("matrix_units", 16),
        ("name", ""),
        ("peak_tflops", {"fp32": 1.0}),
        ("peak_tflops", {"fp32": math.nan, "fp64": 1.0}),
    ],
)
def test_register_names_the_wrong_field(field: str, value: object) -> None:
    changes: dict[str, Any] = {"name": "X1", "driver_name": "X1", "aliases": (), field: value}
    wrong = replace(find_gpu("H100"), **changes)

    with pytest.raises(RegistrationError, match=field):
        register_gpu(wrong)


def test_the_path_of_a_file_is_a_name(tmp_path: Path, clean_registry: None) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({**find_gpu("A100").to_json(), "name": "Mine", "driver_name": "Mine",
                                "aliases": []}))  # fmt: skip

    assert find_gpu(str(path)).name == "Mine"
    assert find_gpu(str(path)) == find_gpu("mine")  # a second reading is no second GPU


def test_a_file_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RegistrationError, match=r"missing\.json cannot be read"):
        find_gpu(str(tmp_path / "missing.json"))


def test_register_names_missing_and_unknown_fields(tmp_path: Path) -> None:
    data = find_gpu("L4").to_json()
    del data["l2_bytes"]
    with pytest.raises(RegistrationError, match="'l2_bytes' is missing"):
        GPU.from_json(data)
    with pytest.raises(RegistrationError, match=r"unknown field 'num_sm'\. Did you mean 'num_sms'"):
        GPU.from_json(find_gpu("L4").to_json() | {"num_sm": 3})
    with pytest.raises(RegistrationError, match="cannot be read"):
        register_gpu(tmp_path / "nothing.json")
    bad = tmp_path / "bad.json"
    bad.write_text("[")
    with pytest.raises(RegistrationError, match="no JSON"):
        register_gpu(bad)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("aliases", [1]),
        ("sources", {"figures": 1}),
        ("link_kind", None),
        ("compute_capability", [9, True]),
        ("compute_capability", [9]),
        ("boost_clock_mhz", 5e-324),
        ("tdp_w", 1e300),
        ("num_sms", 10**19),
        ("name", "x" * 5000 + "\n"),
    ],
)
def test_a_wrong_field_of_a_file_is_reported_with_the_file(
    field: str, value: object, tmp_path: Path
) -> None:
    data = find_gpu("L4").to_json() | {
        "name": "L5",
        "driver_name": "L5",
        "aliases": [],
        field: value,
    }
    if field == "name":
        data["num_sms"] = 0
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(data))

    with pytest.raises(RegistrationError, match=r"GPU file .*mine\.json: GPU .*field") as caught:
        register_gpu(path)

    assert len(str(caught.value)) < 500


def test_every_field_of_a_gpu_is_checked() -> None:
    for item in fields(GPU):
        changes: dict[str, Any] = {item.name: object()}
        with pytest.raises(RegistrationError, match=item.name):
            register_gpu(replace(find_gpu("H100"), **changes))


@pytest.mark.parametrize("name", sorted({replace(find_gpu(n), name="").model for n in gpus()}))
def test_a_gpu_called_otherwise_has_the_same_prices(name: str) -> None:
    known = find_gpu(name)
    renamed = replace(known, name=f"Gigabyte-{name}", driver_name="Other", aliases=())
    kernels = [
        Kernel.gemm(512, 512, 512, dtype="float16"),
        Kernel.gemm(4096, 1024, 4096, dtype="float32"),
        Kernel.elementwise("add", 2**24, dtype="float32"),
        Kernel.collective("all_reduce", 2**24, 8),
    ]

    assert renamed.model == name
    for predictor in ("tiled", "linear", "habitat"):
        reported = [estimate.latency_us for estimate in predict(kernels, renamed, predictor)]
        assert reported == [estimate.latency_us for estimate in predict(kernels, known, predictor)]


def test_what_nobody_measured_is_not_shown_as_a_figure() -> None:
    assert find_gpu("RTX 4090").gemm_utilization == 0.0
    assert not {"gemm_utilization", "gemm_floor_us", "link_gbps"} & set(
        known_figures(find_gpu("RTX 4090"))
    )
    assert "gemm_utilization" in known_figures(find_gpu("H100"))


def test_a_kind_of_host_that_nobody_knows_is_refused() -> None:
    with pytest.raises(RegistrationError, match="'usual_host' is 'fast'; it must be one of plain"):
        GPU.from_json({**find_gpu("L4").to_json(), "usual_host": "fast"})
