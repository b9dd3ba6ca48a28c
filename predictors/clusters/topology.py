"""A topology: how GPUs are joined, level by level, and what measurements of it say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

from neusight.predictors.errors import TopologyError
from neusight.predictors.files import (
    Fields,
    is_count,
    is_number,
    read_json_document,
    write_atomically,
)

#: "switch": all GPUs reach each other at the full rate of their links; "mesh": a link for each pair
#: of GPUs; "pcie": through the host's bridges, or its memory; "network": network cards.
LevelKind = Literal["switch", "mesh", "pcie", "network"]

_KIND = "topology"
_REMEDY = "`neusight gpus --topologies` lists those that are known; predictors/topologies has them."

#: Half width of the 80 % interval between hosts where it was not measured the network. An
#: assumption: hosts differ more, and those of data/modern were 40 to 83 % slower than datasheets
#: say.
_UNMEASURED_SPREAD = 0.6

#: Figures outside these are slips of the hand.
_LEAST, _MOST = 1e-3, 1e6
_MOST_RANKS = 2**24
_MOST_US = 1e9
_MOST_BYTES = 2**50


@dataclass(frozen=True)
class Level:
    """One level of links between GPUs, or between all that the level below joins.

    `gbps` is one direction, 1e9 bytes per second: of a GPU in a switch or behind PCIe, of the link
    between two GPUs in a mesh, of one card of a network. `ranks` is how many GPUs it joins (0: as
    many as there are), `nics_per_node` how many cards a node has. The GPU's own measured constants
    price switches and meshes. Of PCIe and networks, `share` is what collectives reach of `gbps`,
    `base_us` what one costs at least and `hop_us` what a step adds (between nodes: each crossing);
    `oversubscription` is by how much the network is narrower than its cards, and `spread` the half
    width of the 80 % interval. `sharp`: its switches reduce, so that the data crosses once.
    """

    kind: LevelKind
    gbps: float
    ranks: int = 0
    nics_per_node: int = 0
    share: float = 0.8
    base_us: float = 10.0
    hop_us: float = 5.0
    oversubscription: float = 1.0
    spread: float = _UNMEASURED_SPREAD
    sharp: bool = False


@dataclass(frozen=True)
class Curve:
    """Measured times of one collective for groups of `ranks` GPUs on `nodes` nodes: bytes of a
    rank's full buffer, ascending, and µs."""

    op: str
    ranks: int
    nodes: int
    points: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Topology:
    """How GPUs are joined: nodes of `gpus_per_node`, and the levels from the innermost outwards.

    `reference_of` names the GPUs that are taken to be in such a system where nothing is stated;
    `measured` is calibration (`neusight calibrate`) of a real one. TopologyError for figures that
    no system has.
    """

    name: str
    gpus_per_node: int
    levels: tuple[Level, ...]
    reference_of: tuple[str, ...] = ()
    measured: tuple[Curve, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        reach = 0
        for index, level in enumerate(self.levels):
            is_last = index == len(self.levels) - 1
            if (level.ranks == 0 and not is_last) or 0 < level.ranks <= reach:
                self._refuse(
                    f"level {index + 1} ({level.kind}) must join more GPUs than those below"
                )
            if level.kind == "network" and not level.nics_per_node:
                self._refuse(f"level {index + 1} (network) must say its nics_per_node")
            is_outside = self.levels[index - 1].kind == "network" if index else False
            if is_outside and level.kind != "network":
                self._refuse(f"level {index + 1} ({level.kind}) lies outside a network")
            reach = level.ranks
        if not self.levels or self.gpus_per_node < 1:
            self._refuse("it must have a level, and a GPU in each node")

    @property
    def inside(self) -> tuple[Level, ...]:
        """The levels of links that are no network."""
        return tuple(level for level in self.levels if level.kind != "network")

    @property
    def network(self) -> Level | None:
        """The innermost network, if there is one."""
        return next((level for level in self.levels if level.kind == "network"), None)

    def require_space(self, ranks_per_node: int) -> None:
        """TopologyError where a node has fewer GPUs than that."""
        if ranks_per_node > self.gpus_per_node:
            raise TopologyError(
                f"The program runs {ranks_per_node} ranks on each node; a node of {self.name} has "
                f"{self.gpus_per_node} GPUs. Say --gpus-per-node {self.gpus_per_node}, or another "
                "--topology."
            )

    def with_network(self, *networks: Level) -> Topology:
        """The same with other networks, from the innermost outwards; the last joins all nodes."""
        return replace(self, levels=(*self.inside, *networks), measured=())

    def to_json(self) -> dict[str, Any]:
        """Everything as plain JSON values; `from_json` reads it back."""
        document = asdict(replace(self, sources=dict(self.sources)))
        document["levels"] = [_level_json(level) for level in self.levels]
        optional = ("reference_of", "measured", "sources")
        kept = {name: value for name, value in document.items() if value or name not in optional}
        plain: dict[str, Any] = json.loads(json.dumps(kept))
        return plain

    def save(self, path: str | Path) -> None:
        """Writes the file that `--topology` takes, equal ones to equal bytes."""
        write_atomically(path, (json.dumps(self.to_json(), indent=1) + "\n").encode())

    @classmethod
    def from_json(cls, document: object, *, source: str = "it") -> Topology:
        """What `to_json` wrote; TopologyError names what is wrong."""
        values = document if isinstance(document, dict) else {}
        return cls._of(Fields(values, _KIND, source, error=TopologyError, remedy=_REMEDY))

    @classmethod
    def _of(cls, found: Fields) -> Topology:
        found.require_only([item.name for item in fields(cls)])
        per_node = found.count("gpus_per_node")
        if per_node > _MOST_RANKS:
            found.refuse("gpus_per_node", f"at most {_MOST_RANKS}")
        try:
            return cls(
                name=found.text("name"),
                gpus_per_node=per_node,
                levels=tuple(map(_read_level, found.rows("levels"))),
                reference_of=found.texts("reference_of", default=[]),
                measured=tuple(map(_read_curve, found.rows("measured")))
                if found.optional("measured")
                else (),
                sources=found.text_by_name("sources", default={}),
            )
        except _Wrong as error:
            raise TopologyError(f"The topology {found.source} is damaged: {error}") from None

    def _refuse(self, why: str) -> None:
        raise _Wrong(f"{self.name}: {why}.")


class _Wrong(TopologyError):
    """Levels that do not fit together."""


def _level_json(level: Level) -> dict[str, Any]:
    """What differs from the defaults of a level, and its kind and rate."""
    plain = asdict(level)
    defaults = {item.name: item.default for item in fields(Level)}
    return {name: value for name, value in plain.items() if value != defaults[name]}


def read_topology(path: str | Path) -> Topology:
    """The topology of a JSON file; TopologyError says what is wrong with it."""
    return Topology._of(read_json_document(path, kind=_KIND, error=TopologyError, remedy=_REMEDY))


def _read_level(row: Fields) -> Level:
    row.require_only([item.name for item in fields(Level)])
    ranks, cards = row.count("ranks", default=0), row.count("nics_per_node", default=0)
    for name, value in (("ranks", ranks), ("nics_per_node", cards)):
        if value > _MOST_RANKS:
            row.refuse(name, f"at most {_MOST_RANKS}")
    kinds: tuple[LevelKind, ...] = get_args(LevelKind)
    kind = row.choice("kind", kinds)
    numbers: dict[str, Any] = {
        name: row.number(name, least=least, most=most, default=getattr(Level, name))
        for name, least, most in _LIMITS
    }
    return Level(
        kind=next(known for known in kinds if known == kind),
        gbps=row.number("gbps", least=_LEAST, most=_MOST),
        ranks=ranks,
        nics_per_node=cards,
        sharp=row.flag("sharp", default=False),
        **numbers,
    )


_LIMITS = (
    ("share", _LEAST, 1.0),
    ("base_us", 0.0, _MOST_US),
    ("hop_us", 0.0, _MOST_US),
    ("oversubscription", 1.0, _MOST),
    ("spread", 0.0, 100.0),
)


def _read_curve(row: Fields) -> Curve:
    row.require_only([item.name for item in fields(Curve)])
    points = row.items("points")
    found = [tuple(point) if isinstance(point, list) else point for point in points]
    if not found or not all(_is_point(point) for point in found):
        row.refuse("points", "a list of bytes and µs")
    if any(after <= before for (before, _), (after, _) in pairwise(found)):
        row.refuse("points", "in the order of bytes, each size once")
    curve = Curve(row.text("op"), row.count("ranks"), row.count("nodes"), tuple(found))
    if not 1 <= curve.nodes <= curve.ranks:
        row.refuse("ranks", "at least 1, and as many as nodes")
    return curve


def _is_point(point: object) -> bool:
    return (
        isinstance(point, tuple)
        and len(point) == 2
        and is_count(point[0])
        and 0 < point[0] <= _MOST_BYTES
        and is_number(point[1])
        and 0.0 < point[1] <= _MOST_US
    )
