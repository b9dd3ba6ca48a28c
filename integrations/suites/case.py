"""A case of a suite: what ran, on which GPU, and how long that was measured to take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from neusight.predictors.errors import NeusightError
from neusight.predictors.gpu import GPU

#: What a program comes down to: a function that does one step.
Step = Callable[[], object]


class CannotBuild(NeusightError):
    """A case's program cannot be built here; the text says what is missing."""


@dataclass(frozen=True)
class CaseProgram:
    """What ran, enough to run it again.

    `family` says who builds it, `size` is the length of a sequence or the side of an image,
    `compiled` the mode of torch.compile ("": eager), `split` how several GPUs share the model
    ("dp", "tp", "pp"; "": one GPU).
    """

    family: str
    model: str
    mode: str
    batch: int
    size: int
    precision: str = "fp32"
    compiled: str = ""
    optimizer: str = ""
    channels_last: bool = False
    split: str = ""
    num_ranks: int = 1

    @property
    def name(self) -> str:
        """What tables and progress call it."""
        how = [self.precision, self.compiled and f"compiled {self.compiled}", self.split]
        words = [self.model, self.mode, f"{self.batch} x {self.size}", *how]
        return " ".join(word for word in words if word)


@dataclass(frozen=True)
class SuiteCase:
    """A measured figure and the program behind it.

    `metric` and `value` stand as the source gives them, `measured_ms` is the same as the time of
    one step. `is_held_out` marks a GPU of which the tables that predictors are fitted on have no
    kernels of this kind. `assumed` lists what the source does not say; `torch` is the version that
    ran, "" where it does not say that.
    """

    name: str
    source: str
    program: CaseProgram
    gpu: GPU
    metric: str
    value: float
    measured_ms: float
    is_held_out: bool = False
    assumed: tuple[str, ...] = ()
    torch: str = ""


@dataclass(frozen=True)
class LeftOut:
    """A row that was not run, and why."""

    name: str
    source: str
    reason: str


@dataclass(frozen=True)
class Suite:
    """The cases of a folder, and the rows of it that are none."""

    name: str
    cases: tuple[SuiteCase, ...]
    left_out: tuple[LeftOut, ...]
