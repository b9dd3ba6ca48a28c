"""The front door: `forecast_on` opens a block, `Forecast` is what it tells."""

from __future__ import annotations

import functools
import json
import os
import sys
import warnings as python_warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from neusight.failure import FAILURE_OPTION, failure_options, ran_out
from neusight.interrupts import Interrupts, runs_the_program
from neusight.memory.placement import MemoryTimeline, memory_on
from neusight.output.summary import StepLatency, Verdict, describe, to_json, verdict_of
from neusight.predictors.errors import CalibrationError, ForecastStateError, RecordingError
from neusight.predictors.files import json_value
from neusight.predictors.gpu import GPU
from neusight.predictors.gpu import gpu as find_gpu
from neusight.predictors.kernel import Kernel
from neusight.predictors.measuring.calibration import Calibration
from neusight.predictors.predictor import Estimate, Predictor
from neusight.predictors.predictor import predictor as find_predictor
from neusight.predictors.printable import printable
from neusight.recording.recording import STEP_OPTION, Recording
from neusight.recording.saving import load_recording, save_recording
from neusight.timeline.host import (
    OLDER,
    PLAIN,
    PROFILED,
    PROFILED_OLDER,
    HostProfile,
    host_of,
    profiled_host_of,
)
from neusight.timeline.pricing import (
    CALIBRATED_HOST,
    Pricer,
    calibrated,
    calibration_of,
    measured_host,
    read_calibration,
    uncalibrated,
)
from neusight.timeline.scheduler import Timeline, schedule

if TYPE_CHECKING:
    from neusight.fake_cuda.store.folder_watch import FolderWatch
    from neusight.fake_cuda.store.store import Store
    from neusight.recording.recorder import Recorder

__all__ = ["Forecast", "Session", "forecast_on", "host_profile", "open_forecast"]

P = ParamSpec("P")
R = TypeVar("R")

_HOSTS = {host.name: host for host in (PLAIN, PROFILED, OLDER, PROFILED_OLDER)}

#: Changed paths that a warning names.
_PATHS_SHOWN = 5

#: Share of ops on the CPU above which a block is taken to run on the CPU by mistake.
_MOSTLY_CPU = 0.9


class Forecast:
    """What a program does on a GPU: latency, memory and timeline of a recording.

    Inside its block only `step()` is of use; the rest is computed when it is first asked for.
    """

    def __init__(
        self,
        gpu: GPU,
        predictor: Predictor,
        host: HostProfile,
        *,
        record_shapes: bool = True,
        profile_memory: bool = True,
        with_modules: bool = True,
    ) -> None:
        self.gpu = gpu
        self.host = host
        self.trace_path: str | None = None
        self._pricer = Pricer(gpu, predictor)
        self._options = {
            "record_shapes": record_shapes,
            "profile_memory": profile_memory,
            "with_modules": with_modules,
        }
        self._recorder: Recorder | None = None
        self._recording: Recording | None = None

    # -- inside the block -----------------------------------------------------------------------

    def step(self) -> None:
        """Says that a step of the program ends here; from then on only these calls end steps."""
        if self._recorder is None:
            raise ForecastStateError("Forecast.step() is for inside its forecast_on block.")
        self._recorder.cutter.explicit_step()

    # -- what was heard ---------------------------------------------------------------------------

    @property
    def recording(self) -> Recording:
        """All that was recorded; ForecastStateError while the block is open."""
        if self._recording is None:
            raise ForecastStateError(
                "The forecast is known when its block has ended. Read it after the with statement."
            )
        return self._recording

    @cached_property
    def timeline(self) -> Timeline:
        """Every op and kernel placed in time; of equal steps the first few."""
        self._pricer.prepare(self.recording)
        return schedule(self.recording, self._pricer, self.host)

    @cached_property
    def memory(self) -> MemoryTimeline:
        """Every allocation placed in the GPU's memory."""
        return memory_on(self.recording, self.gpu)

    @cached_property
    def verdict(self) -> Verdict:
        """The figures of the steady step, of which the properties below are parts."""
        return verdict_of(self.recording, self.timeline, self.memory, self.gpu)

    @property
    def predictor(self) -> Predictor:
        """Who prices the kernels, calibration included."""
        return self._pricer.predictor

    @property
    def predictor_name(self) -> str:
        """Who priced the kernels."""
        return self._pricer.predictor.name

    @property
    def calibration(self) -> Calibration | None:
        """What measurements taught the predictor and the host, if anything."""
        return calibration_of(self._pricer.predictor)

    @property
    def step_latency_us(self) -> StepLatency:
        """Median over the steady steps, with the 80 % interval that the kernels' intervals give."""
        return self.verdict.step_latency

    @property
    def steps(self) -> list[dict[str, Any]]:
        """A row for each run of equal steps: kind, count, and where their microseconds go."""
        return self.verdict.steps

    @property
    def latency_us(self) -> float:
        """The whole block, all its steps counted."""
        return self.verdict.latency_us

    @property
    def gpu_busy_us(self) -> float:
        """Time in the steady step in which the GPU runs at least one kernel."""
        return self.verdict.gpu_busy_us

    @property
    def bound(self) -> str:
        """What limits the steady step: "host", "compute", "memory" or "communication"."""
        return self.verdict.bound

    @property
    def peak_memory_bytes(self) -> int:
        """Most bytes allocated at once, as torch.cuda.max_memory_allocated counts."""
        return self.memory.peak_allocated

    @property
    def peak_reserved_bytes(self) -> int:
        """Most bytes that the caching allocator held."""
        return self.memory.peak_reserved

    @property
    def context_bytes(self) -> int:
        """What the CUDA context and loaded kernels take beside that."""
        return self.gpu.context_bytes

    @property
    def fits(self) -> bool:
        """Whether all that was recorded fits into the GPU's memory, and the program did not end
        because something did not."""
        return self.memory.fits and not ran_out(self.recording)

    @property
    def failure(self) -> str:
        """What ended the program before its end, in words; empty where nothing did."""
        return self.recording.options.get(FAILURE_OPTION, "")

    @property
    def coverage(self) -> dict[str, float]:
        """Share of the steady step's kernel time by origin: trained, physics, fallback."""
        return self.verdict.coverage

    @property
    def unmapped(self) -> list[str]:
        """Ops that nobody mapped to kernels, priced as bytes over bandwidth."""
        self.timeline  # noqa: B018  (pricing fills the list)
        return sorted(self._pricer.unmapped)

    @property
    def flops_per_step(self) -> int:
        """Floating-point operations of matrix products, convolutions and attention in a step."""
        return self.verdict.flops

    @property
    def mfu(self) -> float:
        """Those, over what the GPU's units could do in the time of the step."""
        return self.verdict.mfu

    @property
    def kernels(self) -> list[tuple[Kernel, Estimate]]:
        """The kernels of the whole block in launch order; of equal steps the first few."""
        return [(span.kernel, span.estimate) for span in self.timeline.kernels]

    @property
    def warnings(self) -> list[str]:
        """What to know before believing the figures."""
        return list(self.recording.warnings)

    # -- elsewhere ------------------------------------------------------------------------------

    def on(
        self,
        gpu: str | GPU,
        *,
        predictor: str | Predictor | None = None,
        host: str | HostProfile | None = None,
        calibration: Calibration | str | Path | None = None,
    ) -> Forecast:
        """The same recording on another GPU, or on this one with another predictor or calibration.

        The calibration of this forecast stays where GPU and predictor do.
        ForecastStateError where the program ended because this GPU's memory did not suffice, or
        asked the GPU something that the other one answers differently (its attention kernel, its
        compute capability): record it there again.
        """
        target = find_gpu(gpu)
        if target != self.gpu and ran_out(self.recording):
            raise ForecastStateError(
                f"The program ended where it ran out of the memory of {self.gpu.name}, so nobody "
                f"knows what it does beyond. Record it again: forecast_on({target.name!r})."
            )
        if target != self.gpu:
            _require_same_answers(self.recording, target)
        learnt = read_calibration(calibration)
        if learnt is None and predictor is None and target == self.gpu:
            learnt = self.calibration
        chosen = find_predictor(self._pricer.predictor if predictor is None else predictor)
        other = Forecast(
            target,
            calibrated(uncalibrated(chosen), target, learnt),
            host_profile(host, target, learnt),
            **self._options,
        )
        return other.of(self.recording)

    def of(self, recording: Recording) -> Forecast:
        """The forecast of another recording, such as this one changed, priced alike."""
        other = Forecast(self.gpu, self._pricer.predictor, self.host, **self._options)
        other._pricer = self._pricer
        other._recording = recording
        return other

    def save(self, path: str | Path) -> None:
        """Writes the recording, to be priced again later: JSON, gzip where the name ends in .gz."""
        learnt = self.calibration
        save_recording(
            self.recording,
            path,
            gpu=self.gpu.name,
            predictor=uncalibrated(self._pricer.predictor).name,
            host=self.host.name,
            **({} if learnt is None else {"calibration": json.dumps(learnt.to_json())}),
        )

    @classmethod
    def load(cls, path: str | Path) -> Forecast:
        """A forecast from what `save` wrote; RecordingError where that cannot be read."""
        recording, extra = load_recording(path)
        try:
            target = find_gpu(extra.get("gpu", recording.gpu))
            priced_by = find_predictor(extra.get("predictor"))
        except ValueError as error:
            raise RecordingError(f"The saved forecast {path} cannot be priced: {error}") from error
        host = _HOSTS.get(extra.get("host", "").removesuffix(CALIBRATED_HOST), PLAIN)
        if "calibration" in extra:
            try:
                learnt = Calibration.from_json(json_value(extra["calibration"]), source=str(path))
                priced_by = calibrated(priced_by, target, learnt)
                host = measured_host(host, learnt)
            except (CalibrationError, ValueError) as error:
                told = f"priced without the calibration it was saved with: {error}"
                recording = replace(recording, warnings=(*recording.warnings, told))
        forecast = cls(target, priced_by, host)
        forecast._recording = recording
        return forecast

    def export_chrome_trace(self, path: str | Path) -> None:
        """Writes a trace for TensorBoard's profiler plugin, Perfetto and HTA (.gz allowed)."""
        from neusight.output.trace import write_trace

        write_trace(
            path,
            self.timeline,
            self.memory,
            self.gpu,
            world_size=self.recording.world_size,
            **self._options,
        )

    def export_memory_snapshot(self, path: str | Path) -> None:
        """Writes what the allocator did for pytorch.org/memory_viz, as torch's own
        `torch.cuda.memory._dump_snapshot` does (a pickle, which that page reads)."""
        from neusight.memory.snapshot import write_memory_snapshot

        write_memory_snapshot(path, self.recording, self.gpu, times_ns=self.timeline.memory_ns)

    def key_averages(self, group_by_input_shape: bool = False, group_by_stack_n: int = 0) -> Any:
        """torch.profiler's own event list; `.table(sort_by="cuda_time_total")` prints it."""
        return self.events().key_averages(group_by_input_shape, group_by_stack_n)

    def events(self) -> Any:
        """The ops as torch.profiler's function events, with their kernels' time and memory."""
        from neusight.output.events import event_list

        memory = self.memory if self._options["profile_memory"] else None
        return event_list(self.timeline, self.gpu, memory)

    def summary(self, *, changes: Sequence[str] = ()) -> str:
        """The forecast in words and a few rows; `changes` are lines on what to change."""
        return describe(self, changes=changes)

    def to_json(self) -> dict[str, Any]:
        """All figures, as `neusight run --json` writes them."""
        return to_json(self)

    def __repr__(self) -> str:
        if self._recording is None:
            return printable(f"<Forecast on {self.gpu.name}, recording>")
        told = self.failure.partition("\n")[0] or self.verdict.headline(self.gpu)
        return printable(f"<Forecast on {self.gpu.name}: {told}>")


class forecast_on:  # a context manager reads as a verb
    """Forecasts what the block (or the decorated function) would do on a GPU.

    `gpu` is a name (`neusight gpus` lists them) or a `GPU`; `predictor` a name or your own;
    `host` "plain", "older", "profiled" (as slow as a profiler makes machines with that GPU) or a
    `HostProfile` (default: what machines with that GPU usually have); `calibration` what
    `neusight.calibrate` made of measurements on that GPU, or its file; `on_trace_ready` is called
    with the forecast when the block ends; `on_out_of_memory="raise"` raises
    torch.OutOfMemoryError where the GPU would; `with_stack` keeps the program's lines that led to
    each op and allocation; `strict` raises UnmappedOpError at the first op
    that nobody mapped to kernels.

    Files that were there before are not changed: what the block writes, moves and removes it sees
    itself, and it is gone at the end, new files included. `keep_writes` is a folder that collects
    it; with `allow_writes` the block writes where it says.

    UnknownGPUError, ForecastStateError (one block inside another), UnsupportedTorchError,
    CalibrationError (of another GPU, predictor or version).
    """

    def __init__(
        self,
        gpu: str | GPU,
        *,
        predictor: str | Predictor | None = None,
        calibration: Calibration | str | Path | None = None,
        host: str | HostProfile | None = None,
        on_trace_ready: Callable[[Forecast], object] | None = None,
        on_out_of_memory: Literal["report", "raise"] = "report",
        record_shapes: bool = True,
        profile_memory: bool = True,
        with_stack: bool = False,
        with_modules: bool = True,
        strict: bool = False,
        allow_writes: bool = False,
        keep_writes: str | Path | None = None,
    ) -> None:
        if on_out_of_memory not in ("report", "raise"):
            raise ValueError(
                f'on_out_of_memory is {on_out_of_memory!r}; it must be "report" or "raise".'
            )
        target = find_gpu(gpu)
        learnt = read_calibration(calibration)
        self._arguments = (
            target,
            calibrated(find_predictor(predictor), target, learnt),
            host_profile(host, target, learnt),
        )
        self._options: dict[str, Any] = {
            "record_shapes": record_shapes,
            "profile_memory": profile_memory,
            "with_modules": with_modules,
        }
        self._on_trace_ready = on_trace_ready
        self._raises = on_out_of_memory == "raise"
        self._strict = strict
        self._with_stack = with_stack
        self._writes: dict[str, Any] = {"allow_writes": allow_writes, "keep_writes": keep_writes}
        self._session: Session | None = None

    def __enter__(self) -> Forecast:
        return self.open(caller=_caller_of(sys._getframe(1)))

    def open(self, *, caller: CodeType | None, folder: Path | None = None) -> Forecast:
        """Enters the block for a tool that runs programs: call stacks end at `caller`, and name
        files relative to `folder` (default: the working directory)."""
        forecast = Forecast(*self._arguments, **self._options)
        session = Session(
            forecast,
            strict=self._strict,
            raise_out_of_memory=self._raises,
            with_stack=self._with_stack,
            **self._writes,
            caller=caller,
            folder=folder,
        )
        self._session = session
        try:
            session.open()
            return forecast
        except BaseException:
            session.close()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        session, self._session = self._session, None
        assert session is not None
        session.note_failure(kind, error, traceback)
        session.close()
        for text in session.forecast.warnings if kind is None else ():
            if text.startswith("no CUDA work"):
                python_warnings.warn(text, stacklevel=2)
        if self._on_trace_ready is not None and session.forecast.recording.steps:
            self._on_trace_ready(session.forecast)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """As a decorator: each call is a forecast, kept as `function.forecast`."""
        if not callable(function):
            raise TypeError(
                f"forecast_on({self._arguments[0].name!r}) decorates a function or opens a block: "
                f"with neusight.forecast_on(...): — not {function!r}."
            )

        @functools.wraps(function)
        def forecasted(*args: P.args, **kwargs: P.kwargs) -> R:
            with self as forecast:
                forecasted.forecast = forecast  # type: ignore[attr-defined]
                return function(*args, **kwargs)

        runs_the_program(forecasted)
        return forecasted


class Session:
    """One open block: what `forecast_on` and `neusight run` both enter and leave."""

    _current: Session | None = None

    def __init__(
        self,
        forecast: Forecast,
        *,
        strict: bool = False,
        raise_out_of_memory: bool = False,
        virtual_time: bool = False,
        allow_writes: bool = False,
        keep_writes: str | Path | None = None,
        store: Store | None = None,
        steady_steps: int | None = None,
        max_ops: int | None = None,
        script: str = "",
        options: Mapping[str, str] | None = None,
        with_stack: bool = False,
        caller: CodeType | None = None,
        folder: Path | None = None,
    ) -> None:
        self.forecast = forecast
        self._strict = strict
        self._with_stack = with_stack
        self._caller = caller
        self._folder = folder
        self._settings = {
            "raise_out_of_memory": raise_out_of_memory,
            "virtual_time": virtual_time,
        }
        self._allow_writes = allow_writes
        self._keep_writes = keep_writes
        self._store = store
        self._steady_steps = steady_steps
        self._max_ops = max_ops
        self._script = script
        self._options = dict(options or {})
        self.interrupts = Interrupts()
        self._undo = ExitStack()
        self._questions: dict[str, str] = {}
        self._failure: dict[str, str] = {}
        self._recorder: Recorder | None = None

    def open(self) -> None:
        """Enters the block."""
        if Session._current is not None:
            raise ForecastStateError(
                f"A forecast on {Session._current.forecast.gpu.name} is open already; end it "
                "before you begin another. Forecast.on(gpu) prices one recording for several GPUs."
            )
        caller = self._caller or sys._getframe(1).f_code
        self._undo.callback(self.interrupts.put_back)
        try:
            self._prove()
            self.interrupts.hold()
            self._enter(caller)
            self.interrupts.release()
        except BaseException:
            self.close()
            raise

    def _prove(self) -> None:
        """Imports torch, which must be whole or not at all, and proves that it can be patched: the
        first time that takes seconds, in which nothing has to be held."""
        self.interrupts.hold()
        from neusight.fake_cuda.core import self_check

        self.interrupts.put_back()
        self_check()

    def _enter(self, caller: CodeType) -> None:
        from neusight.fake_cuda.session import enter_fake_cuda
        from neusight.ops import why_unmapped
        from neusight.recording.call_stack import CallStacks
        from neusight.recording.recorder import Recorder

        recorder = Recorder(
            steady_steps=self._steady_steps,
            max_ops=self._max_ops,
            why_unmapped=why_unmapped if self._strict else None,
            stacks=CallStacks(self._folder, caller) if self._with_stack else None,
        )
        self._undo.callback(setattr, Session, "_current", None)
        Session._current = self
        self._undo.callback(self._keep)
        enter_fake_cuda(
            self._undo,
            recorder,
            self.forecast.gpu,
            price=self.forecast._pricer,
            host=self.forecast.host,
            asked=self._asked,
            store=self._enter_files(recorder),
            **self._settings,
        )
        self._undo.callback(recorder.cutter.finish)
        self._undo.callback(self.interrupts.hold)
        self._recorder = self.forecast._recorder = self.interrupts.recorder = recorder

    def _enter_files(self, recorder: Recorder) -> Store | None:
        """The store for what the program does to files: one that was given is left as it is, an
        own one is gone afterwards."""
        from neusight.fake_cuda.store.folder_watch import FolderWatch
        from neusight.fake_cuda.store.store import Store

        if self._allow_writes:
            return None
        store = self._store or Store.create()
        if self._store is None:
            store.watch = FolderWatch()
            store.watch.touch(str(Path.cwd()))
            self._undo.callback(_tell_of_changes, recorder, store.watch)
            keep = None if self._keep_writes is None else str(self._keep_writes)
            if keep is not None:
                Path(keep).mkdir(parents=True, exist_ok=True)  # so that it is none of the program's
            self._undo.callback(_tell_what_is_lost, recorder, store)
            self._undo.callback(store.close, keep=keep)
        self._undo.callback(_tell_of_files, recorder, store)
        return store

    @property
    def progress(self) -> tuple[int, int]:
        """Ops on the GPU and steps heard so far; may be asked from another thread."""
        recorder = self._recorder
        if recorder is None:
            return 0, 0
        return recorder.gpu_ops, sum(step.count for step in recorder.cutter.steps)

    def _asked(self, question: str, answer: object) -> None:
        self._questions[question] = repr(answer)

    def note_failure(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Keeps what ended the program early, if anything but the user did."""
        if not self.interrupts.count:
            self._failure = failure_options(error)

    def close(self) -> None:
        """Leaves the block, whatever happened in it, and keeps what was recorded. A Ctrl-C that
        comes meanwhile is passed on when all is done."""
        self._undo.close()

    def _keep(self) -> None:
        recorder = self._recorder
        self.forecast._recorder = None
        if recorder is None:  # it was never open
            return
        import torch

        self.forecast._recording = Recording(
            steps=tuple(recorder.cutter.steps),
            gpu=self.forecast.gpu.name,
            torch_version=torch.__version__,
            questions=tuple(sorted(self._questions.items())),
            warnings=tuple(_warnings_of(recorder)),
            script=self._script,
            options={
                **self._options,
                **recorder.options,
                STEP_OPTION: recorder.cutter.step_is,
                **self._failure,
            },
            made=recorder.attribution.made,
        )


def _tell_of_changes(recorder: Recorder, watch: FolderWatch) -> None:
    """What a C library or another program changed past the overlay; files into which standard
    output goes are meant to."""
    streams = [os.path.realpath(f"/proc/self/fd/{number}") for number in (1, 2)]
    changed = watch.changes(expected=streams)
    if changed:
        shown = ", ".join(changed[:_PATHS_SHOWN]) + (", …" if len(changed) > _PATHS_SHOWN else "")
        recorder.warn_once(
            f"past neusight's overlay, by a C library or another program, changed: {shown}; "
            "`neusight run` stops such writes where the kernel has Landlock"
        )


def _tell_what_is_lost(recorder: Recorder, store: Store) -> None:
    if store.not_kept:
        recorder.warn_once(f"keep_writes could not keep {', '.join(store.not_kept)}")


def _tell_of_files(recorder: Recorder, store: Store) -> None:
    summary = store.summary_line()
    if summary:
        recorder.warn_once(summary)


def _caller_of(frame: FrameType) -> CodeType | None:
    """What called the function that opens a block: the program does not reach further out."""
    return None if frame.f_back is None else frame.f_back.f_code


def open_forecast() -> Forecast | None:
    """The forecast whose block is open, for code deep inside it; None outside of any.

    >>> open_forecast() is None
    True
    """
    session = Session._current
    return None if session is None else session.forecast


def _warnings_of(recorder: Recorder) -> list[str]:
    found = list(recorder.warnings)
    if recorder.gpu_ops == 0:
        found.append(
            "no CUDA work was recorded: the block did none, or the device was chosen before it was "
            'entered (device = "cuda" if torch.cuda.is_available() else "cpu"). Move that inside.'
        )
    elif recorder.cpu_ops > _MOSTLY_CPU * (recorder.cpu_ops + recorder.gpu_ops):
        found.append(
            f"{recorder.cpu_ops} of {recorder.cpu_ops + recorder.gpu_ops} ops ran on the CPU; if "
            "the device was chosen before the block, move that inside, or use `neusight run`."
        )
    values = recorder.values
    if values.invented_reads:
        sites = sorted(values.invented_reads)
        shown = ", ".join(sites[:5]) + (", …" if len(sites) > 5 else "")
        found.append(f"values that only a GPU can compute were read and invented at: {shown}")
    if values.materialised_bytes:
        found.append(
            f"{values.materialised_bytes / 2**20:.1f} MiB of parameters were filled with seeded "
            "random values, because CPU code computed on them"
        )
    return found


def host_profile(
    host: str | HostProfile | None, gpu: GPU, calibration: Calibration | None = None
) -> HostProfile:
    """A named profile of the host, one of your own, or (None) what machines with that GPU have;
    with a calibration, the measured costs of that machine's."""
    if isinstance(host, HostProfile):
        return host
    if host is not None and host not in _HOSTS:
        raise ValueError(
            f"host is {host!r}; it must be one of {', '.join(_HOSTS)} or a HostProfile."
        )
    if host is None:
        chosen = host_of(gpu)
    else:
        chosen = profiled_host_of(gpu) if host == PROFILED.name else _HOSTS[host]
    return chosen if calibration is None else measured_host(chosen, calibration)


def _require_same_answers(recording: Recording, target: GPU) -> None:
    from neusight.questions import answer

    for question, answered in recording.questions:
        there = answer(question, target)
        if there != answered:
            name = question.partition(" ")[0]
            raise ForecastStateError(
                f"The program asked {recording.gpu} for {name} and {target.name} answers "
                f"differently ({answered} there {there if there is not None else 'unknown'}), so "
                f"it may take another path. Record it again: forecast_on({target.name!r})."
            )
