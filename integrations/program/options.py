"""How a program is recorded and priced: the options of command lines, projects and tests."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from neusight.fake_cuda.distributed.rank import Rank, stated_rank
from neusight.output.batch import SAMPLES_OPTION, TOKENS_OPTION
from neusight.predictors.clusters.named import find_topology, with_cards
from neusight.predictors.clusters.placement import ranks_from
from neusight.predictors.clusters.topology import Topology
from neusight.predictors.errors import CalibrationError, OptionError
from neusight.predictors.gpu import GPU
from neusight.predictors.measuring.calibration import Calibration
from neusight.predictors.physics.communication.system import system_of
from neusight.predictors.registry import require_predictor
from neusight.timeline.host import require_host

#: Steady steps after which a program is ended: enough for a median.
DEFAULT_STEPS = 5

#: Seconds that a rank waits for a key that no rank sets: others may take that long to start.
DEFAULT_WAIT_S = 60.0

#: Stands for all ranks; of more than 16 most are run for a few steps alone.
ALL_DISTINCT = "all-distinct"

#: Ranks and ranges of them.
_RANKS = re.compile(r"\d{1,6}(\.\.\d{1,6})?(,\d{1,6}(\.\.\d{1,6})?)*")

#: Ops after which a loop counts as endless; a step of a large model has some ten thousand.
DEFAULT_MAX_OPS = 5_000_000

#: Versions of torch whose kernels are distinguished.
_TORCH = re.compile(r"2\.\d{1,2}(\.\d+)?")

#: Options that a project's settings and a baseline may state too, by name, as text.
STATED = ("calibration", "host", "predictor", "steps", "torch")

#: The same of the batch of a step.
STATED_OF_BATCH = ("samples", "tokens")

#: The same for a program that is one of many, or several side by side.
STATED_OF_RANKS = ("gpus_per_node", "ranks", "world_size")


@dataclass(frozen=True, kw_only=True)
class ProgramOptions:
    """How a program is recorded and priced.

    `steps` is after how many steady steps it is ended (None: never), `calibration` the file of
    what is known of a GPU, `host` what the host costs (None: what machines with that GPU have),
    `torch` the version whose kernels are priced ("2.4"; None: the one that is installed).
    `samples` and `tokens` state what enters a step, in place of what is recorded. `is_guarded`
    runs it in a process of its own, in which the user's files are safe; with `has_view` this is
    that process, with a copy-on-write view of the file system. `compiles_models`
    compiles its models, though it does not ask for it. `with_operators` records what torch's
    dispatcher calls around its ops, for reports of it. `rank` says which of many processes it
    is, where it is one, `topology` how those are joined (None: as in the GPU's reference system),
    and `network_gbps` with which network instead ("50x8"). `ranks` says which of them run side by
    side, where several do: none stated are all (see `ALL_DISTINCT`). `wait_s` is how long one of
    them waits for a message that no rank is known to send.

    OptionError for what means nothing, UnknownPredictorError, TopologyError.
    """

    steps: int | None = DEFAULT_STEPS
    predictor: str | None = None
    calibration: str | None = None
    host: str | None = None
    torch: str | None = None
    strict: bool = False
    out_of_memory: Literal["report", "raise"] = "report"
    max_ops: int = DEFAULT_MAX_OPS
    samples: int | None = None
    tokens: int | None = None
    with_stack: bool = False
    with_functions: bool = False
    quiet: bool = False
    allow_writes: bool = False
    keep_writes: str | None = None
    is_guarded: bool = False
    has_view: bool = False
    compiles_models: bool = False
    with_operators: bool = True
    rank: Rank | None = None
    topology: str | Topology | None = None
    network_gbps: str | None = None
    ranks: tuple[int, ...] | None = None
    wait_s: float = DEFAULT_WAIT_S

    def __post_init__(self) -> None:
        require_predictor(self.predictor)
        if self.host is not None:
            require_host(self.host)
        if self.torch is not None and not _TORCH.fullmatch(self.torch):
            raise OptionError(f"--torch is {self.torch!r}; it must be a version like 2.4 or 2.6.0")
        for name in ("samples", "tokens"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise OptionError(f"--{name} is {value}; it must be a number above 0")
        if isinstance(self.topology, str):
            object.__setattr__(self, "topology", find_topology(self.topology))
        if not 0.0 < self.wait_s < math.inf:
            raise OptionError(f"--wait is {self.wait_s:g}; it must be a number of seconds above 0")
        self._require_ranks()

    def topology_for(self, gpu: GPU) -> Topology | None:
        """The system that is stated for that GPU; None where none is. OptionError for a network
        that means nothing, or where nothing needs one."""
        stated = None if self.topology is None else find_topology(self.topology)
        if self.network_gbps is None:
            return stated
        if self.rank is None:
            raise OptionError("--network-gbps means nothing without --world-size")
        base = stated or system_of(gpu)
        return with_cards(self.network_gbps, base, self.rank.gpus_per_node)

    @property
    def host_beside_torch(self) -> str | None:
        """The stated host with the dispatcher of the stated version of torch; None where neither is
        stated.

        >>> ProgramOptions(host="cloud", torch="2.1").host_beside_torch
        'cloud,torch=2.1'
        """
        if self.torch is None or "torch=" in (self.host or ""):
            return self.host
        return ",".join(filter(None, (self.host, f"torch={self.torch}")))

    def _require_ranks(self) -> None:
        """OptionError unless there are several ranks and each of `ranks` is one of them."""
        if self.ranks is None:
            return
        if self.rank is None:
            raise OptionError(
                "ranks run side by side only where there are several: say --world-size, or start "
                "the script by torchrun"
            )
        for index in self.ranks:
            replace(self.rank, index=index)

    @property
    def stated(self) -> dict[str, str]:
        """What a recording keeps of what the user says of the program."""
        stated = {SAMPLES_OPTION: self.samples, TOKENS_OPTION: self.tokens}
        return {name: str(value) for name, value in stated.items() if value is not None}

    @property
    def stated_batch(self) -> dict[str, str]:
        """What states the same of the batch of a step, by the names in STATED_OF_BATCH.

        >>> ProgramOptions(samples=8).stated_batch
        {'samples': '8'}
        """
        stated = {"samples": self.samples, "tokens": self.tokens}
        return {name: str(count) for name, count in stated.items() if count is not None}

    @property
    def stated_ranks(self) -> dict[str, str]:
        """What states the same ranks, by the names in STATED_OF_RANKS; nothing for a program that
        is alone.

        >>> ProgramOptions(rank=Rank(0, 16), ranks=()).stated_ranks
        {'gpus_per_node': '8', 'ranks': 'all-distinct', 'world_size': '16'}
        """
        if self.rank is None:
            return {}
        chosen = (self.rank.index,) if self.ranks is None else self.ranks
        return {
            "gpus_per_node": str(self.rank.gpus_per_node),
            "ranks": ",".join(map(str, chosen)) or ALL_DISTINCT,
            "world_size": str(self.rank.world_size),
        }

    @property
    def steps_text(self) -> str:
        """The steps as they are stated: a number, or "all"."""
        return "all" if self.steps is None else str(self.steps)

    def calibration_for(self, gpu: GPU) -> Calibration | None:
        """The calibration, if it is of that GPU."""
        if self.calibration is None:
            return None
        fitted = Calibration.load(self.calibration)
        return fitted if fitted.gpu == gpu.name else None


def read_ranks(text: str | None) -> tuple[int | None, tuple[int, ...] | None]:
    """The first rank that a text asks for (None: the one that is so by default), and those that run
    side by side, as `ProgramOptions.ranks` has them. OptionError.

    >>> read_ranks("3"), read_ranks("0,3,7"), read_ranks("0..3"), read_ranks("all-distinct")
    ((3, None), (0, (0, 3, 7)), (0, (0, 1, 2, 3)), (0, ()))
    """
    if text is None:
        return None, None
    if text == ALL_DISTINCT:
        return 0, ()
    words = text.replace(" ", "")
    if not _RANKS.fullmatch(words):
        raise OptionError(f"--rank is {text!r}; it must be like 3, 0,3,7, 0..7 or {ALL_DISTINCT}")
    ranks = tuple(sorted(set(ranks_from(words))))
    if not ranks:
        raise OptionError(f"--rank is {text!r}, which holds no rank: a range is like 0..7")
    return ranks[0], ranks if len(ranks) > 1 else None


def stated_options(
    texts: Mapping[str, str | None], options: ProgramOptions | None = None
) -> ProgramOptions:
    """These options, but for those that are stated as text, by their names in STATED,
    STATED_OF_BATCH and STATED_OF_RANKS; what is None is not stated. OptionError for what means
    nothing.

    >>> stated_options({"steps": "all", "host": None}).steps is None
    True
    """
    stated: dict[str, Any] = {name: text for name, text in texts.items() if text is not None}
    steps = stated.get("steps")
    if steps is not None:
        if steps != "all" and not (steps.isdigit() and int(steps) > 0):
            raise OptionError(f"--steps is {steps!r}; it must be a number above 0, or all")
        stated["steps"] = None if steps == "all" else int(steps)
    for name in (*STATED_OF_BATCH, "gpus_per_node", "world_size"):
        if name in stated:
            if not stated[name].isdecimal():
                raise OptionError(f"{name} is {stated[name]!r}; it must be a number above 0")
            stated[name] = int(stated[name])
    of_ranks = {name: stated.pop(name) for name in STATED_OF_RANKS if name in stated}
    if of_ranks:
        index, stated["ranks"] = read_ranks(of_ranks.get("ranks"))
        stated["rank"] = stated_rank(
            index=index,
            world_size=of_ranks.get("world_size"),
            gpus_per_node=of_ranks.get("gpus_per_node"),
            environment={},
        )
    return replace(options or ProgramOptions(), **stated)


def checked_calibration(options: ProgramOptions, targets: list[GPU]) -> None:
    """CalibrationError where there is a calibration, but of none of the GPUs."""
    if options.calibration is None or any(options.calibration_for(target) for target in targets):
        return
    raise CalibrationError(
        f"{options.calibration} is of {Calibration.load(options.calibration).gpu}, which is not "
        f"among the GPUs asked for: {', '.join(target.name for target in targets)}. Calibrate for "
        "one of them, or leave --calibration out."
    )
