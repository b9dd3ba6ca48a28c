"""Measures a GPU within a time budget: constants, workloads and kernels, in that order of need.

The measuring itself is done by a process of its own (`measuring_worker`), which this one asks,
and starts again where it died. Whatever is measured is written at once.
"""

from __future__ import annotations

import contextlib
import json
import queue
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, Protocol, TypeAlias

from neusight.predictors.errors import DataError, UnknownGPUError
from neusight.predictors.files import json_value, read_bytes, shown
from neusight.predictors.gpu import GPU, find_gpu
from neusight.predictors.measuring.folder import (
    Environment,
    Sample,
    Workload,
    append_sample,
    compact,
    read_measured,
    rehearsed_gpu,
    sample_from_json,
    write_environment,
    write_gpus,
    write_quick,
    write_workload,
)
from neusight.predictors.measuring.probes import Probe, quick_sample, sample, sustained_sample
from neusight.predictors.measuring.stopwatch import Refusal, quick_of

Part: TypeAlias = Literal["quick", "workloads", "kernels"]
Request: TypeAlias = "dict[str, Any]"
Reply: TypeAlias = "dict[str, Any]"

#: Probes asked for at once: they share a profiler's start, and what a crash loses.
_CHUNK = 24
#: Seconds without a reply after which the process counts as hung. cuDNN's benchmark mode, and a
#: first use of a library, take some; a workload is silent until it has ended.
_PROBE_TIMEOUT_S = 90.0
_WORKLOAD_TIMEOUT_S = 240.0
#: Crashes after which something else must be wrong.
_MOST_CRASHES = 25
#: Workloads that come first (six in training, six in inference), and kernels: about a probe of
#: each kind, then some more before the other workloads.
_FIRST_WORKLOADS = 6
_FIRST_PROBES = 280
_MORE_PROBES = 840
#: In less than this those kernels come before the workloads: a workload takes some ten seconds.
_SHORT_MINUTES = 4.0
#: Free space below which nothing is begun: a full measurement takes some 20 MB.
_LEAST_FREE_BYTES = 100 * 2**20


class WorkerLost(Exception):
    """The measuring process died or hung; the text says how."""


class Worker(Protocol):
    """What measures when asked."""

    def ask(self, request: Request, *, timeout_s: float) -> Iterator[Reply]:
        """The replies to a request; WorkerLost where it dies or is silent for too long."""
        ...

    def close(self) -> None:
        """Ends it."""
        ...


@dataclass(frozen=True)
class WorkloadSetting:
    """One row of the table of workloads."""

    name: str
    script: Path
    arguments: tuple[str, ...]


@dataclass
class MeasuringResult:
    """What a run came to. `left` is what there was no time for."""

    environment: Environment
    samples: int = 0
    workloads: int = 0
    refusals: list[Refusal] = field(default_factory=list)
    left: int = 0
    notes: list[str] = field(default_factory=list)


#: Called with the title of a stretch, the share that is done, and the result so far.
_Progress: TypeAlias = Callable[[str, float, MeasuringResult], object]


@dataclass(frozen=True)
class _Stretch:
    """A stretch of work: a chunk of probes, or one workload; `first` also makes quick.json."""

    title: str
    request: Request
    probes: tuple[str, ...] = ()
    ends_quick: bool = False


def measure(
    folder: Path,
    start_worker: Callable[[], Worker],
    *,
    minutes: float,
    parts: Sequence[Part] = ("quick", "workloads", "kernels"),
    settings: Sequence[WorkloadSetting] = (),
    even_if_busy: bool = False,
    report_progress: _Progress = lambda title, share, outcome: None,
    now: Callable[[], float] = time.monotonic,
) -> MeasuringResult:
    """Measures into the folder for about so many minutes; what is there already is kept and not
    measured again. `report_progress` is called before each stretch with its title and share done.

    DataError: no GPU, a busy one, another environment's folder, a full disk; nothing that was
    measured is lost then, nor at an interrupt.
    """
    run = _Run(folder, start_worker)
    deadline = now() + 60.0 * minutes
    try:
        num_gpus = run.look(even_if_busy=even_if_busy)
        tasks = run.tasks(
            parts, settings, num_gpus=num_gpus, kernels_first=minutes < _SHORT_MINUTES
        )
        longest: dict[str, float] = {}
        for number, task in enumerate(tasks):
            begun = now()
            kind = task.request["do"]
            if begun + longest.get(kind, 0.0) / 2 > deadline:
                run.outcome.left = len(tasks) - number
                break
            left_share = 1.0 - max(0.0, deadline - begun) / (60.0 * minutes)
            report_progress(task.title, max(number / len(tasks), left_share), run.outcome)
            run.do(task)
            longest[kind] = max(longest.get(kind, 0.0), now() - begun)
    finally:
        run.close()
    return run.outcome


class _Run:
    """One run: the folder, the worker, and what came out so far."""

    def __init__(self, folder: Path, start_worker: Callable[[], Worker]) -> None:
        self._folder = folder
        self._start = start_worker
        self._worker: Worker | None = None
        self._crashes = 0
        self._samples: dict[tuple[str, str, str], Sample] = {}
        self._refused: dict[str, Refusal] = {}
        self._outcome: MeasuringResult | None = None
        self._quick_kinds: dict[str, str] = {}

    @property
    def outcome(self) -> MeasuringResult:
        assert self._outcome is not None
        return self._outcome

    # -- before ---------------------------------------------------------------------------------

    def look(self, *, even_if_busy: bool) -> int:
        """Who is measured, and whether it may be; the number of its GPUs."""
        try:
            (reply,) = self._request({"do": "environment"}, timeout_s=_PROBE_TIMEOUT_S)
        except WorkerLost as error:
            raise DataError(f"The measuring process could not start: {error}") from error
        if reply["busy"] and not even_if_busy:
            raise DataError(
                f"The GPU is busy: {reply['busy']}. Measurements taken while other work runs are "
                "not"
                " usable: wait, choose another with CUDA_VISIBLE_DEVICES, or give --even-if-busy."
            )
        environment = Environment(**reply["environment"])
        self._outcome = MeasuringResult(environment)
        if reply["busy"]:
            self._outcome.notes.append(f"the GPU was busy: {reply['busy']}")
        with _disk(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            if shutil.disk_usage(self._folder).free < _LEAST_FREE_BYTES:
                raise DataError(
                    f"The disk of {self._folder} has less than"
                    f" {_LEAST_FREE_BYTES // 2**20} MiB left: free some, or give another --out."
                )
            write_environment(self._folder, environment)
            known = _known_gpu(environment.gpu)
            if known is not None:
                write_gpus(self._folder, known, label=environment.gpu)
        self._resume()
        return int(reply["num_gpus"])

    def _resume(self) -> None:
        """What earlier runs measured, or found that it cannot be."""
        there = read_measured(self._folder)
        self._samples = {sample.key: sample for sample in there.samples}
        self.outcome.notes += there.notes
        path = self._folder / "refused.jsonl"
        if path.exists():
            for line in read_bytes(path).split(b"\n"):
                try:
                    row = json_value(line)
                except ValueError:  # cut off by an interrupt
                    continue
                if isinstance(row, dict) and all(isinstance(text, str) for text in row.values()):
                    with contextlib.suppress(TypeError):
                        refusal = Refusal(**row)
                        self._refused[refusal.subject] = refusal
        self._count()

    def _count(self) -> None:
        self.outcome.samples = len(self._samples)
        self.outcome.refusals = list(self._refused.values())
        self.outcome.workloads = len(list((self._folder / "workloads").glob("*.json")))

    def tasks(
        self,
        parts: Sequence[Part],
        settings: Sequence[WorkloadSetting],
        *,
        num_gpus: int,
        kernels_first: bool,
    ) -> list[_Stretch]:
        """What is left to do, in order of need; `kernels_first`: a probe of each kind before the
        first workloads, for which there might be no time afterwards."""
        kinds = quick_sample(num_gpus=num_gpus)
        self._quick_kinds = {probe.text: kind for kind, probe in kinds}
        quick = list(self._chunks("constants", [probe for _, probe in kinds]))
        if quick or not (self._folder / "quick.json").exists():
            quick.append(_Stretch("constants", {"do": "quick"}, ends_quick=True))
        probes = sample()
        six = _FIRST_WORKLOADS
        ordered: list[tuple[Part, Iterable[_Stretch]]] = [
            ("quick", quick),
            ("workloads", self._workloads(settings[:six])),
            ("kernels", self._chunks("kernels", probes[:_FIRST_PROBES])),
            ("workloads", self._workloads(settings[six : 2 * six])),
            ("kernels", self._chunks("kernels", probes[_FIRST_PROBES:_MORE_PROBES])),
            ("kernels", self._chunks("kernels under load", sustained_sample(), "sustained")),
            ("workloads", self._workloads(settings[2 * six :])),
            ("kernels", self._chunks("kernels", probes[_MORE_PROBES:])),
        ]
        if kernels_first:
            ordered[1], ordered[2] = ordered[2], ordered[1]
        return [task for part, tasks in ordered if part in parts for task in tasks]

    def _workloads(self, settings: Sequence[WorkloadSetting]) -> Iterator[_Stretch]:
        for setting in settings:
            path = self._folder / "workloads" / f"{setting.name}.json"
            if not path.exists() and f"workload {setting.name}" not in self._refused:
                request = {
                    "do": "workload",
                    "name": setting.name,
                    "script": str(setting.script),
                    "arguments": list(setting.arguments),
                    "folder": str(self._folder / "workloads"),
                }
                yield _Stretch(f"workload {setting.name}", request)

    def _chunks(
        self, title: str, probes: Sequence[Probe], regime: str = "burst"
    ) -> Iterator[_Stretch]:
        done = {
            text.partition(" part=")[0]
            for text, _, there in self._samples
            if there == regime
        } | {text.partition(" l2=")[0] for text in self._refused}  # fmt: skip
        texts = [probe.text for probe in probes if probe.text not in done]
        size = 1 if regime == "sustained" else _CHUNK
        for start in range(0, len(texts), size):
            chunk = tuple(texts[start : start + size])
            yield _Stretch(title, {"do": "probes", "sustained": regime == "sustained"}, chunk)

    # -- meanwhile ------------------------------------------------------------------------------

    def do(self, task: _Stretch) -> None:
        """One stretch of work, whatever happens to the worker."""
        if task.ends_quick:
            self._write_quick()
        elif task.probes:
            self._measure_probes(task)
        else:
            self._measure_workload(task)
        self._count()

    def _measure_probes(self, task: _Stretch) -> None:
        left = dict.fromkeys(task.probes)
        while left:
            begun = ""
            try:
                request = {**task.request, "probes": list(left)}
                for reply in self._request(request, timeout_s=_PROBE_TIMEOUT_S):
                    if "begin" in reply:
                        begun = reply["begin"]
                    elif "sample" in reply:
                        self._keep(sample_from_json(reply["sample"], "the measuring process"))
                    elif "refused" in reply:
                        self._refuse(Refusal(**reply["refused"]))
                return
            except WorkerLost as error:
                self._count_loss(error)
                # With nothing begun the first one is to blame, or the next start shows.
                culprit = begun or next(iter(left))
                self._refuse(Refusal(culprit, str(error)))
                done = {text.partition(" part=")[0] for text, _, _ in self._samples}
                left = {
                    text: None for text in left if text not in self._refused and text not in done
                }

    def _measure_workload(self, task: _Stretch) -> None:
        # A process of its own for each: what one leaves on the GPU is not the next one's.
        self._end_worker()
        try:
            for reply in self._request(task.request, timeout_s=_WORKLOAD_TIMEOUT_S):
                if "workload" in reply:
                    with _disk(self._folder):
                        write_workload(self._folder, Workload(**reply["workload"]))
                elif "refused" in reply:
                    self._refuse(Refusal(**reply["refused"]))
        except WorkerLost as error:
            self._count_loss(error)
            self._refuse(Refusal(task.title, str(error)))
        self._end_worker()

    def _keep(self, found: Sample) -> None:
        with _disk(self._folder):
            append_sample(self._folder, found)
        self._samples[found.key] = found

    def _refuse(self, refusal: Refusal) -> None:
        self._refused[refusal.subject] = refusal
        with _disk(self._folder), (self._folder / "refused.jsonl").open("a") as stream:
            stream.write(json.dumps(asdict(refusal)) + "\n")

    def _write_quick(self) -> None:
        environment = self.outcome.environment
        samples = [item for item in self._samples.values() if item.probe in self._quick_kinds]
        found = quick_of(self._quick_kinds, samples, _known_gpu(environment.gpu))
        with _disk(self._folder):
            write_quick(self._folder, found)

    # -- the worker -----------------------------------------------------------------------------

    def _request(self, request: Request, *, timeout_s: float) -> Iterator[Reply]:
        if self._worker is None:
            self._worker = self._start()
        for reply in self._worker.ask(request, timeout_s=timeout_s):
            if "error" in reply:
                raise DataError(reply["error"])
            yield reply

    def _count_loss(self, error: WorkerLost) -> None:
        self._end_worker()
        self._crashes += 1
        if self._crashes >= _MOST_CRASHES:
            raise DataError(
                f"The measuring process died {self._crashes} times, the last time: {error}. Is"
                " the GPU healthy? What was measured is kept; the same command continues."
            ) from error

    def _end_worker(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def close(self) -> None:
        """Ends the worker and moves what was measured into the tables."""
        self._end_worker()
        if self._outcome is not None and (self._folder / "journal.jsonl").exists():
            with _disk(self._folder):
                compact(self._folder)
            self._count()


def _known_gpu(name: str) -> GPU | None:
    try:
        return find_gpu(rehearsed_gpu(name) or name)
    except UnknownGPUError:
        return None


@contextlib.contextmanager
def _disk(folder: Path) -> Iterator[None]:
    """What cannot be written becomes an error that says what is kept."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{error.filename or folder} cannot be written: {error.strerror or error}. "
            "What was measured before is kept; free some space, and the same command continues."
        ) from error


# -- the measuring process ---------------------------------------------------------------------


class WorkerProcess:
    """A process that runs `command` and answers on its standard output."""

    def __init__(self, command: Sequence[str]) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed by close)
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def ask(self, request: Request, *, timeout_s: float) -> Iterator[Reply]:
        """The replies until the one that says that it is done."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # where it has died, its last words are read below
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        while True:
            try:
                line = self._lines.get(timeout=timeout_s)
            except queue.Empty:
                self.close()
                raise WorkerLost(f"no reply within {timeout_s:.0f} s") from None
            if not line:
                code = self._process.wait()
                raise WorkerLost(f"it ended with code {code}{self._last_output()}")
            reply: Reply = json.loads(line)
            if "done" in reply:
                return
            yield reply

    def _last_output(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f": {lines[-1][:300]}" if lines else ""

    def close(self) -> None:
        """Ends the process, by force if it must be."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout=_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(timeout=_END_TIMEOUT_S)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()


#: Seconds that a process gets to end by itself.
_END_TIMEOUT_S = 5.0


def worker_command(start: Sequence[str], *, rehearsed_gpu: str | None) -> list[str]:
    """The command of a measuring process; `start` is what runs `neusight measure` here."""
    rehearsal = ["--rehearse", rehearsed_gpu] if rehearsed_gpu else []
    return [*start, "--worker", *rehearsal]


def read_settings(folder: Path) -> list[WorkloadSetting]:
    """The table of workloads beside their scripts; DataError where there is none."""
    path = folder / "settings.json"
    try:
        rows = json_value(read_bytes(path))
        found = [
            WorkloadSetting(row["name"], folder / row["script"], tuple(row["arguments"]))
            for row in rows
        ]
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror}. The workloads lie in benchmarks/workloads"
            " of the source tree; --workloads-from DIR names another place."
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is no table of workloads ({shown(error)}).") from error
    return found
