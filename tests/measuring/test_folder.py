"""The folder of measurements: what is written is read back, and nothing measured gets lost."""

from __future__ import annotations

import csv
import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from measured_environment import ENVIRONMENT
from neusight.predictors.errors import DataError
from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import ConvolutionSize, Kernel, KernelClass
from neusight.predictors.measuring.folder import (
    Quick,
    Sample,
    Workload,
    append_sample,
    compact,
    read_measured,
    read_workload,
    sample_to_json,
    table_of,
    write_environment,
    write_gpus,
    write_quick,
    write_workload,
)

GEMM = Sample(
    "linear", "linear m=64", (Kernel.gemm(64, 128, 256, layout="nn"),), 5.25, 7.0, kernel_name="k"
)
CONVOLUTION = Kernel.convolution(
    ConvolutionSize(2, 3, 8, 1, (32, 32), (16, 16), (3, 3), (2, 2), "data_gradient"),
    dtype="float32",
    compute="tf32",
    layout="channels_last",
)
SAMPLES = (
    GEMM,
    replace(GEMM, l2="cold", kernel_us=6.0),
    replace(GEMM, clock_regime="sustained", clock_mhz=1410.0, power_w=650.5),
    Sample("conv", "conv 3x3", (CONVOLUTION,), 30.0, None),
    Sample("all_reduce", "all_reduce gpus=8", (Kernel.collective("all_reduce", 64, 8),), 9.0, None),
    Sample(
        "sdpa",
        "sdpa decode",
        (Kernel.attention(2, 8, 2, 1, 128, 64, causal=False, dtype="float16"),),
        12.0,
        15.0,
    ),
    Sample(
        "sdpa",
        "sdpa causal",
        (Kernel.attention(2, 8, 2, 128, 128, 64, causal=True, dtype="float16", backward=True),),
        12.0,
        15.0,
    ),
    Sample(
        "gelu, comma",
        'gelu "quoted"',
        (
            Kernel.elementwise("gelu", 1000, dtype="bfloat16"),
            Kernel.rows(
                KernelClass.REDUCTION, "sum", 3, 9, dtype="float32", bytes_read=9, bytes_written=4
            ),
        ),
        None,
        3.0,
    ),
)
WORKLOAD = Workload(
    workload="gpt2_small_bf16",
    command=("gpt2.py", "--batch", "8"),
    arguments={"batch": 8},
    mode="train",
    environment={"gpu": "x"},
    step_us={"median": 10.0, "low": 9.0, "high": 11.0, "samples": [9.0, 10.0, 11.0]},
    profiled_step_us=12.0,
    peak_allocated_bytes=1,
    peak_reserved_bytes=2,
    num_kernels=3,
    gpu_busy_us=9.5,
    host_bound=False,
    kernels=({"name": "k", "count": 3, "time_us": 9.5},),
    trace="gpt2_small_bf16.pt.trace.json.gz",
)


#: A sample of which nothing was measured.
TIMELESS = (
    json.dumps(
        {**sample_to_json(GEMM), "probe": "add", "kernel_us": None, "event_us": None}
    ).encode()
    + b"\n"
)


def a_folder(path: Path, samples: tuple[Sample, ...] = SAMPLES) -> Path:
    write_environment(path, ENVIRONMENT)
    for sample in samples:
        append_sample(path, sample)
    return path


def by_key(samples: tuple[Sample, ...]) -> dict[tuple[str, str, str], Sample]:
    return {sample.key: sample for sample in samples}


def test_what_is_written_is_read_back_from_the_journal_and_from_the_tables(tmp_path: Path) -> None:
    a_folder(tmp_path)

    from_journal = read_measured(tmp_path)
    count = compact(tmp_path)
    from_tables = read_measured(tmp_path)

    assert count == len(SAMPLES)
    assert not (tmp_path / "journal.jsonl").exists()
    assert by_key(from_journal.samples) == by_key(SAMPLES) == by_key(from_tables.samples)
    assert from_tables.environment == ENVIRONMENT


def test_the_class_of_its_kernel_says_which_table_a_sample_goes_to() -> None:
    assert [table_of(sample) for sample in SAMPLES[2:]] == [
        "gemm",
        "convolution",
        "collectives",
        "attention",
        "attention",
        "memory_bound",
    ]


@pytest.mark.parametrize(
    ("table", "columns", "first"),
    [
        ("gemm", "batch,m,n,k,layout,out_dtype", "linear,bf16,1,64,128,256,nn,bfloat16"),
        (
            "convolution",
            "batch,in_channels,out_channels,groups,input,output,kernel,stride,direction,"
            "memory_format",
            "conv,tf32,2,3,8,1,32 32,16 16,3 3,2 2,data_gradient,channels_last",
        ),
        (
            "attention",
            "batch,heads,kv_heads,seq_q,seq_kv,head_dim,head_dim_v,causal,backward,phase,window",
            "sdpa,fp16,2,8,2,128,128,64,64,True,True,prefill_causal,0",
        ),
        ("collectives", "message_bytes,num_gpus,num_nodes", "all_reduce,bf16,64,8,1"),
        (
            "memory_bound",
            "rows,width,bytes_moved,kernel_class,layout",
            '"gelu, comma",bf16,1,1000,4000,elementwise,contiguous',
        ),
    ],
)
def test_a_table_has_the_columns_that_people_know(
    table: str, columns: str, first: str, tmp_path: Path
) -> None:
    compact(a_folder(tmp_path))

    header, *rows = (
        gzip.decompress((tmp_path / f"{table}.csv.gz").read_bytes()).decode().splitlines()
    )

    assert header.startswith(f"gpu,op,dtype,{columns},kernel_us,event_us,")
    assert len(rows) == sum(table_of(sample) == table for sample in SAMPLES)
    assert rows[0].startswith(f"NVIDIA H100 80GB HBM3,{first},")


def test_an_attention_of_one_query_is_of_decoding(tmp_path: Path) -> None:
    compact(a_folder(tmp_path))

    with gzip.open(tmp_path / "attention.csv.gz", "rt", encoding="utf-8") as text:
        phases = [row["phase"] for row in csv.DictReader(text)]

    assert phases == ["prefill_causal", "decode"]


def test_tables_are_equal_byte_for_byte_in_whatever_order_samples_came(tmp_path: Path) -> None:
    compact(a_folder(tmp_path / "one"))
    compact(a_folder(tmp_path / "two", SAMPLES[::-1]))

    for path in (tmp_path / "one").glob("*.csv.gz"):
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_a_later_sample_of_the_same_probe_goes_before_an_earlier_one(tmp_path: Path) -> None:
    compact(a_folder(tmp_path, (GEMM,)))
    append_sample(tmp_path, replace(GEMM, kernel_us=4.0))

    assert [sample.kernel_us for sample in read_measured(tmp_path).samples] == [4.0]


def test_a_run_that_was_cut_off_loses_one_line_and_goes_on(tmp_path: Path) -> None:
    a_folder(tmp_path)
    journal = tmp_path / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-20])

    cut = read_measured(tmp_path)
    append_sample(tmp_path, SAMPLES[-1])

    assert by_key(cut.samples) == by_key(SAMPLES[:-1])
    assert cut.notes == (f"journal.jsonl: line {len(SAMPLES)} was cut off and left out",)
    assert by_key(read_measured(tmp_path).samples) == by_key(SAMPLES)


def test_two_versions_in_one_folder_are_refused_and_named(tmp_path: Path) -> None:
    a_folder(tmp_path)

    write_environment(tmp_path, replace(ENVIRONMENT, date="2026-11-22", host="another"))
    with pytest.raises(DataError, match=r"torch 2\.6\.0 there, 2\.14\.0 here\)\. .*--out"):
        write_environment(tmp_path, replace(ENVIRONMENT, torch="2.14.0"))


def test_constants_workloads_and_the_gpu_are_read_back(tmp_path: Path) -> None:
    a_folder(tmp_path)
    quick = Quick((("gemm", GEMM),), {"gemm_utilization": {"bf16": 0.8}, "floor_us": 1.5})

    write_quick(tmp_path, quick)
    write_workload(tmp_path, WORKLOAD)
    write_gpus(tmp_path, find_gpu("H100"), label=ENVIRONMENT.gpu)

    found = read_measured(tmp_path)
    assert (found.quick, found.workloads) == (quick, (WORKLOAD,))
    assert json.loads((tmp_path / "quick.json").read_text())["samples"][0]["kind"] == "gemm"
    assert (tmp_path / "gpus.csv").read_text().splitlines()[1].startswith("NVIDIA H100 80GB HBM3")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("environment.json", b"{", "cannot be read"),
        ("environment.json", b"{}", "is not a file of measurements that neusight wrote"),
        ("environment.json", b'{"schema_version": 9}', "schema version 9, this neusight reads 1"),
        ("environment.json", b'{"schema_version": 1}', "'gpu' is missing"),
        ("quick.json", b'{"schema_version": 1}', "quick.json is damaged: 'samples' is missing"),
        ("gemm.csv.gz", b"no gzip", "gemm.csv.gz cannot be read"),
        ("gemm.csv.gz", gzip.compress(b"gpu,kernels\nx,y\n", mtime=0), "a row that cannot be read"),
        ("journal.jsonl", b'{"op": "x"}\n', "'kernels' is missing; it must be a list"),
        ("journal.jsonl", b"[1]\n", r"a sample that cannot be read: \[1\]"),
        ("journal.jsonl", b'{"kernels": []}\n', "must be a list of one kernel or more"),
        ("journal.jsonl", TIMELESS, "the sample 'add' has no time"),
        ("workloads/x.json", b'{"schema_version": 1}', "'step_us' is missing"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    write_environment(tmp_path, ENVIRONMENT)
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)

    with pytest.raises(DataError, match=message):
        read_measured(tmp_path)


@pytest.mark.parametrize("time", [0.0, -1.0, float("inf")])
def test_a_time_that_cannot_be_is_refused(tmp_path: Path, time: float) -> None:
    write_environment(tmp_path, ENVIRONMENT)
    line = {**json.loads(_line(tmp_path / "other")), "kernel_us": time}
    (tmp_path / "journal.jsonl").write_text(json.dumps(line) + "\n")

    reported = r"'kernel_us' is .*; it must be a number|line 1 cannot be read: Infinity"
    with pytest.raises(DataError, match=reported):
        read_measured(tmp_path)


def _line(folder: Path) -> str:
    a_folder(folder, (GEMM,))
    return (folder / "journal.jsonl").read_text()


def test_a_workload_without_a_time_is_refused(tmp_path: Path) -> None:
    path = write_workload(tmp_path, replace(WORKLOAD, step_us={"median": 0.0}))

    with pytest.raises(DataError, match=r"'step_us\.median' is 0\.0; it must be a number from"):
        read_workload(path)


def test_a_folder_without_measurements_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="neusight measure --out DIR"):
        read_measured(tmp_path)
