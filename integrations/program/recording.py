"""Records a program, in a process that the kernel guards or in this one."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from neusight.integrations.program.guard.guarded_process import ProcessEnd, in_guarded_process
from neusight.integrations.program.options import ProgramOptions
from neusight.integrations.program.printed_rates import PrintedRates
from neusight.integrations.program.program import Program, digest_of_files, own_files
from neusight.integrations.program.progress.reporting import reporting_progress
from neusight.integrations.program.recorded import Recorded, forecast_options_for
from neusight.integrations.program.runner import Outcome, hide_gpus, run_program

if TYPE_CHECKING:
    from neusight.fake_cuda.distributed.peers.link import Link
    from neusight.fake_cuda.store.store import Store
    from neusight.integrations.program.ranks.rank_process import RankEnd
    from neusight.predictors.gpu import GPU
    from neusight.session import Session, SessionOptions


def recorded(program: Program, gpu: GPU, options: ProgramOptions) -> Recorded:
    """Records the program: in this process, or behind a guard in one that is its own; ranks that
    run side by side have a process each."""
    hide_gpus()
    record = _recorded_here if options.ranks is None else _recorded_side_by_side
    if not options.is_guarded:
        return record(program, gpu, options)
    ended = in_guarded_process(
        lambda store: record(program, gpu, replace(options, has_view=store is None), store),
        program.possible_paths,
        keep=options.keep_writes,
    )
    if ended.answer is None:
        failure = "; ".join(filter(None, (ended.failure, ended.refused)))
        return Recorded(Outcome(failure=failure, exit_code=ended.exit_code, is_lost=True))
    found = _with_file_warnings(ended.answer, ended)
    return _beside_another_rank(found, program, gpu, options)


#: A rank of more ops is not run a second time for the GPU of its neighbour: some seconds of CPU.
_MOST_OPS_TWICE = 20_000


def _beside_another_rank(
    found: Recorded, program: Program, gpu: GPU, options: ProgramOptions
) -> Recorded:
    """Refused where another rank of its host runs its collectives on the same GPU. Another one is
    run where the program chose no GPU before its first collective, and has few ops."""
    from neusight.integrations.program.ranks.joining import refused, shared_device_error
    from neusight.recording.recording import NO_CHOICE_OPTION

    recording, rank = found.recording, options.rank
    if recording is None or rank is None or options.ranks is not None or found.outcome.is_failed:
        return found
    num_ops = sum(len(step.entries) for step in recording.steps)
    index = rank.index + (-1 if rank.local_index else 1)
    is_alone = index >= rank.world_size or rank.gpus_per_node == 1
    if NO_CHOICE_OPTION not in recording.options or is_alone or num_ops > _MOST_OPS_TWICE:
        return found
    other = replace(options, rank=replace(rank, index=index), steps=1, quiet=True, keep_writes=None)
    beside = _recorded_in_silence(program, gpu, other)
    error = None if beside is None else shared_device_error({rank.index: found, index: beside})
    return found if error is None else refused(found, error)


def _recorded_in_silence(program: Program, gpu: GPU, options: ProgramOptions) -> Recorded | None:
    """Recorded behind a guard; what it prints is not shown."""

    def record(store: Store | None) -> Recorded:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for descriptor in (1, 2):
            os.dup2(nowhere, descriptor)
        return _recorded_here(program, gpu, replace(options, has_view=store is None), store)

    return in_guarded_process(record, program.possible_paths).answer


def _with_file_warnings(found: Recorded, ended: ProcessEnd[Recorded]) -> Recorded:
    """Adds warnings about the files that the program wrote and those that it was refused."""
    from neusight.session import FILES_OPTION

    files, refused = ended.files, ended.refused
    outcome, recording = found.outcome, found.recording
    if refused and outcome.is_failed:
        outcome = replace(outcome, failure=f"{outcome.failure}; {refused}")
    if recording is not None and (files or refused):
        warnings = (*recording.warnings, *filter(None, (files, refused)))
        mode = {FILES_OPTION: "view" if ended.has_view else "kept away"} if files else {}
        recording = replace(recording, warnings=warnings, options={**recording.options, **mode})
    ranks = (recording, *found.ranks[1:]) if found.ranks and recording is not None else found.ranks
    return replace(found, outcome=outcome, recording=recording, ranks=ranks)


def _recorded_here(
    program: Program,
    gpu: GPU,
    options: ProgramOptions,
    store: Store | None = None,
    link: Link | None = None,
) -> Recorded:
    """Records in this process; with a store or a link, in one that is the program's alone."""
    from neusight.ops import formulas
    from neusight.ops.user_ops import user_ops_of
    from neusight.session import Session

    formulas_before, modules_before = formulas(), set(sys.modules)
    is_own = store is not None or link is not None or options.has_view
    session = Session(_session_options(program, gpu, options, link), store=store)
    rates = PrintedRates(session)
    with reporting_progress(session, quiet=options.quiet), rates.reading():
        outcome = run_program(program, session, is_last=is_own)
        if link is None:  # else the process that knows all ranks shows it
            sys.stderr.write(outcome.traceback)
    outcome = _with_failure_of_others(outcome, session)
    recording = rates.added_to(session.forecast.recording)
    if options.torch is not None:
        import torch

        note = (
            f"kernels are those of torch {options.torch}; the ops, and what is compiled, are those "
            f"of the installed {torch.__version__}"
        )
        recording = replace(recording, warnings=(*recording.warnings, note))
    files = own_files(Path.cwd(), set(sys.modules) - modules_before)
    if not program.is_module:
        files.add(Path(program.target).resolve())
    return Recorded(
        outcome, recording, user_ops_of(recording, formulas_before), digest_of_files(files)
    )


def _with_failure_of_others(outcome: Outcome, session: Session) -> Outcome:
    """A failure of a process that the program started explains its own, and is its own where
    nothing ran on the GPU."""
    failure = session.processes.failure
    if not failure or outcome.is_interrupted or outcome.stopped_early:
        return outcome
    if outcome.failure:
        return replace(outcome, failure=f"{outcome.failure}; {failure}")
    if session.has_cuda_work:
        return outcome
    return replace(outcome, failure=failure, exit_code=1)


def _recorded_side_by_side(
    program: Program, gpu: GPU, options: ProgramOptions, store: Store | None = None
) -> Recorded:
    """Records ranks in a process each; they see what the others write."""
    from neusight.fake_cuda.store.store import Store
    from neusight.integrations.program.ranks.joining import joined
    from neusight.integrations.program.ranks.scanning import ALL_RUN, Scan
    from neusight.integrations.program.ranks.side_by_side import run_side_by_side

    assert options.rank is not None
    template, stated = options.rank, options.ranks
    # To begin with stated ones, all where they are few, else the first; `last` where not all are.
    chosen, last = stated or range(template.world_size), None
    if not stated and template.world_size > ALL_RUN:
        chosen, last = (0,), template.world_size - 1
    scan = Scan(template)
    _import_for_all(_session_options(program, gpu, options, None))

    def record(index: int, link: Link) -> tuple[RankEnd, Recorded]:
        rank, is_first = replace(template, index=index), index == chosen[0]
        shared = None if folder is None else Store(folder)
        if folder is not None and store is None:
            # Else what one rank has in the system's would count as left behind by another.
            tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(dir=folder)
        own = replace(
            options,
            rank=rank,
            quiet=options.quiet or not is_first,
            steps=scan.steps(options.steps),
        )
        found = _recorded_here(program, gpu, own, shared, link)
        is_early = found.outcome.stopped_early
        end: RankEnd = "failed" if found.outcome.is_failed else "early" if is_early else "well"
        return end, scan.compared(replace(found, was_stopped=link.was_stopped))

    with _one_store(store, options) as folder:
        ranks = run_side_by_side(
            record, ranks=chosen, last=last, others=scan.others, wait_s=options.wait_s
        )
    found = joined(ranks, are_stated=bool(stated))
    sys.stderr.write(found.outcome.traceback)
    return found


def _import_for_all(options: SessionOptions) -> None:
    """Imports what each rank's session would, so that a fork of this process costs little."""
    from neusight.session import Session

    Session(options).prove()

    import neusight.fake_cuda.session
    import neusight.ops.user_ops
    import neusight.stubs.cuda_sources
    import neusight.stubs.finder
    import neusight.stubs.hub_kernels  # noqa: F401


@contextmanager
def _one_store(store: Store | None, options: ProgramOptions) -> Iterator[str | None]:
    """The folder of the store that all ranks share: the given one, else one of their own; none
    where they may write."""
    from neusight.fake_cuda.store.store import Store

    if store is not None or options.allow_writes or options.has_view:
        yield None if store is None else store.folder
        return
    own = Store.create()
    try:
        yield own.folder
    finally:
        own.close(keep=options.keep_writes)


def _session_options(
    program: Program, gpu: GPU, options: ProgramOptions, link: Link | None
) -> SessionOptions:
    from neusight.session import SessionOptions

    return SessionOptions(
        forecast_options_for(gpu, options),
        on_out_of_memory=options.out_of_memory,
        strict=options.strict,
        with_stack=options.with_stack,
        with_functions=options.with_functions,
        virtual_time=True,
        allow_writes=options.allow_writes,
        has_view=options.has_view,
        keep_writes=None if options.has_view else options.keep_writes,
        steady_steps=options.steps,
        max_ops=options.max_ops,
        script=program.title,
        stated=options.stated,
        compiles_models=options.compiles_models,
        with_operators=options.with_operators,
        torch_version=options.torch,
        rank=options.rank,
        link=link,
        wait_s=options.wait_s,
    )
