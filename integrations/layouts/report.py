"""The result of a search for layouts, as text and JSON; and the script of a layout."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from neusight.integrations.layouts import search as searching
from neusight.integrations.layouts.layout import ModelShape, StepLoad
from neusight.integrations.layouts.pricing import LayoutPrice
from neusight.integrations.layouts.search import Found
from neusight.integrations.layouts.whole_training import WholeTraining
from neusight.integrations.report.side_by_side import text_table
from neusight.predictors.formatting import bytes_text, milliseconds_text

#: Raised when the form of the document changes.
SCHEMA_VERSION = 1

_SHOWN = 10
_GIB = 2**30
_BILLION = 1e9
_BASIS = (
    "priced from one block and its neighbours; those run whole first, as long as their scripts take"
)
_OFFLOADED = "offload: the host's memory must hold 16 bytes of each parameter of its ranks"
_TEMPLATE = Path(__file__).with_name("training.py")


@dataclass(frozen=True)
class LayoutReport:
    """What was found for a model, and the prices of GPUs an hour, where all are known."""

    found: Found
    shape: ModelShape
    work: StepLoad
    prices: Mapping[str, float]
    gpus: tuple[str, ...]
    script: str | None = None
    training: WholeTraining | None = None

    @property
    def _has_prices(self) -> bool:
        return all(gpu in self.prices for gpu in self.gpus)

    def cost(self, price: LayoutPrice) -> float:
        """Of a billion tokens: dollars, or GPU-hours where a price is missing."""
        hours = price.gpu_hours(_BILLION)
        return hours * self.prices[price.gpu] if self._has_prices else hours

    @property
    def _cost_title(self) -> str:
        return "$ a billion tokens" if self._has_prices else "GPU h a billion tokens"

    def text(self) -> str:
        """The ten best, why the next is not the best, and the frontier."""
        shape, found = self.shape, self.found
        lines = [
            f"{shape.name}: {shape.num_parameters / 1e9:.2f} billion parameters, "
            f"{shape.num_blocks} blocks; a step of {self.work.tokens:,} tokens in sequences of "
            f"{self.work.sequence:,}",
            f"{found.num_layouts:,} layouts, {found.num_too_large:,} of which do not fit",
            "",
        ]
        if not found.prices:
            lines.append(self._nothing())
            return "\n".join([*lines, *(f"  {problem}" for problem in found.problems)])
        lines += [self._table(), "", *self._best(), *self._frontier()]
        lines += [f"  note      {problem}" for problem in found.problems]
        lines.append(f"  note      {_BASIS}")
        if any(price.layout.offload for price in found.prices[:_SHOWN]):
            lines.append(f"  note      {_OFFLOADED}")
        if self.script is not None:
            lines.append(f"  script    {self.script}")
        return "\n".join(lines)

    def _nothing(self) -> str:
        if self.found.problems and not self.found.least_needed_bytes:
            return "no block could be recorded"
        least = self.found.least_needed_bytes
        stated = f": the smallest needs {bytes_text(least)} on a rank" if least else ""
        return f"no layout fits{stated}; add ranks, or say fewer tokens or shorter sequences"

    def _table(self) -> str:
        names = ["rank", "layout", "GPU", "ranks", "ms a step", "run whole", "tokens/s", "MFU",
                 "GiB", "exposed", "bubble", "kJ a step", "W", self._cost_title]  # fmt: skip
        return text_table(
            names,
            [
                [str(place), *self._cells(price)]
                for place, price in enumerate(self.found.prices[:_SHOWN], start=1)
            ],
        )

    def _cells(self, price: LayoutPrice) -> list[str]:
        return [
            price.layout.title,
            price.gpu,
            str(price.layout.world_size),
            milliseconds_text(price.step_us),
            "" if price.corrected_us is None else f"{price.correction:+.1%}",
            f"{price.tokens_per_s:,.0f}",
            f"{price.mfu:.1%}",
            f"{price.memory_bytes / _GIB:.1f} of {price.capacity_bytes / _GIB:.0f}",
            milliseconds_text(price.exposed_us),
            milliseconds_text(price.bubble_us),
            f"{price.energy_j / 1e3:,.1f}",
            f"{price.watts:,.0f}",
            f"{self.cost(price):,.4g}",
        ]

    def _best(self) -> list[str]:
        best = self.found.prices[0]
        parts = ", ".join(
            f"{name} {milliseconds_text(us)}" for name, us in best.parts.items() if us
        )
        lines = [f"  best      {best.layout.title}: {parts} (ms)"]
        if len(self.found.prices) > 1:
            lines.append(f"  next      {_why(best, self.found.prices[1])}")
        if self.training is not None:
            lines.append(f"  training  {self._training_text(self.training, best)}")
        lines.append(
            f"  saving    a checkpoint of {self.shape.num_parameters * 12 / _BILLION:,.0f} GB "
            f"takes {best.checkpoint_s:.1f} s of all hosts (--storage-gbps)"
        )
        return lines

    def _training_text(self, training: WholeTraining, price: LayoutPrice) -> str:
        """The duration and the cost of the whole training."""
        time = training.time_of(price)
        dollars = f", ${time.gpu_hours * self.prices[price.gpu]:,.0f}" if self._has_prices else ""
        text = (
            f"{training.tokens / 1e9:,.0f} billion tokens: {time.days:,.1f} days, "
            f"{time.gpu_hours:,.0f} GPU hours{dollars}"
        )
        if time.failure_s is None or time.interval_s is None:
            return f"{text}, if nothing fails (--mtbf)"
        return (
            f"{text}; goodput {time.goodput:.1%}: a failure every {time.failure_s / 3600:,.1f} h, "
            f"a checkpoint every {time.interval_s / 60:,.0f} min"
        )

    def _frontier(self) -> list[str]:
        kept = searching.frontier(self.found.prices, self.cost)
        if len({(price.gpu, price.layout.world_size) for price in self.found.prices}) < 2:
            return []
        return [
            "  frontier of time and cost",
            *(
                f"    {price.layout.world_size:>6} x {price.gpu:<22} "
                f"{milliseconds_text(price.step_us):>12} ms a step  {self.cost(price):>9,.4g} "
                f"{self._cost_title}  {price.layout.title}"
                for price in kept
            ),
        ]

    def to_json(self) -> dict[str, Any]:
        """The document of `--json`."""
        return {
            "schema_version": SCHEMA_VERSION,
            "model": self.shape.name,
            "num_parameters": self.shape.num_parameters,
            "tokens_per_step": self.work.tokens,
            "sequence": self.work.sequence,
            "num_layouts": self.found.num_layouts,
            "num_too_large": self.found.num_too_large,
            "layouts": [
                {
                    **price.to_json(),
                    self._cost_title.replace(" ", "_"): self.cost(price),
                    "training": self.training and asdict(self.training.time_of(price)),
                }
                for price in self.found.prices
            ],
            "frontier": [
                price.to_json() for price in searching.frontier(self.found.prices, self.cost)
            ],
            "problems": list(self.found.problems),
            "script": self.script,
        }


def _why(best: LayoutPrice, other: LayoutPrice) -> str:
    """Why the other layout is slower."""
    more = other.step_us / best.step_us - 1.0
    changes = {
        name: us - best.parts[name]
        for name, us in other.parts.items()
        if abs(us - best.parts[name]) >= 0.005 * max(1.0, abs(other.step_us - best.step_us))
    }
    reported = ", ".join(
        f"{milliseconds_text(abs(us))} ms {'more' if us > 0 else 'less'} {name}"
        for name, us in sorted(changes.items(), key=lambda item: -item[1])[:3]
    )
    where = "" if other.gpu == best.gpu else f" on {other.gpu}"
    return (
        f"{other.layout.title}{where} takes {more:.1%} longer: {reported or 'nothing stands out'}"
    )


def script_text(source: str, price: LayoutPrice, work: StepLoad, *, gpus_per_node: int) -> str:
    """A script that trains the model in that layout, for torchrun."""
    hosts = max(1, price.layout.world_size // gpus_per_node)
    per_host = min(price.layout.world_size, gpus_per_node)
    settings = ", ".join(
        f'"{name}": {value!r}' for name, value in price.layout.settings(work.sequence).items()
    )
    text = _TEMPLATE.read_text(encoding="utf-8")
    start = (
        f'"""Trains {source} as `neusight plan` laid it out for {price.layout.world_size} '
        f"{price.gpu}: {price.layout.title}.\n\n"
        f"    torchrun --nnodes {hosts} --nproc-per-node {per_host} THIS_FILE\n"
        f"    neusight run --gpu {price.gpu} --world-size {price.layout.world_size} THIS_FILE\n\n"
        "The data are random tokens: put your own loader"
    )
    text = re.sub(
        r'\A""".*?The data are random tokens: put your own loader',
        lambda _: start,
        text,
        flags=re.DOTALL,
    )
    text = re.sub(
        r"^LAYOUT: .*?^\}  # fmt: skip$",
        lambda _: f"LAYOUT: dict[str, Any] = {{\n    {settings},\n}}  # fmt: skip",
        text,
        flags=re.DOTALL | re.MULTILINE,
    )
    whole = _absolute(source)
    return re.sub(r"^MODEL = .*$", lambda _: f"MODEL = {whole!r}", text, flags=re.MULTILINE)


def _absolute(source: str) -> str:
    path, colon, name = source.rpartition(":")
    return str(Path(path or source).resolve()) + (f"{colon}{name}" if path else "")
