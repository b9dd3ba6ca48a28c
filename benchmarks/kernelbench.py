"""Small public PyTorch programs with measured times: data/kernelbench (see its README).

306 programs, FP32, `model(*inputs)` under no_grad, eager and compiled, on six GPUs. Two ways
of timing by CUDA events: "warm_l2" on an idle stream, so that the host's time is inside; "cold_l2"
behind a fill of 256 MB, which clears the L2 and hides the launches.
"""

from __future__ import annotations

import importlib.util
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any, Literal, cast

import torch
from tables import read_table

DATA = Path(__file__).parents[2] / "shared" / "data" / "kernelbench"

Method = Literal["warm_l2", "cold_l2"]

#: Modes of the data: plain PyTorch, and `torch.compile(model)`.
EAGER = "eager"
COMPILED = "compile_inductor_default"

#: How `torch.compile` is called in each of them.
_COMPILE_OPTIONS: dict[str, dict[str, Any]] = {
    COMPILED: {},
    "compile_inductor_reduce-overhead": {"mode": "reduce-overhead"},
    "compile_cudagraphs": {"backend": "cudagraphs"},
}

#: What clears the L2 before each timed call under "cold_l2", bytes.
FILL_BYTES = 256 * 2**20

#: Hosts that are not what their GPU's usually are, and what they are instead (HOST_NAMES): an L40S
#: in a server that is its users' own, where two others are in clouds (eager programs of the even
#: half take 0.9-1.1 times PLAIN's time there, 2.0-2.2 on the others).
_HOSTS = {"L40S_matx3": "plain"}

#: Rows that were timed in another precision than the rest (the data's README): GPU and program.
_OTHER_PRECISION = {("L40S", 1, 97)}


@dataclass(frozen=True)
class Case:
    """A program timed on a GPU: `blob` names its file, `measured_us` is the median of its runs;
    `torch` is the version that ran it; `host` names its host where it is not the GPU's usual one.
    """

    blob: str
    problem: str
    level: int
    version: str
    gpu: str
    method: Method
    measured_us: float
    torch: str
    mode: str = EAGER
    host: str | None = None

    @property
    def program(self) -> str:
        """What is recorded: the file, how it runs, and what runs before the first event."""
        how = "" if self.mode == EAGER else f"_{self.mode}"
        return f"{self.blob}_{self.method}{how}"


def cases(folder: Path = DATA, mode: str = EAGER) -> list[Case]:
    """Every measured program of that mode, runs on the same GPU and host joined by their median."""
    runs: dict[Case, list[float]] = defaultdict(list)
    for row in read_table(folder / "timings.csv"):
        number = int(row["problem"].split("_")[0])
        if row["mode"] != mode or (row["gpu"], int(row["level"]), number) in _OTHER_PRECISION:
            continue
        method = cast(Method, row["method"])
        level, version = int(row["level"]), row["version"]
        case = Case(
            row["blob"], row["problem"], level, version, row["gpu"], method, 0.0,
            row["torch"].removeprefix("torch=="), mode, _HOSTS.get(row["hardware"]),
        )  # fmt: skip
        runs[case].append(float(row["mean_ms"]) * 1e3)
    return [
        Case(**{**vars(case), "measured_us": median(times)})
        for case, times in sorted(
            runs.items(), key=lambda item: (item[0].blob, item[0].gpu, item[0].method)
        )
    ]


def run(case: Case, steps: int, found: Any, folder: Path = DATA) -> None:
    """Calls the program `steps` times as its authors timed it, inside the forecast `found`."""
    problem = _loaded(folder / "problems" / f"{case.blob}.py")
    torch.manual_seed(42)
    with torch.device("cuda"), torch.no_grad():
        model = problem.Model(*problem.get_init_inputs()).cuda()
        inputs = [x.cuda() if isinstance(x, torch.Tensor) else x for x in problem.get_inputs()]
        torch.cuda.synchronize()
    how = _COMPILE_OPTIONS.get(case.mode)
    run = model if how is None else torch.compile(model, **how)
    with torch.no_grad():
        for _ in range(steps):
            if case.method == "cold_l2":
                torch.empty(FILL_BYTES // 8, dtype=torch.int64, device="cuda").fill_(42)
            run(*inputs)
            torch.cuda.synchronize()
            found.step()


def _loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"kernelbench_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
