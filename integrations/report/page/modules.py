"""The modules of a program as a tree: time and memory of each, blocks that repeat as one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

from neusight.integrations.report.page.html_tables import (
    Cell,
    Detail,
    count_cell,
    data_element,
    pattern_of,
    share_cell,
    shortened,
    table,
    time_cell,
)
from neusight.timeline.spans import KernelSpan, StepSpan
from neusight.timeline.steady import kernels_of

if TYPE_CHECKING:
    from neusight.forecast import Forecast

_NS_PER_US = 1000
#: So many modules without parts, alike and in a row, are repeated ones: a Sequential has two by
#: chance, a list of experts' layers not.
_REPEATED_LEAVES = 3
#: Figures of a node, in this order: times in nanoseconds, kernels, bytes alive at the peak.
_FORWARD, _BACKWARD, _OTHER, _KERNELS, _BYTES = range(5)
_FIGURE_OF_PHASE = {"forward": _FORWARD, "backward": _BACKWARD}
_NOTHING = (0, 0, 0, 0, 0)


@dataclass
class ModuleNode:
    """A module, or several that repeat (`names` are then theirs): `figures` are its own and its
    parts'. `instances` holds those of each, of all nodes below too, from the top down."""

    name: str
    kind: str = ""
    figures: list[int] = field(default_factory=lambda: list(_NOTHING))
    parts: list[ModuleNode] = field(default_factory=list)
    names: tuple[str, ...] = ()
    instances: list[list[list[int]]] = field(default_factory=list)

    def all_figures(self) -> list[list[int]]:
        """The figures of this node and of all below it, from the top down."""
        return [self.figures, *(found for part in self.parts for found in part.all_figures())]

    @property
    def time_ns(self) -> int:
        """What its kernels take."""
        return sum(self.figures[: _OTHER + 1])


def module_tree(
    kernels: Iterable[KernelSpan],
    *,
    held: Mapping[str, int] | None = None,
    kinds: Mapping[str, str] | None = None,
) -> ModuleNode:
    """The tree of a step's kernels and of the bytes `held` by module; `kinds` are the classes. What
    belongs to no module stands at the top by its phase, as "(optimizer)"."""
    root = ModuleNode("")
    nodes = {"": root}
    for span in kernels:
        own = _node(nodes, span.call.module or f"({span.call.phase})", kinds or {})
        own.figures[_FIGURE_OF_PHASE.get(span.call.phase, _OTHER)] += span.duration_ns
        own.figures[_KERNELS] += 1
    for module, num_bytes in (held or {}).items():
        _node(nodes, module, kinds or {}).figures[_BYTES] += num_bytes
    _add_up(root)
    return _grouped(root, {})


def _node(nodes: dict[str, ModuleNode], path: str, kinds: Mapping[str, str]) -> ModuleNode:
    found = nodes.get(path)
    if found is None:
        above, _, name = ("", "", path) if path.startswith("(") else path.rpartition(".")
        found = nodes[path] = ModuleNode(name, kinds.get(path, ""))
        _node(nodes, above, kinds).parts.append(found)
    return found


def _add_up(node: ModuleNode) -> None:
    for part in node.parts:
        _add_up(part)
    node.figures = _summed([node.figures, *(part.figures for part in node.parts)])


def _summed(many: Iterable[Sequence[int]]) -> list[int]:
    return [sum(column) for column in zip(*many, strict=True)]


# -- blocks that repeat --------------------------------------------------------------------------


def _grouped(node: ModuleNode, known: dict[Any, int]) -> ModuleNode:
    """The node with those of its parts joined that are numbered and alike, all the way down."""
    node.parts = [_grouped(part, known) for part in node.parts]
    alike: dict[int, list[ModuleNode]] = defaultdict(list)
    for part in node.parts:
        if part.name.isdecimal():
            alike[_shape(part, known)].append(part)
    joined: dict[int, ModuleNode] = {}
    num_numbered = sum(map(len, alike.values()))
    for members in (run for found in alike.values() for run in _repeated(found)):
        one = _joined(members, is_all=len(members) == num_numbered)
        joined |= {id(member): one for member in members}
    parts = {id(part): part for part in (joined.get(id(part), part) for part in node.parts)}
    node.parts = list(parts.values())
    return node


def _shape(node: ModuleNode, known: dict[Any, int]) -> int:
    """A number, the same for nodes of equal class and equal parts."""
    parts = tuple(sorted((part.name, _shape(part, known)) for part in node.parts))
    return known.setdefault((node.kind, node.names, parts), len(known))


def _repeated(members: list[ModuleNode]) -> Iterator[list[ModuleNode]]:
    ordered = sorted(members, key=lambda node: int(node.name))
    if ordered[0].parts:
        runs = [ordered]
    else:
        numbered = groupby(enumerate(ordered), key=lambda item: int(item[1].name) - item[0])
        runs = [[node for _, node in run] for _, run in numbered]
    least = 2 if ordered[0].parts else _REPEATED_LEAVES
    yield from (run for run in runs if len(run) >= least)


def _joined(members: Sequence[ModuleNode], *, is_all: bool) -> ModuleNode:
    names = tuple(member.name for member in members)
    one = _sum_of(members)
    one.name = "*" if is_all else _ranges(names)
    one.names = names
    one.instances = [
        [list(found) for found in _ordered_as(member, members[0]).all_figures()]
        for member in members
    ]
    return one


def _ordered_as(node: ModuleNode, first: ModuleNode) -> ModuleNode:
    """A node with its parts in the order of the first one's."""
    by_name = {part.name: part for part in node.parts}
    parts = [_ordered_as(by_name[part.name], part) for part in first.parts]
    return ModuleNode(node.name, node.kind, node.figures, parts)


def _sum_of(members: Sequence[ModuleNode]) -> ModuleNode:
    """Nodes of equal parts as one, added up; groups among the parts stay groups."""
    first = members[0]
    named = [{part.name: part for part in member.parts} for member in members]
    parts = [_sum_of([parts[part.name] for parts in named]) for part in first.parts]
    one = ModuleNode(
        first.name, first.kind, _summed(member.figures for member in members), parts, first.names
    )
    if first.names:
        several = zip(*(member.instances for member in members), strict=True)
        one.instances = [
            [_summed(figures) for figures in zip(*same, strict=True)] for same in several
        ]
    return one


def _ranges(names: Sequence[str]) -> str:
    """Numbers as people write them.

    >>> _ranges(["0", "1", "2", "5"])
    '0-2, 5'
    """
    numbered = groupby(enumerate(map(int, names)), key=lambda item: item[1] - item[0])
    runs = [[number for _, number in run] for _, run in numbered]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


# -- on the page ---------------------------------------------------------------------------------


def view_of_modules(forecast: Forecast, step: StepSpan, name: str, detail: Detail) -> str:
    """The tree, drawn by the page's script from element `name`; without a script, a table."""
    timeline = forecast.timeline
    kernels = kernels_of(step, timeline)
    held: dict[str, int] = defaultdict(int)
    for row in forecast.memory.alive:
        held[row.module or f"({row.phase})"] += row.num_bytes
    host = timeline.host[step.first_host : step.last_host]
    kinds = {span.name: span.detail.partition(" ")[0] for span in host if span.kind == "module"}
    tree = module_tree(kernels, held=held, kinds=kinds)
    listed = _Listed(detail.num_instances)
    data = {"root": listed.json_of(tree), "left_out": listed.num_left_out}
    if not tree.parts:
        return '<p class="muted">No kernel ran, in no module.</p>'
    return (
        f'<div class="tree" data-source="{name}"></div>'
        f"<noscript>{_static_table(kernels, detail)}</noscript>{data_element(name, data)}"
    )


class _Listed:
    """Nodes as JSON; the instances of groups as far as `most` of their figures, smallest groups
    first."""

    def __init__(self, most: int) -> None:
        self._left = most
        self.num_left_out = 0

    def json_of(self, node: ModuleNode) -> dict[str, Any]:
        """Name, class, figures and parts; of a group also the names and figures of each in it."""
        found: dict[str, Any] = {"n": shortened(node.name), "v": _rounded(node.figures)}
        if node.kind:
            found["k"] = shortened(node.kind)
        if node.parts:
            found["c"] = [self.json_of(part) for part in node.parts]
        if node.names:
            found["x"] = len(node.names)
            size = len(node.names) * len(node.instances[0])
            if size <= self._left:
                self._left -= size
                found["each"] = [
                    [member, *map(_rounded, figures)]
                    for member, figures in zip(node.names, node.instances, strict=True)
                ]
            else:
                self.num_left_out += 1
        return found


def _rounded(figures: Sequence[int]) -> list[float]:
    """Times in microseconds, to a tenth."""
    times = [round(time_ns / _NS_PER_US, 1) for time_ns in figures[: _OTHER + 1]]
    return [*(int(time) if time.is_integer() else time for time in times), *figures[_OTHER + 1 :]]


def _static_table(kernels: Sequence[KernelSpan], detail: Detail) -> str:
    """What a reader without a script sees: modules with stars for numbers, the longest first."""
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for span in kernels:
        found = sums[pattern_of(span.call.module) or f"({span.call.phase})"]
        found[0] += 1
        found[1] += span.duration_ns
    total = sum(time_ns for _, time_ns in sums.values()) or 1
    ordered = sorted(sums.items(), key=lambda item: (-item[1][1], item[0]))
    rows: list[list[str | Cell]] = [
        [name, count_cell(count), time_cell(time_ns / _NS_PER_US), share_cell(time_ns / total)]
        for name, (count, time_ns) in ordered[: min(40, detail.num_rows)]
    ]
    return table(["module", "kernels", "time", "share"], rows, caption="By module")
