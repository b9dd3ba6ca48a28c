"""A script forecast as it is in two revisions, each in a process of its own, from its own tree."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from neusight.integrations.check.comparing.pair import Pair, Side, pair_of
from neusight.integrations.check.settings import read_settings
from neusight.integrations.program.forecasting import ProgramForecast
from neusight.integrations.program.fresh_process import FreshProcess
from neusight.integrations.program.options import ProgramOptions
from neusight.integrations.program.program import Program
from neusight.integrations.program.progress.reporting import reporting_work
from neusight.integrations.program.revisions.git import repository_of
from neusight.integrations.program.revisions.trees import Tree, checked_out, program_in
from neusight.predictors.errors import NeusightError, OptionError
from neusight.predictors.gpu import GPU, find_gpu

#: A file in the words of an error.
_FILE_IN_ERROR = re.compile(r"No such file or directory: '([^']+)'")


@dataclass(frozen=True)
class RevisionRequest:
    """Which revisions of which program, on which GPU (None: the project's), and how."""

    revisions: str
    program: Program
    gpu_name: str | None
    options: ProgramOptions
    links: tuple[str, ...] = ()

    @property
    def gpu(self) -> GPU:
        """The GPU; OptionError where it is not stated which."""
        names = [self.gpu_name] if self.gpu_name else read_settings(Path.cwd()).gpus
        if not names:
            raise OptionError('Say which GPU: --gpu H100, or gpu = "H100" in [tool.neusight].')
        return find_gpu(names[0])


@contextmanager
def pair_of_revisions(
    request: RevisionRequest, *, report_progress: Callable[[str], object] = lambda text: None
) -> Iterator[Pair | str]:
    """The program compared, while the trees of the revisions are there for its lines to be read;
    why not, where it fails in one of them. `report_progress` is called with what is being done.

    OptionError for what is no revision, no repository, or does not have the script.
    """
    gpu, repository = request.gpu, repository_of(Path.cwd())
    revisions = repository.revisions(request.revisions)
    with checked_out(repository, revisions, request.links) as trees:
        program = program_in(request.program, trees)
        with ExitStack() as processes:
            running = []
            for tree in trees:
                report_progress(f"running {' '.join(program.words)} in {tree.revision.title}")
                own = FreshProcess(
                    program, gpu, request.options, folder=tree.folder, environment=tree.environment
                )
                running.append(processes.enter_context(own))
            with reporting_work(lambda: "running both") as wait:
                for process in running:
                    process.await_end(wait)
            found = [
                _side(tree, process, program, gpu, request.options)
                for tree, process in zip(trees, running, strict=True)
            ]
        first, second = found
        if isinstance(first, str) or isinstance(second, str):
            yield "; ".join(item for item in found if isinstance(item, str))
        else:
            yield pair_of(first, second)


def _side(
    tree: Tree, process: FreshProcess, program: Program, gpu: GPU, options: ProgramOptions
) -> Side | str:
    title = tree.revision.title
    name = " ".join(program.words)
    try:
        found = process.result()
        if found.outcome.failure:
            reported = [found.outcome.failure, *_hints(found.outcome.failure, tree), *tree.notes]
            return f"{name} failed in {title}: {'; '.join(reported)}"
        there = ProgramForecast.of(found, program, gpu, options)
        failure = there.outcome.failure
    except NeusightError as error:
        failure = str(error)
    if failure:
        return f"{name} failed in {title}: {failure}"
    if not there.forecast.recording.num_ops:
        return f"{name} put nothing on the GPU in {title}"
    return Side(title, there.forecast, tree.folder, tree.notes)


def _hints(failure: str, tree: Tree) -> Sequence[str]:
    """Where the program misses a file that is here, but that git does not keep."""
    found = _FILE_IN_ERROR.search(failure)
    if found is None or not tree.revision.commit or Path(found[1]).is_absolute():
        return []
    if not Path(found[1]).exists():
        return []
    return [f"git does not keep it: --link {Path(found[1]).parts[0]} lets both trees have it"]
