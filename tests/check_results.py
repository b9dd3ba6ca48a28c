"""Results of a check, for tests of what is said of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from neusight.integrations.check.baseline import Case, MemoryRow, OpRow, WaitRow
from neusight.integrations.check.judgement import judge
from neusight.integrations.check.observation import Observation, Wait
from neusight.integrations.check.result import CaseResult

BEFORE = Case(
    gpu="H100-SXM5-80GB",
    program=("train.py",),
    settings={},
    metrics={
        "step_latency_us": 1000.0,
        "gpu_busy_us": 900.0,
        "peak_memory_bytes": 2**30,
        "peak_reserved_bytes": 2**30,
        "num_kernels": 2,
        "num_synchronizations": 0,
        "flops": 10**12,
        "communication_bytes": 0,
    },
    bound="compute",
    tool={"neusight": "0.1.0", "torch": "2.13.0"},
    work="a",
    files="b",
    peak="aten::mm in Net",
    ops=(
        OpRow("Net.0", "forward", "aten::addmm", "gemm 8x8x8 bf16", "1", 1, 1, 450_000, 10_000),
        OpRow("Net.1", "forward", "aten::addmm", "gemm 8x8x8 bf16", "1", 1, 1, 450_000, 10_000),
    ),
    memory=(MemoryRow("Net.0", "forward", "activation", "aten::addmm", 1, 2**30),),
    waits=(),
)
#: A case of many layers, with all kinds of rows.
LAYERS = [f"Net.blocks.{number}.up" for number in range(12)]
CASE = Case(
    gpu="H100-SXM5-80GB",
    program=("train.py", "--batch", "8"),
    settings={"host": "plain"},
    metrics={
        "step_latency_us": 1234.5,
        "gpu_busy_us": 1000.0,
        "peak_memory_bytes": 12 * 512 + 1024,
        "peak_reserved_bytes": 2 * 2**20,
        "num_kernels": 12,
        "num_synchronizations": 1,
        "flops": 10**15,
        "communication_bytes": 0,
    },
    bound="compute",
    tool={"neusight": "0.1.0", "torch": "2.13.0"},
    work="0" * 16,
    files="1" * 16,
    peak="aten::addmm in Net",
    ops=tuple(
        OpRow(module, "forward", "aten::addmm", "gemm 8x8x8 bf16", "ab", 1, 1, 100, 50)
        for module in LAYERS
    ),
    memory=(
        *(MemoryRow(m, "forward", "activation", "aten::addmm", 1, 512) for m in LAYERS),
        MemoryRow("", "forward", "parameter", "aten::empty", 2, 1024),
    ),
    waits=(WaitRow("item", 'print("loss", loss.item())', 1),),
)
CODE = "loss.item()  # 100%, `a|b` <x>"


def slower(module: str = "Net.0", code: str = CODE) -> Observation:
    """One GEMM twice as wide, a GiB more, a wait."""
    ops = (
        OpRow(module, "forward", "aten::addmm", "gemm 8x16x8 bf16", "2", 1, 1, 900_000, 10_000),
        BEFORE.ops[1],
    )
    case = replace(
        BEFORE,
        metrics={
            **BEFORE.metrics,
            "step_latency_us": 1500.0,
            "gpu_busy_us": 1350.0,
            "peak_memory_bytes": 2**31,
            "num_synchronizations": 1,
        },
        work="c",
        files="d",
        ops=ops,
        memory=(MemoryRow(module, "forward", "activation", "aten::addmm", 1, 2**31),),
        waits=(WaitRow("item", code, 1),),
    )
    stack = ("model.py:2", "train.py:1")
    return Observation(
        case,
        op_stacks={(module, "forward", "aten::addmm", "gemm 8x16x8 bf16", "2"): (stack,)},
        memory_stacks={(module, "forward", "activation", "aten::addmm"): stack},
        waits={("item", code): Wait(("train.py:1",), 40.0)},
        made={module: ("model.py:1",)},
        unmapped=("my::op",),
    )


def regression(name: str = "train", seen: Observation | None = None) -> CaseResult:
    found = seen or slower()
    judgement = judge(name, BEFORE, found)
    assert judgement.is_regression
    return CaseResult(name, "regression", judgement, found.case)


def project(folder: Path) -> Path:
    """The folder, with the files that the results' call stacks name."""
    (folder / "train.py").write_text("loss.item()\n")
    (folder / "model.py").write_text("self.up = nn.Linear(8, 16)\nself.up(x)\n")
    return folder
