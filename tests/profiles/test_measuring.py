"""A measuring run: in order of need, within its time, and nothing measured is ever lost."""

from __future__ import annotations

import json
import resource
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from measured_environment import ENVIRONMENT
from neusight.integrations.profiles import measuring
from neusight.integrations.profiles.measuring import (
    MeasuringResult,
    Part,
    Reply,
    Request,
    Worker,
    WorkerLost,
    WorkerProcess,
    WorkloadSetting,
    measure,
    read_settings,
)
from neusight.predictors.errors import DataError
from neusight.predictors.kernel import Kernel
from neusight.predictors.measuring.folder import (
    Environment,
    Sample,
    Workload,
    read_measured,
    sample_to_json,
)
from neusight.predictors.measuring.probes import quick_sample, sample
from places import ROOT

#: No process that answers takes that long, however loaded the machine.
HANGS_AFTER_S = 900.0
SETTINGS = [
    WorkloadSetting(f"model_{number}", Path("model.py"), ("--number", str(number)))
    for number in range(8)
]
WORKLOAD = Workload(
    workload="",
    command=("model.py",),
    arguments={},
    mode="train",
    environment={},
    step_us={"median": 10.0, "low": 9.0, "high": 11.0, "samples": [10.0]},
    profiled_step_us=None,
    peak_allocated_bytes=1,
    peak_reserved_bytes=2,
    num_kernels=3,
    gpu_busy_us=9.5,
    host_bound=False,
)


@dataclass
class Lab:
    """A GPU that needs a second for whatever it is asked, and a few things that go wrong on it."""

    environment: Environment = ENVIRONMENT
    busy: str = ""
    kills: frozenset[str] = frozenset()
    refuses: frozenset[str] = frozenset()
    interrupts_after: int | None = None
    now: float = 0.0
    begun: list[str] = field(default_factory=list)
    started: int = 0
    requests: list[tuple[str, int, float]] = field(default_factory=list)
    titles: list[str] = field(default_factory=list)

    def worker(self) -> FakeWorker:
        self.started += 1
        return FakeWorker(self)

    def report_progress(self, title: str, share: float, outcome: MeasuringResult) -> None:
        assert 0.0 <= share <= 1.0
        if title not in self.titles[-1:]:
            self.titles.append(title)


class FakeWorker:
    """Answers as a measuring process would."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    def ask(self, request: Request, *, timeout_s: float) -> Iterator[Reply]:
        lab = self.lab
        lab.requests.append((request["do"], len(request.get("probes", ())), timeout_s))
        if request["do"] == "environment":
            yield {"environment": asdict(lab.environment), "num_gpus": 1, "busy": lab.busy}
            return
        lab.now += 1.0
        if request["do"] == "workload":
            yield from self.workload(request["name"])
            return
        for probe in request["probes"]:
            if lab.interrupts_after is not None and len(lab.begun) >= lab.interrupts_after:
                raise KeyboardInterrupt
            yield {"begin": probe}
            if probe in lab.kills:
                raise WorkerLost("it ended with code -11")
            lab.begun.append(f"{probe} under load" if request["sustained"] else probe)
            if probe in lab.refuses:
                yield {"refused": {"subject": probe, "reason": "RuntimeError: no"}}
                continue
            regime = "sustained" if request["sustained"] else "burst"
            kernel = Kernel.elementwise("gelu", 64, dtype="float32")
            found = Sample("gelu", probe, (kernel,), 10.0, None, clock_regime=regime)
            yield {"sample": sample_to_json(found)}

    def workload(self, name: str) -> Iterator[Reply]:
        if f"workload {name}" in self.lab.kills:
            raise WorkerLost("no reply within 240 s")
        if f"workload {name}" in self.lab.refuses:
            yield {"refused": {"subject": f"workload {name}", "reason": "no memory"}}
            return
        self.lab.begun.append(name)
        yield {"workload": asdict(replace(WORKLOAD, workload=name))}

    def close(self) -> None:
        pass


def run(
    folder: Path, lab: Lab, *parts: Part, minutes: float = 60.0, **options: Any
) -> MeasuringResult:
    return measure(
        folder,
        lab.worker,
        minutes=minutes,
        parts=parts or ("quick", "workloads", "kernels"),
        settings=SETTINGS,
        report_progress=lab.report_progress,
        now=lambda: lab.now,
        **options,
    )


def test_what_is_needed_most_comes_first(tmp_path: Path) -> None:
    lab = Lab()

    outcome = run(tmp_path, lab)

    assert lab.titles == [
        "constants",
        *(f"workload model_{number}" for number in range(6)),
        "kernels",
        "workload model_6",
        "workload model_7",
        "kernels",
        "kernels under load",
        "kernels",
    ]
    assert outcome.left == 0
    assert outcome.workloads == 8
    assert outcome.samples == len(read_measured(tmp_path).samples) > len(sample())


def test_so_many_probes_are_asked_for_at_once_and_so_long_is_waited(tmp_path: Path) -> None:
    lab = Lab()

    run(tmp_path, lab)

    asked = {kind: [(num, timeout_s) for do, num, timeout_s in lab.requests if do == kind]
             for kind in ("environment", "workload", "probes")}  # fmt: skip
    assert asked["environment"] == [(0, 90.0)]
    assert asked["workload"] == [(0, 240.0)] * 8
    assert {timeout_s for _, timeout_s in asked["probes"]} == {90.0}
    assert max(num for num, _ in asked["probes"]) == 24
    assert {num for num, _ in asked["probes"]} >= {24, 1}  # under load one by one
    before, between = lab.begun.index("model_6"), lab.begun.index("model_7")
    under_load = [at for at, text in enumerate(lab.begun) if text.endswith(" under load")]
    assert before - lab.begun.index("model_5") - 1 == 280
    assert under_load[0] - between - 1 == 560
    assert len(lab.begun) - under_load[-1] - 1 == len(sample()) - 840


@pytest.mark.parametrize(("minutes", "second"), [(3.9, "kernels"), (4.0, "workload model_0")])
def test_workloads_come_after_some_kernels_where_there_is_little_time(
    tmp_path: Path, minutes: float, second: str
) -> None:
    lab = Lab()

    run(tmp_path, lab, minutes=minutes)

    assert lab.titles[1] == second


def test_a_workload_that_is_refused_costs_itself_alone(tmp_path: Path) -> None:
    outcome = run(tmp_path, Lab(refuses=frozenset(["workload model_3"])), "workloads")

    assert [(item.subject, item.reason) for item in outcome.refusals] == [
        ("workload model_3", "no memory")
    ]
    assert outcome.workloads == 7


def test_a_process_that_cannot_start_ends_the_run(tmp_path: Path) -> None:
    def lost() -> Worker:
        raise WorkerLost("it ended with code 1")

    with pytest.raises(DataError, match="process could not start: it ended with code 1"):
        measure(tmp_path, lost, minutes=1.0)


@pytest.mark.parametrize(("free_bytes", "is_enough"), [(100 * 2**20, True), (2**26, False)])
def test_nothing_is_begun_where_the_disk_is_nearly_full(
    free_bytes: int, is_enough: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free_bytes))
    stated = nullcontext() if is_enough else pytest.raises(DataError, match="than 100 MiB left")

    with stated:
        assert run(tmp_path, Lab(), "quick").samples


def test_of_a_gpu_that_is_not_known_no_figures_are_written(tmp_path: Path) -> None:
    run(tmp_path, Lab(environment=replace(ENVIRONMENT, gpu="Voodoo 2")), "quick")

    assert not (tmp_path / "gpus.csv").exists()
    assert (tmp_path / "quick.json").exists()


def test_a_short_budget_measures_something_of_every_class(tmp_path: Path) -> None:
    lab = Lab()

    outcome = run(tmp_path, lab, minutes=0.3)

    assert outcome.left > 0
    assert 18.0 <= lab.now <= 20.0
    assert lab.titles[:3] == ["constants", "kernels", "workload model_0"]
    assert {text.split()[0] for text in lab.begun} > {probe.op for probe in sample()}
    assert outcome.workloads == 4
    assert (tmp_path / "quick.json").exists()


def test_the_same_command_goes_on_where_the_time_was_up(tmp_path: Path) -> None:
    first, second, third = Lab(), Lab(), Lab()

    run(tmp_path, first, minutes=0.3)
    outcome = run(tmp_path, second)
    again = run(tmp_path, third)

    assert not set(first.begun) & set(second.begun)
    assert outcome.left == 0
    assert third.begun == []
    assert again.samples == outcome.samples


def test_an_interrupt_loses_nothing_and_leaves_tables(tmp_path: Path) -> None:
    lab = Lab(interrupts_after=40)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, lab, "kernels")

    assert len(read_measured(tmp_path).samples) == 40
    assert not (tmp_path / "journal.jsonl").exists()
    assert (tmp_path / "memory_bound.csv.gz").exists()


def test_a_probe_that_kills_the_process_costs_itself_alone(tmp_path: Path) -> None:
    bad = sample()[30].text
    lab = Lab(kills=frozenset([bad]))

    outcome = run(tmp_path, lab, "kernels", minutes=0.1)
    again = run(tmp_path, later := Lab(), "kernels", minutes=0.1)

    assert [(refusal.subject, refusal.reason) for refusal in outcome.refusals] == [
        (bad, "it ended with code -11")
    ]
    assert lab.started == 2
    assert bad not in {found.probe for found in read_measured(tmp_path).samples}
    assert [refusal.subject for refusal in again.refusals] == [bad]
    assert later.begun and bad not in later.begun


def test_a_refused_probe_is_reported_and_not_tried_again(tmp_path: Path) -> None:
    text = sample()[3].text
    lab = Lab(refuses=frozenset([text]))

    outcome = run(tmp_path, lab, "kernels", minutes=0.1)

    assert [refusal.subject for refusal in outcome.refusals] == [text]
    line = json.loads((tmp_path / "refused.jsonl").read_text())
    assert line == {"subject": text, "reason": "RuntimeError: no"}


def test_a_workload_that_hangs_costs_itself_alone(tmp_path: Path) -> None:
    lab = Lab(kills=frozenset(["workload model_2"]))

    outcome = run(tmp_path, lab, "workloads")

    assert outcome.workloads == 7
    assert [refusal.subject for refusal in outcome.refusals] == ["workload model_2"]


def test_each_workload_has_a_process_of_its_own(tmp_path: Path) -> None:
    lab = Lab()

    run(tmp_path, lab, "workloads")

    assert lab.started == 1 + len(SETTINGS)


def test_a_gpu_on_which_all_dies_ends_the_run_and_keeps_what_there_is(tmp_path: Path) -> None:
    probes = [probe.text for probe in sample()]
    lab = Lab(kills=frozenset(probes[48:]))

    with pytest.raises(DataError, match="died 25 times, the last time: it ended with code -11"):
        run(tmp_path, lab, "kernels")

    assert len(read_measured(tmp_path).samples) == 48


def test_a_busy_gpu_is_refused_unless_asked_otherwise(tmp_path: Path) -> None:
    lab = Lab(busy="its utilization is 97 %")

    with pytest.raises(DataError, match=r"busy: its utilization is 97 %.*--even-if-busy"):
        run(tmp_path / "a", lab)
    outcome = run(tmp_path / "b", lab, "quick", even_if_busy=True)

    assert not (tmp_path / "a").exists()
    assert outcome.notes == ["the GPU was busy: its utilization is 97 %"]


def test_two_versions_in_one_folder_are_refused(tmp_path: Path) -> None:
    run(tmp_path, Lab(), "quick")

    with pytest.raises(DataError, match=r"torch 2\.6\.0 there, 2\.14\.0 here"):
        run(tmp_path, Lab(environment=replace(ENVIRONMENT, torch="2.14.0")), "quick")

    assert len(read_measured(tmp_path).samples) == len(quick_sample())


def test_a_full_disk_ends_the_run_and_says_what_is_kept(tmp_path: Path) -> None:
    run(tmp_path, Lab(), "quick")

    with no_file_above(4000), pytest.raises(DataError, match=r"before is kept; free some space"):
        run(tmp_path, Lab(), "kernels")

    kept = read_measured(tmp_path).samples
    assert len(quick_sample()) < len(kept) < len(quick_sample()) + 20
    assert run(tmp_path, Lab(), "kernels", minutes=0.1).samples > len(kept)


@contextmanager
def no_file_above(num_bytes: int) -> Iterator[None]:
    """Writing fails as it does on a full disk, in the middle of a line."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(DataError, match="cannot be written"):
        run(tmp_path / "file" / "below", Lab(), "quick")


def test_a_line_that_was_cut_off_is_reported_and_measured_again(tmp_path: Path) -> None:
    run(tmp_path, Lab(), "quick")
    (tmp_path / "journal.jsonl").write_text('{"op": "ge')
    (tmp_path / "refused.jsonl").write_text('{"subject": "ge')

    outcome = run(tmp_path, Lab(), "quick")

    assert outcome.notes == ["journal.jsonl: line 1 was cut off and left out"]


def test_the_gpu_of_the_folder_is_described_beside_the_tables(tmp_path: Path) -> None:
    run(tmp_path, Lab(), "quick")

    header, row = (tmp_path / "gpus.csv").read_text().splitlines()
    assert header.startswith("gpu,alias,arch,sm_version,sms,")
    assert row.startswith("NVIDIA H100 80GB HBM3,H100-SXM5-80GB,Hopper,9.0,132,")


# -- processes ---------------------------------------------------------------------------------


def process(script: str) -> WorkerProcess:
    return WorkerProcess([sys.executable, "-c", script])


ECHO = """
import json, sys
for line in sys.stdin:
    print(json.dumps({"received": json.loads(line)}), flush=True)
    print(json.dumps({"done": True}), flush=True)
"""


def test_a_process_is_asked_and_answers() -> None:
    worker = process(ECHO)

    replies = [list(worker.ask({"do": name}, timeout_s=HANGS_AFTER_S)) for name in ("a", "b")]

    worker.close()
    assert replies == [[{"received": {"do": "a"}}], [{"received": {"do": "b"}}]]


def test_a_process_that_dies_leaves_its_last_text() -> None:
    worker = process("import sys; sys.stdin.readline(); sys.exit('CUDA error: illegal access')")

    with pytest.raises(WorkerLost, match="it ended with code 1: CUDA error: illegal access"):
        list(worker.ask({"do": "probes"}, timeout_s=HANGS_AFTER_S))
    worker.close()


def test_a_process_that_does_not_end_by_itself_is_ended_by_force(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measuring, "_END_TIMEOUT_S", 0.2)
    worker = process("import time; time.sleep(600)")

    worker.close()

    assert worker._process.returncode == -9


def test_a_process_that_hangs_is_ended() -> None:
    worker = process("import sys; sys.stdin.read()")

    with pytest.raises(WorkerLost, match="no reply within 0 s"):
        list(worker.ask({"do": "probes"}, timeout_s=0.2))


# -- the table of workloads --------------------------------------------------------------------


def test_the_table_of_workloads_is_read() -> None:
    settings = read_settings(ROOT / "benchmarks" / "workloads")

    assert settings[0].name == "gpt2_bf16"
    assert all(setting.script.is_file() for setting in settings)


def test_a_table_that_is_missing_or_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"settings\.json cannot be read.*--workloads-from"):
        read_settings(tmp_path)
    (tmp_path / "settings.json").write_text('[{"name": 1}]')
    with pytest.raises(DataError, match="is no table of workloads"):
        read_settings(tmp_path)
