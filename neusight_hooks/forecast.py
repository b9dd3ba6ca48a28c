"""What people hold: a `Forecast` is a recording, priced and placed on a GPU."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from neusight.failure import failure_of, ran_out
from neusight.inference.generation import generation_of
from neusight.inference.kv_cache import kv_bytes_per_token, state_bytes_per_sequence
from neusight.inference.phases import Phases
from neusight.inference.pipeline import Pipeline, pipeline_of
from neusight.memory.placement import MemoryTimeline, memory_on
from neusight.memory.spread import MemoryVerdict
from neusight.output.batch import rate_notes
from neusight.output.compiled import Compilation, compilation_of
from neusight.output.figures import Row, StepLatency, Verdict, operator_rows, verdict_of
from neusight.output.ranks import RankRow, rank_row, slowest
from neusight.output.replicas import replicas_together
from neusight.output.summary import (
    SummaryData,
    describe,
    headline,
    memory_verdict,
    to_dict,
    to_json,
)
from neusight.output.system import unstated_network
from neusight.predictors.clusters.named import find_topology
from neusight.predictors.clusters.topology import Topology
from neusight.predictors.errors import (
    CalibrationError,
    ForecastStateError,
    OptionError,
    RecordingError,
)
from neusight.predictors.files import json_value
from neusight.predictors.formatting import counted, time_text
from neusight.predictors.gpu import GPU, find_gpu
from neusight.predictors.kernel import Kernel
from neusight.predictors.measuring.calibration import Calibration
from neusight.predictors.physics.communication.system import system_of
from neusight.predictors.predictor import Estimate, Predictor
from neusight.predictors.registry import find_predictor
from neusight.predictors.terminal_text import printable
from neusight.recording.recording import Recording
from neusight.recording.saving import load_recordings, save_recording
from neusight.timeline.host import (
    HOSTS,
    PLAIN,
    PROFILED_OLDER,
    HostProfile,
    host_of,
    stated_host,
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
from neusight.timeline.ranks.contention import schedule_beside, schedule_together_beside
from neusight.timeline.ranks.similarity import peers_note
from neusight.timeline.spans import Timeline
from neusight.timeline.steady import kernels_of, other_steps_of, steady_step_of


@dataclass(frozen=True)
class ForecastOptions:
    """On which GPU, priced by whom (calibration included), with which host; and what a trace and
    the events of it show. `topology` is the system that the GPU is in, where that is stated."""

    gpu: GPU
    predictor: Predictor
    host: HostProfile
    topology: Topology | None = None
    record_shapes: bool = True
    profile_memory: bool = True
    with_modules: bool = True

    @property
    def system(self) -> Topology:
        """How the GPU is joined with others: as stated, else as in its reference system."""
        return system_of(self.gpu) if self.topology is None else self.topology


def forecast_options(
    gpu: str | GPU,
    *,
    predictor: str | Predictor | None = None,
    calibration: Calibration | str | Path | None = None,
    host: str | HostProfile | None = None,
    topology: str | Topology | None = None,
    record_shapes: bool = True,
    profile_memory: bool = True,
    with_modules: bool = True,
) -> ForecastOptions:
    """What names and files stand for; UnknownGPUError, TopologyError, CalibrationError (of another
    GPU, predictor or version), ValueError for a predictor or host not known."""
    target = find_gpu(gpu)
    fitted = read_calibration(calibration)
    return ForecastOptions(
        target,
        calibrated(find_predictor(predictor), target, fitted),
        host_profile(host, target, fitted),
        None if topology is None else find_topology(topology),
        record_shapes=record_shapes,
        profile_memory=profile_memory,
        with_modules=with_modules,
    )


# Over 300 lines: each figure of a forecast, and each way to show it, has a name here.
class Forecast:
    """What a program does on a GPU: latency, memory and timeline of a recording, each computed
    when it is first asked for."""

    def __init__(
        self,
        recording: Recording,
        options: ForecastOptions,
        *,
        pricer: Pricer | None = None,
        ranks: Sequence[Recording] = (),
    ) -> None:
        self.options = options
        self.trace_path: str | None = None
        self.pricer = pricer or Pricer(options.gpu, options.predictor, options.topology)
        self._recording = recording
        self._recordings = tuple(ranks)
        #: What the program did on GPUs beside the first that it was recorded for.
        self._recorded: list[tuple[GPU, Recording]] = []

    def step(self) -> None:
        """Says that a step of the program ends here: for inside a `forecast_on` block."""
        raise ForecastStateError("Forecast.step() is for inside its forecast_on block.")

    @property
    def recording(self) -> Recording:
        """All that was recorded."""
        return self._recording

    @property
    def gpu(self) -> GPU:
        """The GPU it is for."""
        return self.options.gpu

    @property
    def topology(self) -> Topology | None:
        """The system that the GPU is in; None where that is not stated: its reference system."""
        return self.options.topology

    @property
    def host(self) -> HostProfile:
        """What the host was taken to cost."""
        return self.options.host

    @cached_property
    def timeline(self) -> Timeline:
        """Every op and kernel placed in time; of equal steps the first few."""
        if self._recordings:
            return self.ranks[0].timeline
        self.pricer.prepare(self.recording)
        return schedule_beside(self.recording, self.pricer, self.host, self.pricer.gpu)

    @cached_property
    def ranks(self) -> tuple[Forecast, ...]:
        """The forecast of each rank, where several were recorded side by side: they wait for each
        other, and this one is the first of them. Empty where there is one.

        MismatchError where they do not agree on a collective, HangError where none can go on.
        """
        if not self._recordings:
            return ()
        for recording in self._recordings:
            self.pricer.prepare(recording)
        timelines = schedule_together_beside(
            self._recordings, self.pricer, self.host, self.pricer.gpu
        )
        forecasts = tuple(map(self.of, self._recordings))
        for forecast, timeline in zip(forecasts, timelines, strict=True):
            forecast.timeline = timeline
        return forecasts

    @cached_property
    def memory(self) -> MemoryTimeline:
        """Every allocation placed in the GPU's memory."""
        return memory_on(self.recording, self.gpu)

    @cached_property
    def verdict(self) -> Verdict:
        """The figures of the steady step, of which the properties below are parts; of several ranks
        those of the slowest, and what all take in."""
        if self.ranks:
            found = self.slowest.verdict
            alone = [rank.verdict for rank in self.ranks]
            return replace(
                found,
                batch=next((verdict.batch for verdict in alone if verdict.batch), found.batch),
                replicas=replicas_together(
                    self._recordings, [verdict.replicas for verdict in alone]
                ),
            )
        return verdict_of(self.recording, self.timeline, self.gpu, self.host)

    @cached_property
    def by_operator(self) -> list[Row]:
        """The kernels of the steady step by all operators that they run in, such as aten::linear
        and aten::addmm in it."""
        return operator_rows(self.timeline)

    @property
    def slowest(self) -> Forecast:
        """The rank whose step is the longest; the forecast itself where it is of one."""
        if not self.ranks:
            return self
        last = slowest([rank.row for rank in self.ranks]).rank
        return next(rank for rank in self.ranks if rank.recording.rank == last)

    @property
    def predictor(self) -> Predictor:
        """Who prices the kernels, calibration included."""
        return self.options.predictor

    @property
    def predictor_name(self) -> str:
        """Who priced the kernels."""
        return self.predictor.name

    @property
    def calibration(self) -> Calibration | None:
        """What measurements taught the predictor and the host, if anything."""
        return calibration_of(self.predictor)

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
        """Most bytes allocated at once, as torch.cuda.max_memory_allocated counts; of several ranks
        on the one where that is most."""
        return max(memory.peak_allocated for memory in self._memories)

    @property
    def peak_reserved_bytes(self) -> int:
        """Most bytes that the caching allocator held; of several ranks likewise."""
        return max(memory.peak_reserved for memory in self._memories)

    @property
    def _memories(self) -> list[MemoryTimeline]:
        """That of each rank."""
        return [rank.memory for rank in self.ranks] or [self.memory]

    @property
    def context_bytes(self) -> int:
        """What the CUDA context and loaded kernels take beside that."""
        return self.gpu.context_bytes

    @property
    def fits(self) -> bool:
        """Whether all that was recorded fits into the GPU's memory, and the program did not end
        because something did not. True where it is not known (`memory_verdict`)."""
        return all(memory.fits for memory in self._memories) and not ran_out(self.recording)

    @property
    def memory_verdict(self) -> MemoryVerdict:
        """The same with what the peak may be off by: "fits", "close" or "does not fit"; "unknown"
        of a profile that states nothing of memory."""
        return memory_verdict(self.recording, self.needs_most.memory)

    @property
    def needs_most(self) -> Forecast:
        """That of the rank which needs the most memory; this one where there is one."""
        return max(self.ranks or (self,), key=lambda rank: rank.memory.total_bytes)

    @property
    def row(self) -> RankRow:
        """Its line among ranks that were run side by side."""
        return rank_row(self.recording, self.timeline, self.memory)

    @property
    def failure(self) -> str:
        """The error that ended the program early, as a message; empty where there was none."""
        return failure_of(self.recording)

    @cached_property
    def compiled(self) -> Compilation | None:
        """What torch.compile made of the program: graphs, graph breaks and recompiles with their
        lines, fused kernels; None where nothing was compiled."""
        return compilation_of(self.recording, self.timeline, self.memory, self.host)

    @cached_property
    def phases(self) -> Phases | None:
        """Of a model that generates: time to the first token (`generation.ttft_us`) and to each
        more (`tpot_us`, `generation.tpot_us(context)`), `tokens_per_s`, `kv_bytes_per_token` and
        `kv_tokens_free`. None where nothing was generated."""
        generation = generation_of(self.timeline)
        if generation is None:
            return None
        needed = self.memory.needed_range.high
        a_token = kv_bytes_per_token(self.recording)
        a_sequence = state_bytes_per_sequence(self.recording) if a_token == 0 else 0.0
        return Phases(generation, a_token, self.gpu.memory_bytes - needed, a_sequence)

    @cached_property
    def pipeline(self) -> Pipeline | None:
        """Of models that are called in turn, one of them in a loop (diffusion): the calls of each,
        `latency_us` of all and `samples_per_s`. None where tokens are generated, or it trains."""
        return None if self.phases is not None else pipeline_of(self.timeline)

    @property
    def coverage(self) -> dict[str, float]:
        """Share of the steady step's kernel time by origin: trained, physics, fallback."""
        return self.verdict.coverage

    @property
    def unmapped(self) -> list[str]:
        """Ops without a mapping to kernels, priced as bytes over bandwidth."""
        self.timeline  # noqa: B018  (pricing fills the list)
        return sorted(self.pricer.unmapped)

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
        return self.findings.warnings

    def explain(self, what: str, *, measured: str | Path | None = None) -> str:
        """What stands behind the prices of the steady step's kernels whose module, op or kernel
        has `what` in its name (with `*` and `?`: that matches it): sizes, launch, what bounds them,
        and where the price is from. NothingToExplainError, a ValueError, names what is like it.
        `measured` is a folder of measured kernels, as `neusight measure` writes one: then the rows
        that are nearest stand beside each (extra `data`).
        """
        from neusight.advice.explanation import explain_kernels, read_rows

        rows = () if measured is None else read_rows(measured, self.gpu)
        step = steady_step_of(self.timeline)
        return explain_kernels(
            what,
            () if step is None else kernels_of(step, self.timeline),
            gpu=self.gpu,
            predictor=self.predictor,
            torch_version=self.recording.torch_version,
            step_us=self.step_latency_us.median,
            measured=rows,
        )

    # -- elsewhere ------------------------------------------------------------------------------

    def on(
        self,
        gpu: str | GPU,
        *,
        predictor: str | Predictor | None = None,
        host: str | HostProfile | None = None,
        calibration: Calibration | str | Path | None = None,
        topology: str | Topology | None = None,
    ) -> Forecast:
        """The same recording on another GPU, or on this one with another predictor or calibration,
        or in another system; of a block that was recorded for several GPUs, the one for that GPU.

        The calibration of this forecast stays where GPU and predictor do, a topology that was
        stated stays whatever the GPU.
        ForecastStateError where the program ended because this GPU's memory did not suffice, or
        asked the GPU something that the other one answers differently (its attention kernel, its
        compute capability): record it there again, or for both, `forecast_on([...])`.
        """
        target = find_gpu(gpu)
        recording, ranks = self._recorded_for(target)
        fitted = read_calibration(calibration)
        if fitted is None and predictor is None and target == self.gpu:
            fitted = self.calibration
        chosen = find_predictor(self.predictor if predictor is None else predictor)
        there = replace(
            self.options,
            gpu=target,
            predictor=calibrated(uncalibrated(chosen), target, fitted),
            host=host_profile(host, target, fitted),
            topology=self.topology if topology is None else find_topology(topology),
        )
        forecast = Forecast(recording, there, ranks=ranks)
        forecast._recorded = [*self._recorded, (self.gpu, self.recording)]
        return forecast

    def _recorded_for(self, target: GPU) -> tuple[Recording, Sequence[Recording]]:
        """What the program does on that GPU, with its ranks; ForecastStateError if unknown."""
        if target == self.gpu:
            return self.recording, self._recordings
        for gpu, recording in self._recorded:
            if gpu == target:
                return recording, ()
        for _, recording in self._recorded:
            if not ran_out(recording) and _different_result(recording, target) is None:
                return recording, ()
        if ran_out(self.recording):
            raise ForecastStateError(
                f"The program ended where it ran out of the memory of {self.gpu.name}, so what it "
                f"does after that is not known. Record it again: forecast_on({target.name!r})."
            )
        for recording in (self.recording, *self._recordings[1:]):
            if (different := _different_result(recording, target)) is not None:
                name, answered, there = different
                raise ForecastStateError(
                    f"The program asked {recording.gpu} for {name} and {target.name} answers "
                    f"differently ({answered} there {there}), so it may take another path. Record "
                    f"both: forecast_on([{recording.gpu!r}, {target.name!r}])."
                )
        return self.recording, self._recordings

    def of(self, recording: Recording) -> Forecast:
        """The forecast of another recording, such as this one changed, priced alike."""
        return Forecast(recording, self.options, pricer=self.pricer)

    def as_torch(self, version: str) -> Forecast:
        """The same ops with the kernels that another version of torch has for them; its dispatcher
        is the host's: `on(gpu, host="torch=2.4")`."""
        changed = tuple(recording.as_torch(version) for recording in self._recordings)
        ranks = changed if len(changed) > 1 else ()
        return Forecast(self.recording.as_torch(version), self.options, ranks=ranks)

    def save(self, path: str | Path) -> None:
        """Writes the recording, those of all ranks, to be priced again later: JSON, gzip where the
        name ends in .gz."""
        fitted, topology = self.calibration, self.topology
        save_recording(
            self.recording,
            path,
            beside=self._recordings[1:],
            gpu=self.gpu.name,
            predictor=uncalibrated(self.predictor).name,
            host=self.host.name,
            **({} if fitted is None else {"calibration": json.dumps(fitted.to_json())}),
            **({} if topology is None else {"topology": json.dumps(topology.to_json())}),
        )

    @staticmethod
    def load(path: str | Path) -> Forecast:
        """A forecast from what `save` wrote; RecordingError where that cannot be read."""
        return _loaded(path)

    def export_chrome_trace(self, path: str | Path) -> None:
        """Writes a trace for TensorBoard's profiler plugin, Perfetto and HTA (.gz allowed)."""
        from neusight.output.trace.file import write_trace

        write_trace(
            path,
            self.timeline,
            self.memory,
            self.gpu,
            rank=self.recording.rank,
            world_size=self.recording.world_size,
            gpus_per_node=self.recording.gpus_per_node,
            record_shapes=self.options.record_shapes,
            profile_memory=self.options.profile_memory,
            with_modules=self.options.with_modules,
        )

    def export_chakra(self, folder: str | Path) -> str:
        """Writes the steady step as MLCommons Chakra execution traces, a file for each rank of the
        program, for simulators of networks. Says why some ranks have none; "" if all have."""
        from neusight.output.chakra.files import write_chakra

        ranks = [(rank.recording, rank.timeline) for rank in self.ranks or (self,)]
        return write_chakra(folder, ranks, gpu=self.gpu.name).missing

    def export_memory_snapshot(self, path: str | Path) -> None:
        """Writes what the allocator did for pytorch.org/memory_viz, as torch's own
        `torch.cuda.memory._dump_snapshot` does (a pickle, which that page reads)."""
        from neusight.memory.snapshot import write_memory_snapshot

        write_memory_snapshot(path, self.recording, self.gpu, times_ns=self.timeline.memory_ns)

    def key_averages(
        self,
        group_by_input_shape: bool = False,
        group_by_stack_n: int = 0,
        *,
        operators: bool = False,
    ) -> Any:
        """torch.profiler's own event list; `.table(sort_by="cuda_time_total")` prints it.
        `operators` as in `events`."""
        return self.events(operators=operators).key_averages(group_by_input_shape, group_by_stack_n)

    def events(self, *, operators: bool = False) -> Any:
        """The ops as torch.profiler's function events, with their kernels' time and memory; with
        `operators` also what calls them and what they call, such as aten::linear."""
        from neusight.output.events import event_list

        memory = self.memory if self.options.profile_memory else None
        return event_list(self.timeline, self.gpu, memory, operators=operators)

    @property
    def findings(self) -> SummaryData:
        """The data of the summary, as a value."""
        is_measured = self.host.name.endswith(CALIBRATED_HOST)
        return SummaryData(
            recording=self.recording,
            verdict=self.verdict,
            memory=self.needs_most.memory,
            ranks=tuple(rank.row for rank in self.ranks),
            fits=self.fits,
            gpu=self.gpu,
            predictor=self.predictor_name,
            host=self.host.name,
            host_assumes="" if is_measured else self.host.assumes,
            unmapped=tuple(self.unmapped),
            calibration=self.calibration,
            trace_path=self.trace_path,
            compiled=self.compiled,
            topology=self.topology,
            notes=_notes_of(self),
            phases=self.phases,
            pipeline=self.pipeline,
        )

    def summary(self, *, changes: Sequence[str] = ()) -> str:
        """The forecast in words and a few rows; `changes` are lines on what to change."""
        return describe(self.findings, changes=changes)

    def to_json(self) -> dict[str, Any]:
        """All figures, as `neusight run --json` writes them."""
        operators = [asdict(row) for row in self.slowest.by_operator]
        return {**to_json(self.findings), "by_operator": operators}

    def to_dict(self) -> dict[str, Any]:
        """The figures for an experiment tracker: flat pairs of a name and a number or word.

        - words: `gpu`, `predictor`, `host`, `torch_version`, `bound`, `memory_verdict`; `topology`
          and `failure` where there is one
        - of the steady step, microseconds: `step_latency_us` with the 80 % interval
          `step_latency_low_us` to `step_latency_high_us`, `gpu_busy_us`, and by kernel class
          `gpu_time_us/gemm`, …; `latency_us` of all that was recorded
        - of the steady step, of all ranks: `world_size`, `samples_per_step`, `tokens_per_step`,
          `samples_per_second`, `tokens_per_second`
        - of a model that generates: `ttft_us`, `tpot_us` (at the last context), `tokens_per_s`,
          `kv_bytes_per_token`
        - of the steady step, of this rank: `flops_per_step`, `mfu` (0 to 1), `num_ops`,
          `num_kernels`, `num_unmapped`; shares of the kernels' time, 0 to 1: `coverage/trained`,
          `coverage/physics`, `coverage/fallback`
        - bytes: `peak_memory_bytes` (allocated; by kind `memory_bytes/activations`, …),
          `peak_reserved_bytes`, `context_bytes`, `needed_memory_bytes` (the last two in all),
          `memory_capacity_bytes`; `fits`, 1 or 0

        What is not known (tokens of images, the step of a program that failed) is left out.
        `to_json` has the tables.
        """
        return to_dict(self.findings)

    def _repr_html_(self) -> str | None:
        """What a notebook shows: the verdict, and the report below it."""
        import neusight  # the names of all packages: the report is above this one

        return neusight.notebook_html(self)

    def __repr__(self) -> str:
        reported = self.failure.partition("\n")[0] or headline(self.verdict)
        return printable(f"<Forecast on {self.gpu.name}: {reported}>")


def host_profile(
    host: str | HostProfile | None, gpu: GPU, calibration: Calibration | None = None
) -> HostProfile:
    """A named profile of the host, with ingredients where it has any ("cloud,ghz=3.4"), one of your
    own, or (None) what machines with that GPU have; with a calibration, the measured costs of that
    machine's."""
    if isinstance(host, HostProfile):
        return host
    if host is None:
        chosen = host_of(gpu)
    else:
        chosen = HOSTS[host] if host == PROFILED_OLDER.name else stated_host(host, gpu)
    return chosen if calibration is None else measured_host(chosen, calibration)


def _notes_of(forecast: Forecast) -> tuple[str, ...]:
    """What the figures rest on not stated."""
    notes: list[str] = []
    if forecast.topology is None:
        kernels = (span.kernel for span in forecast.timeline.kernels)
        notes.append(unstated_network(kernels, forecast.gpu))
    if not forecast.ranks:
        notes.append(peers_note(forecast.recording))
    notes.append(_other_steps_note(forecast.timeline))
    if forecast.gpu.name == forecast.recording.gpu:  # under whose clock the program ran
        verdict = forecast.verdict
        options, us = forecast.recording.options, verdict.step_latency.median
        notes += rate_notes(options, verdict.batch, verdict.whole_batch, us)
    return tuple(note for note in notes if note)


#: Share of the time above which steps beside the steady ones are named.
_NAMED_SHARE = 0.1


def _other_steps_note(timeline: Timeline) -> str:
    """Steps beside the steady ones, where they hold much of the time."""
    found, share = other_steps_of(timeline)
    if share <= _NAMED_SHARE:
        return ""
    words = {"train": "training step", "eval": "inference step"}
    named = ", ".join(
        f"{counted(item.num_steps, words[item.kind])} of "
        f"{time_text(item.total_ns / item.num_steps / 1e3)}"
        + (" (CUDA graphs)" if item.is_replay else "")
        for item in found
    )
    return f"beside the steps above: {named}, {share:.0%} of the time of all steps"


def _loaded(path: str | Path) -> Forecast:
    """What `Forecast.save` wrote, priced; RecordingError where that cannot be."""
    recordings, extra = load_recordings(path)
    recording = recordings[0]
    try:
        target = find_gpu(extra.get("gpu", recording.gpu))
        priced_by = find_predictor(extra.get("predictor"))
    except ValueError as error:
        raise RecordingError(f"The saved forecast {path} cannot be priced: {error}") from error
    host = _saved_host(extra.get("host", "").removesuffix(CALIBRATED_HOST), target)
    if "calibration" in extra:
        try:
            fitted = Calibration.from_json(json_value(extra["calibration"]), source=str(path))
            priced_by = calibrated(priced_by, target, fitted)
            host = measured_host(host, fitted)
        except (CalibrationError, ValueError) as error:
            reported = f"priced without the calibration it was saved with: {error}"
            recording = replace(recording, warnings=(*recording.warnings, reported))
    topology = _saved_topology(extra.get("topology"), path)
    ranks = (recording, *recordings[1:]) if len(recordings) > 1 else ()
    return Forecast(recording, ForecastOptions(target, priced_by, host, topology), ranks=ranks)


def _saved_host(name: str, gpu: GPU) -> HostProfile:
    """The host of that name, or that it states; `PLAIN` for one of the user's own."""
    if name in HOSTS:
        return HOSTS[name]
    try:
        return stated_host(name, gpu)
    except OptionError:
        return PLAIN


def _saved_topology(text: str | None, path: str | Path) -> Topology | None:
    """What `Forecast.save` wrote of a topology; RecordingError where that is damaged."""
    if text is None:
        return None
    try:
        return Topology.from_json(json_value(text), source=str(path))
    except ValueError as error:
        raise RecordingError(f"The saved forecast {path} cannot be priced: {error}") from error


def _different_result(recording: Recording, target: GPU) -> tuple[str, str, str] | None:
    """What the program asked the GPU and that one answers differently: the name of the question
    and both answers."""
    from neusight.device_queries import answer

    for device_query, answered in recording.queries:
        there = answer(device_query, target)
        if there != answered:
            return device_query.partition(" ")[0], answered, "unknown" if there is None else there
    return None
