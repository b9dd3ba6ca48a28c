"""The session that records: `forecast_on` opens a block, and what it yields is a `Forecast`."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import sys
import warnings as python_warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from neusight.compatibility.releases import refuse_platform
from neusight.compatibility.torch_internals import error_of_missing_name
from neusight.failure import failure_options
from neusight.fake_cuda.distributed.rank import Rank, stated_rank
from neusight.fake_cuda.processes.processes import Processes
from neusight.forecast import Forecast, ForecastOptions, forecast_options
from neusight.interrupts import Interrupts, runs_the_program
from neusight.predictors.clusters.placement import require_joined
from neusight.predictors.clusters.topology import Topology
from neusight.predictors.errors import ForecastStateError
from neusight.predictors.formatting import bytes_text
from neusight.predictors.gpu import GPU, find_gpu
from neusight.predictors.measuring.calibration import Calibration
from neusight.predictors.predictor import Predictor
from neusight.predictors.registry import find_predictor
from neusight.predictors.terminal_text import printable
from neusight.recording.recording import STEP_OPTION, Recording
from neusight.timeline.host import HostProfile

if TYPE_CHECKING:
    from neusight.fake_cuda.distributed.peers.link import Link
    from neusight.fake_cuda.processes.other_gpus import OtherGPUs
    from neusight.fake_cuda.store.folder_watch import FolderWatch
    from neusight.fake_cuda.store.store import Store
    from neusight.recording.recorder import Recorder

P = ParamSpec("P")
R = TypeVar("R")

#: The name in `Recording.options` that says that the program wrote files, and not where it said.
FILES_OPTION = "files"

#: Changed paths that a warning names.
_PATHS_SHOWN = 5

_NO_CUDA_WORK = "no CUDA work was recorded"
#: Added for a `with` block, where the usual reason is a device that was chosen above it.
_CHOSEN_BEFORE = (
    "; if the block uses a device that was chosen before it "
    '(device = "cuda" if torch.cuda.is_available() else "cpu"), move that line into the block'
)

#: Share of ops on the CPU above which a block is taken to run on the CPU by mistake.
_MOSTLY_CPU = 0.9


class NoCudaWorkWarning(UserWarning):
    """A block did no CUDA work, so there is nothing to forecast."""


@dataclass(frozen=True)
class SessionOptions:
    """What a forecast is made with, and how the program is recorded.

    `stated` is what the user says of the program, for `Recording.options`. A loop that is recorded
    ends after `steady_steps` equal steps or `max_ops` ops (None: by itself). `compiles_models`
    compiles the program's models, which it does not ask for itself. `with_functions` records Python
    functions around operators, with stacks; without `with_operators` neither is recorded. With
    `has_view` the process has a copy-on-write view of the file system, so that it writes where it
    says. `link` leads from `rank` to those that run beside it; what waits for other processes in
    vain ends after `wait_s` seconds. Kernels are those of `torch_version` (None: the installed).
    """

    forecast: ForecastOptions
    on_out_of_memory: Literal["report", "raise"] = "report"
    strict: bool = False
    with_stack: bool = False
    with_functions: bool = False
    virtual_time: bool = False
    allow_writes: bool = False
    has_view: bool = False
    keep_writes: str | Path | None = None
    steady_steps: int | None = None
    max_ops: int | None = None
    script: str = ""
    rank: Rank | None = None
    link: Link | None = None
    wait_s: float = 60.0
    stated: Mapping[str, str] = field(default_factory=dict)
    compiles_models: bool = False
    with_operators: bool = True
    torch_version: str | None = None

    def __post_init__(self) -> None:
        if self.on_out_of_memory not in ("report", "raise"):
            raise ValueError(
                f'on_out_of_memory is {self.on_out_of_memory!r}; it must be "report" or "raise".'
            )
        if self.rank is not None and self.forecast.topology is not None:
            require_joined(self.forecast.topology, self.rank.world_size, self.rank.gpus_per_node)


class OpenForecast(Forecast):
    """The forecast of a block: `step()` is of use inside it, all else after it."""

    def __init__(self, options: ForecastOptions) -> None:
        super().__init__(Recording((), options.gpu.name, torch_version=""), options)
        self._recorder: Recorder | None = None
        self._is_recorded = False

    @property
    def recording(self) -> Recording:
        """All that was recorded; ForecastStateError while the block is open."""
        if not self._is_recorded:
            raise ForecastStateError(
                "The forecast is known when its block has ended. Read it after the with statement."
            )
        return self._recording

    def step(self) -> None:
        """Says that a step of the program ends here; from then on only these calls end steps."""
        if self._recorder is None:
            super().step()
        else:
            self._recorder.cutter.explicit_step()

    def listen(self, recorder: Recorder) -> None:
        """The block is open: `step()` is for this recorder."""
        self._recorder = recorder

    def keep(self, recording: Recording | None) -> None:
        """The block has ended, with what it recorded (None: it was never open)."""
        self._recorder = None
        if recording is not None:
            self._recording, self._is_recorded = recording, True

    def add(self, recorded: Sequence[tuple[GPU, Recording]], notes: Sequence[str]) -> None:
        """What the block did on other GPUs, and where that is not known."""
        self._recorded += recorded
        kept = self._recording
        self._recording = replace(kept, warnings=(*kept.warnings, *notes))

    def _repr_html_(self) -> str | None:
        return super()._repr_html_() if self._is_recorded else None

    def __repr__(self) -> str:
        if not self._is_recorded:
            return printable(f"<Forecast on {self.gpu.name}, recording>")
        return super().__repr__()


class Session:
    """One block in which a program is recorded: what `forecast_on`, `neusight run` and all others
    enter and leave.

    What the program does to files goes to `store` (default: an own one). Call stacks end at
    `caller` (default: what called the function with the block) and name files relative to `folder`
    (default: the working directory).
    """

    _current: Session | None = None

    def __init__(
        self,
        options: SessionOptions,
        *,
        store: Store | None = None,
        caller: CodeType | None = None,
        folder: Path | None = None,
        processes: Processes | None = None,
    ) -> None:
        self.options = options
        self.processes = processes or Processes()
        self.forecast = OpenForecast(options.forecast)
        self.interrupts = Interrupts()
        self._store = store
        self._caller = caller
        self._folder = folder
        self._undo = ExitStack()
        self._queries: dict[str, str] = {}
        self._failure: dict[str, str] = {}
        self._recorder: Recorder | None = None

    def __enter__(self) -> OpenForecast:
        self._caller = self._caller or _caller_of(sys._getframe(1))
        return self.open()

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self.record_failure(error)
        self.close()

    def open(self) -> OpenForecast:
        """Enters the block, for a tool that runs programs."""
        if Session._current is not None and Session._current.processes.process is not None:
            Session._current.close()  # a process of another program's, with a forecast of its own
        if Session._current is not None:
            raise ForecastStateError(
                f"A forecast on {Session._current.forecast.gpu.name} is open already; end it "
                "before you begin another. Forecast.on(gpu) prices one recording for several GPUs."
            )
        caller = self._caller or sys._getframe(1).f_code
        self._undo.callback(self.interrupts.put_back)
        try:
            self.prove()
            self.interrupts.hold()
            self._enter(caller)
            self.interrupts.release()
            return self.forecast
        except BaseException:
            self.close()
            raise

    def prove(self) -> None:
        """Imports torch, which must be whole or not at all, and proves that it can be patched: the
        first time that takes seconds, in which nothing has to be held."""
        refuse_platform()
        self.interrupts.hold()
        from neusight.compatibility.torch_internals import require

        require("opening")  # modules that are imported from here on take such names at their top
        from neusight.fake_cuda.core import record_functions_failure, self_check

        self.interrupts.put_back()
        self_check()
        record_functions_failure()

    def _enter(self, caller: CodeType) -> None:
        from neusight.fake_cuda.session import Opening, enter_fake_cuda
        from neusight.fake_cuda.torch_api.lazy_modules import install_lazy_modules
        from neusight.ops import why_unmapped
        from neusight.recording.call_stack import CallStacks
        from neusight.recording.recorder import Recorder
        from neusight.stubs.cuda_sources import install_cuda_sources
        from neusight.stubs.finder import install_stubs
        from neusight.stubs.hub_kernels import install_hub_kernels

        options, forecast = self.options, self.forecast
        stacks = CallStacks(self._folder, caller)
        install_lazy_modules(self._undo)
        recorder = Recorder(
            steady_steps=options.steady_steps,
            max_ops=options.max_ops,
            why_unmapped=why_unmapped if options.strict else None,
            stacks=stacks if options.with_stack else None,
            with_functions=options.with_functions,
            torch_version=options.torch_version,
        )
        self._undo.callback(setattr, Session, "_current", None)
        Session._current = self
        self._undo.callback(self._keep)
        store = self._enter_files(recorder)
        self._open_processes(recorder, store)
        # Below the hooks on imports, which patch them too.
        install_stubs(self._undo, recorder.warn_once)
        opening = Opening(
            self._undo,
            recorder,
            forecast.gpu,
            price=forecast.pricer,
            host=forecast.host,
            on_query=lambda query, found: self._queries.update({query: repr(found)}),
            store=store,
            has_view=options.has_view,
            raise_out_of_memory=options.on_out_of_memory == "raise",
            virtual_time=options.virtual_time,
            compiles_models=options.compiles_models,
            with_operators=options.with_operators,
            rank=options.rank,
            link=options.link,
            wait_s=options.wait_s,
            processes=self.processes,
            stacks=stacks,
        )
        enter_fake_cuda(opening)
        install_cuda_sources(self._undo, recorder)
        install_hub_kernels(self._undo)
        self._undo.callback(recorder.cutter.finish)
        self._undo.callback(self.interrupts.hold)
        self._recorder = self.interrupts.recorder = recorder
        forecast.listen(recorder)

    def _open_processes(self, recorder: Recorder, store: Store | None) -> None:
        """Those that the program starts record by the same options, and see the same files."""
        self.processes.open(
            recorder,
            lambda: self._recording_of(recorder),
            lambda: _for_others(self.options, store),
            None if store is None else store.folder,
            end=self.interrupts.end,
            ends_early=self.options.steady_steps is not None,
        )
        self._undo.callback(self.processes.collect)

    def _enter_files(self, recorder: Recorder) -> Store | None:
        """The store for what the program does to files: one that was given is left as it is, an
        own one is gone afterwards."""
        from neusight.fake_cuda.store.folder_watch import FolderWatch
        from neusight.fake_cuda.store.store import Store

        if self.options.allow_writes or self.options.has_view:
            return None
        store = self._store or Store.create()
        if self._store is None:
            store.watch = FolderWatch()
            store.watch.touch(str(Path.cwd()))
            self._undo.callback(_report_changes, recorder, store.watch)
            keep = None if self.options.keep_writes is None else str(self.options.keep_writes)
            if keep is not None:
                Path(keep).mkdir(parents=True, exist_ok=True)  # so that it is none of the program's
            self._undo.callback(_report_losses, recorder, store)
            self._undo.callback(store.close, keep=keep)
        self._undo.callback(_report_files, recorder, store)
        return store

    @property
    def progress(self) -> tuple[int, int]:
        """Ops on the GPU and steps recorded so far; may be asked from another thread."""
        recorder = self._recorder
        if recorder is None:
            return 0, 0
        return recorder.tape.gpu_ops, sum(step.count for step in recorder.cutter.steps)

    @property
    def doing(self) -> str:
        """What takes long just now and is none of the program's work, in words; else empty."""
        return "" if self._recorder is None else self._recorder.doing

    @property
    def has_cuda_work(self) -> bool:
        """Whether any op ran on the GPU, here or in a process that was started."""
        return self.progress[0] > 0 or bool(self.processes.results)

    @property
    def is_ended_early(self) -> bool:
        """Whether the program was ended, or what it waits for: errors that follow are not its."""
        recorder = self._recorder
        return self.processes.is_stopped or (recorder is not None and recorder.cutter.is_stopped)

    def record_failure(self, error: BaseException | None) -> None:
        """Keeps what ended the program early, if anything but the user or neusight did."""
        if not self.interrupts.count and not self.is_ended_early:
            self._failure = failure_options(error)

    def close(self) -> None:
        """Leaves the block, whatever happened in it, and keeps what was recorded. A Ctrl-C that
        comes meanwhile is passed on when all is done."""
        self._undo.close()

    def _keep(self) -> None:
        recorder = self._recorder
        if recorder is None:
            self.forecast.keep(None)
            return
        own = self._recording_of(recorder)
        chosen = self.processes.chosen(self.progress[0], ended_early=recorder.cutter.is_stopped)
        notes = self.processes.notes(self.progress[0], chosen)
        if chosen is None or chosen.recording is None:
            self.forecast.keep(replace(own, warnings=(*own.warnings, *notes)))
            return
        found = chosen.recording
        reported = [text for text in own.warnings if not text.startswith(_NO_CUDA_WORK)]
        self.forecast.keep(
            replace(
                found,
                warnings=tuple(dict.fromkeys([*notes, *found.warnings, *reported])),
                options={**found.options, **self._options_of(recorder), **self._failure},
            )
        )

    def _options_of(self, recorder: Recorder) -> dict[str, str]:
        """What the recording keeps of what was said and found out, but for its steps."""
        return {**self.options.stated, **recorder.options}

    def _warnings_of(self, recorder: Recorder) -> list[str]:
        """What the user should know of the recording. A program that failed early has a better
        reason to have no CUDA work than a wrong device."""
        found = list(recorder.warnings)
        hint = "" if self.options.script else _CHOSEN_BEFORE
        tape = recorder.tape
        num_ops = tape.cpu_ops + tape.gpu_ops
        if tape.gpu_ops == 0:
            has_reason = self._failure or self.processes.failures
            found += [] if has_reason else [_NO_CUDA_WORK + hint]
        elif tape.cpu_ops > _MOSTLY_CPU * num_ops:
            found.append(f"{tape.cpu_ops} of {num_ops} ops ran on the CPU{hint}")
        if recorder.invention.sites:
            sites = sorted(recorder.invention.sites)
            shown = ", ".join(sites[:5]) + (", …" if len(sites) > 5 else "")
            found.append(f"values that only a GPU can compute were read and invented at: {shown}")
        found += recorder.repeats.report()
        filled = recorder.lazy.materialised_bytes
        if filled:
            found.append(
                f"{bytes_text(filled)} of parameters were filled with seeded "
                "random values, because CPU code computed on them"
            )
        return found

    def _recording_of(self, recorder: Recorder) -> Recording:
        from neusight.recording.steps.operators import with_operators

        rank = self.options.rank
        return Recording(
            steps=with_operators(recorder.cutter.steps),
            gpu=self.forecast.gpu.name,
            torch_version=recorder.torch_version,
            queries=tuple(sorted(self._queries.items())),
            warnings=tuple(self._warnings_of(recorder)),
            script=self.options.script,
            world_size=1 if rank is None else rank.world_size,
            rank=0 if rank is None else rank.index,
            gpus_per_node=1 if rank is None else rank.gpus_per_node,
            options={
                **self._options_of(recorder),
                STEP_OPTION: recorder.cutter.step_is,
                **self._failure,
            },
            made=recorder.hooks.made,
            compiled=tuple(recorder.compiled),
        )


class forecast_on:  # a context manager reads as a verb
    """Forecasts what the block (or the decorated function) would do on a GPU.

    `gpu` is a name (`neusight gpus` lists them) or a `GPU`, or a list of them: the process is
    forked for each after the first, runs the block there without output, and its writes are
    dropped; `Forecast.on` then has what the program does on each. `predictor` a name or your own;
    `host` "plain", "cloud", "older", "wsl", "profiled" (as slow as a profiler makes machines with
    that GPU), each also with ingredients ("cloud,ghz=3.4,torch=2.1,launch=2.6"), or a
    `HostProfile` (default: what machines with that GPU usually have); `calibration` what
    `neusight.calibrate` made of measurements on that GPU, or its file; `on_trace_ready` is called
    with the forecast when the block ends; `on_out_of_memory="raise"` raises
    torch.OutOfMemoryError where the GPU would; `with_stack` keeps the program's lines that led to
    each op and allocation, and shows Python functions in the trace; `strict` raises
    UnmappedOpError at the first op without a mapping to kernels.

    Files that were there before are not changed: what the block writes, moves and removes it sees
    itself, and it is gone at the end, new files included. `keep_writes` is a folder that collects
    it; with `allow_writes` the block writes where it says.

    With `world_size` the block is one process of many, `rank` (default: 0) with `gpus_per_node` of
    them on each host (default: up to 8): torch.distributed finds the others there, and what they
    would send is answered. Ranks that differ, such as stages of a pipeline, are run side by side by
    `neusight run --rank all-distinct`: a block is one of them. Without it the variables RANK and
    WORLD_SIZE count, as torchrun sets them. `topology` says how GPUs and nodes are joined: a name
    (`neusight gpus --topologies` lists them), a JSON file, or a `Topology` (default: the GPU's
    reference system).

    UnknownGPUError, ForecastStateError (one block inside another), UnsupportedTorchError,
    CalibrationError (of another GPU, predictor or version), OptionError (ranks that mean nothing),
    TopologyError.
    """

    def __init__(
        self,
        gpu: str | GPU | Sequence[str | GPU],
        *,
        predictor: str | Predictor | None = None,
        calibration: Calibration | str | Path | None = None,
        host: str | HostProfile | None = None,
        topology: str | Topology | None = None,
        on_trace_ready: Callable[[Forecast], object] | None = None,
        on_out_of_memory: Literal["report", "raise"] = "report",
        record_shapes: bool = True,
        profile_memory: bool = True,
        with_stack: bool = False,
        with_modules: bool = True,
        strict: bool = False,
        allow_writes: bool = False,
        keep_writes: str | Path | None = None,
        world_size: int | None = None,
        gpus_per_node: int | None = None,
        rank: int | None = None,
    ) -> None:
        first, *others = _several(gpu)
        made_with = forecast_options(
            first,
            predictor=predictor,
            calibration=calibration,
            host=host,
            topology=topology,
            record_shapes=record_shapes,
            profile_memory=profile_memory,
            with_modules=with_modules,
        )
        self._others = [
            forecast_options(name, predictor=predictor, host=host, topology=topology)
            for name in others
        ]
        self._options = SessionOptions(
            made_with,
            on_out_of_memory=on_out_of_memory,
            strict=strict,
            with_stack=with_stack,
            with_functions=with_stack,
            allow_writes=allow_writes,
            keep_writes=keep_writes,
            rank=stated_rank(
                index=rank,
                world_size=world_size,
                gpus_per_node=gpus_per_node,
                system=made_with.system,
            ),
        )
        self._on_trace_ready = on_trace_ready
        self._session: Session | None = None
        self._elsewhere: OtherGPUs | None = None

    def __enter__(self) -> OpenForecast:
        return self.open(caller=_caller_of(sys._getframe(1)))

    def open(self, *, caller: CodeType | None, folder: Path | None = None) -> OpenForecast:
        """Enters the block for a tool that runs programs: call stacks end at `caller`, and name
        files relative to `folder` (default: the working directory)."""
        options = self._options
        if self._others and Session._current is None:
            from neusight.fake_cuda.processes.other_gpus import OtherGPUs

            Session(options).prove()
            self._elsewhere = OtherGPUs()
            here = self._elsewhere.start([other.gpu for other in self._others])
            for other in self._others:
                if other.gpu is here:
                    options = replace(options, forecast=other, allow_writes=False, keep_writes=None)
        self._session = Session(options, caller=caller, folder=folder)
        try:
            return self._session.open()
        except BaseException:
            if self._elsewhere is not None:
                self._elsewhere.give_up()
            raise

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        session, self._session = self._session, None
        assert session is not None
        session.record_failure(error)
        session.close()
        if self._elsewhere is not None:
            if self._elsewhere.is_child:
                self._elsewhere.report(session.forecast.recording)
            session.forecast.add(*self._elsewhere.collect())
            self._elsewhere = None
        unsupported = None if error is None else error_of_missing_name(error)
        if unsupported is not None:
            raise unsupported from error
        if kind is None and not session.has_cuda_work:
            failure = session.processes.failure
            why = f"; {failure}" if failure else _CHOSEN_BEFORE
            python_warnings.warn(_NO_CUDA_WORK + why, NoCudaWorkWarning, stacklevel=2)
        if self._on_trace_ready is not None and session.forecast.recording.steps:
            self._on_trace_ready(session.forecast)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """As a decorator: each call is a forecast, kept as `function.forecast`."""
        if not callable(function):
            raise TypeError(
                f"forecast_on({self._options.forecast.gpu.name!r}) decorates a function or opens "
                f"a block: with neusight.forecast_on(...): — not {function!r}."
            )

        @functools.wraps(function)
        def forecasted(*args: P.args, **kwargs: P.kwargs) -> R:
            with self as forecast:
                forecasted.forecast = forecast  # type: ignore[attr-defined]
                return function(*args, **kwargs)

        runs_the_program(forecasted)
        return forecasted


def _several(gpu: str | GPU | Sequence[str | GPU]) -> list[GPU]:
    """One GPU or several, each once; ValueError for none."""
    given = [gpu] if isinstance(gpu, (str, GPU)) else list(gpu)
    if not given:
        raise ValueError("forecast_on got an empty list; name at least one GPU.")
    found: list[GPU] = []
    for one in given:
        target = find_gpu(one)
        if target not in found:
            found.append(target)
    return found


def _for_others(options: SessionOptions, store: Store | None) -> bytes:
    """With what processes that the program starts open sessions of their own. A predictor that
    cannot be passed on says nothing in the recording: theirs only advances their clocks."""
    theirs = replace(options, keep_writes=None, link=None)
    folder = None if store is None else store.folder
    try:
        return pickle.dumps((theirs, folder))
    except (pickle.PicklingError, AttributeError, TypeError):
        plain = replace(options.forecast, predictor=find_predictor(None))
        return pickle.dumps((replace(theirs, forecast=plain), folder))


def _report_changes(recorder: Recorder, watch: FolderWatch) -> None:
    """What a C library or another program changed past the overlay; files into which standard
    output goes are meant to."""
    changed = watch.changes(expected=_logs())
    if changed:
        shown = ", ".join(changed[:_PATHS_SHOWN]) + (", …" if len(changed) > _PATHS_SHOWN else "")
        recorder.warn_once(
            f"past neusight's overlay, by a C library or another program, changed: {shown}; "
            "`neusight run` stops such writes where the kernel has Landlock"
        )


def _logs() -> list[str]:
    """Where standard output and error go, of this process and of those above it: a test runner
    puts its own in their place, and goes on writing to the log that it was started with."""
    found: list[str] = []
    process = os.getpid()
    with contextlib.suppress(OSError, ValueError):  # another user's, or none
        while process > 1:
            found += [os.path.realpath(f"/proc/{process}/fd/{number}") for number in (1, 2)]
            reported = Path(f"/proc/{process}/stat").read_text()
            process = int(reported.rpartition(")")[2].split()[1])
    return found


def _report_losses(recorder: Recorder, store: Store) -> None:
    if store.not_kept:
        recorder.warn_once(f"keep_writes could not keep {', '.join(store.not_kept)}")


def _report_files(recorder: Recorder, store: Store) -> None:
    summary = store.summary_line()
    if summary:
        recorder.options[FILES_OPTION] = "kept away"
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
