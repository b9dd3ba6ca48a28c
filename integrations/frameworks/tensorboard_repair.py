"""A TensorBoard entry point that lets torch-tb-profiler 0.4.3 read traces of today.

The plugin's last release knows neither `cuda_runtime`, `fwdbwd` nor most annotations: operators get
no device time, modules no backward, steps count twice, in real profiles as in forecasts. While a
trace is loaded, this maps them to what the plugin knows; files stay as they are. Its pages show
without a network, too.

TensorBoard imports entry points before it starts any plugin, so importing this module is what
repairs; `Repair` itself shows nothing.
"""

from __future__ import annotations

import math
import queue
import threading
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from copy import copy
from typing import Any

from tensorboard.plugins import base_plugin

from neusight.integrations.frameworks.tensorboard_pages import fix_pages
from neusight.integrations.frameworks.tensorboard_ranks import calls_of, fix_ranks, steps_of

Event = dict[str, Any]

#: Categories of Kineto today, and what torch-tb-profiler calls them.
_CATEGORIES = {
    "cuda_runtime": "runtime",
    "cuda_driver": "runtime",
    "hip_runtime": "runtime",
    "fwdbwd": "forward_backward",
}
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
#: Annotations that the plugin knows by itself; it takes all others only as operators.
_KNOWN_ANNOTATIONS = ("ProfilerStep#", "nccl:", "gloo:")
#: NCCL's annotations since torch 1.13, of which the plugin knows but five.
_NCCL_ANNOTATIONS = tuple(
    f"nccl:{name}"
    for name in (
        "_all_gather_base", "_reduce_scatter_base", "all_gather_into_tensor_coalesced",
        "reduce_scatter_tensor_coalesced", "all_reduce_coalesced", "allreduce_coalesced",
        "all_to_all", "all_to_allv", "gather", "scatter", "send", "recv", "recvAnySource",
        "coalesced", "all_reduce_barrier",
    )
)  # fmt: skip
#: Those that name their two ranks, too: "nccl:send 0->1".
_NCCL_TRANSFERS = ("nccl:send ", "nccl:recv ")
#: Operators of today whose kernels may use tensor cores; the plugin warns of each call of others.
_TENSOR_CORE_OPERATORS = (
    "aten::convolution_backward", "aten::_cudnn_rnn", "aten::_cudnn_rnn_backward",
    "aten::_scaled_mm", "aten::_grouped_mm",
)  # fmt: skip
#: In the names of kernels that use them: cuBLAS's since Hopper, cuDNN's convolutions.
_TENSOR_CORE_KERNELS = ("nvjet", "tensor16x8x")
#: The operator that NCCL's kernels are tied to, instead of the annotation in it.
_PARAMETERS = "record_param_comms"
#: Ends that pass the parent's by so many steps of a double are rounding, not overlap.
_ROUNDING_STEPS = 4

_REPAIRED = "_neusight_repaired"


def mapped_events(events: Iterable[Event]) -> list[Event]:
    """The events as the plugin expects them; those given stay as they are.

    Categories are mapped; annotations on the GPU, which it would take for steps of their own, are
    left out; launches and kernels have the id of an operator that is there; intervals nest.
    """
    mapped = []
    for event in events:
        category = event.get("cat")
        if category == "gpu_user_annotation":
            continue
        if category in _CATEGORIES:
            event = {**event, "cat": _CATEGORIES[category]}
        elif category == "user_annotation" and not event.get("name", "").startswith(
            _KNOWN_ANNOTATIONS
        ):
            event = {**event, "cat": "cpu_op"}
        elif category == "user_annotation" and event["name"].startswith(_NCCL_TRANSFERS):
            event = {**event, "name": event["name"].partition(" ")[0]}
        elif event.get("ph") == "X":
            event = {**event}
        mapped.append(event)
    _tie_launches(mapped)
    _nest(mapped)
    return mapped


def _arguments(event: Event) -> dict[str, Any]:
    return event.get("args") or {}


# -- which operator launched what


class _Owners:
    """The annotations and operators of the host, by id, and by thread and time."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._lanes: dict[Any, list[Event]] = defaultdict(list)
        self.by_id: dict[Any, Event] = {}
        for event in events:
            if event.get("ph") == "X" and event.get("cat") in ("cpu_op", "user_annotation"):
                self._lanes[event["pid"], event["tid"]].append(event)
                number = _arguments(event).get("External id")
                if number is not None:
                    self.by_id[number] = event
        self._starts = {}
        for lane, own in self._lanes.items():
            own.sort(key=lambda event: (event["ts"], -event["dur"]))
            self._starts[lane] = [event["ts"] for event in own]
        self._outer = {
            id(event): outer for own in self._lanes.values() for event, outer in _outer(own)
        }

    def around(self, event: Event) -> Event | None:
        """The innermost one on the event's thread in which it begins."""
        lane = event["pid"], event["tid"]
        index = bisect_right(self._starts.get(lane, []), event["ts"]) - 1
        found = self._lanes[lane][index] if index >= 0 else None
        while found is not None and found["ts"] + found["dur"] < event["ts"]:
            found = self._outer[id(found)]
        return found

    def of_collective(self, launch: Event) -> Event | None:
        """NCCL's annotation around a launch, if there is one."""
        found = self.around(launch)
        while found is not None and not found["name"].startswith("nccl:"):
            found = self._outer[id(found)]
        return found


def _outer(lane: list[Event]) -> Iterable[tuple[Event, Event | None]]:
    stack: list[Event] = []
    for event in lane:
        while stack and stack[-1]["ts"] + stack[-1]["dur"] <= event["ts"]:
            stack.pop()
        yield event, stack[-1] if stack else None
        stack.append(event)


def _tie_launches(events: list[Event]) -> None:
    """Gives each launch, and the kernel of it, the id of the operator around it.

    In real profiles many have none, one of their own, or that of NCCL's parameters, and the plugin
    finds operators by that id alone. Kernels know best: they were tied while the program ran.
    """
    owners = _Owners(events)
    kernels: dict[Any, list[Event]] = defaultdict(list)
    for event in events:
        if event.get("ph") == "X" and event.get("cat") in _DEVICE:
            kernels[_arguments(event).get("correlation")].append(event)
    for event in events:
        if event.get("cat") != "runtime":
            continue
        launched = kernels.get(_arguments(event).get("correlation"), [])
        numbers = [_arguments(item).get("External id") for item in (*launched, event)]
        owner = next((owners.by_id[number] for number in numbers if number in owners.by_id), None)
        if owner is None:
            owner = owners.around(event)
        elif owner["name"] == _PARAMETERS:
            owner = owners.of_collective(event) or owner
        # The plugin hangs calls of id 0 on the root of the thread.
        number = _arguments(owner).get("External id", 0) if owner else 0
        for tied in (event, *launched):
            tied["args"] = {**_arguments(tied), "External id": number}


# -- intervals that nest


def _nest(events: list[Event]) -> None:
    """Cuts what sticks out of its parent: the plugin drops it, and with it a module's whole trace.

    Times of real profiles are so large that a double rounds them, in traces of torch before 2.4 to
    a quarter of a microsecond.
    """
    lanes: dict[Any, list[Event]] = defaultdict(list)
    for event in events:
        if event.get("ph") == "X" and _is_in_tree(event):
            lanes[event["pid"], event["tid"]].append(event)
    for lane in lanes.values():
        lane.sort(key=lambda event: (event["ts"], -event["dur"]))
        stack: list[Event] = []
        for event in lane:
            start = event["ts"]
            while stack and _end(stack[-1]) <= start:
                stack.pop()
            while stack and _end(event) > _end(stack[-1]):
                if _end(stack[-1]) - start > _ROUNDING_STEPS * math.ulp(start):
                    event["dur"] = _end(stack[-1]) - start
                    break
                stack[-1]["dur"] = start - stack[-1]["ts"]  # a sibling whose end was rounded up
                stack.pop()
            stack.append(event)


def _is_in_tree(event: Event) -> bool:
    """Whether the plugin nests it: operators, annotations and modules, no other Python function."""
    if event.get("cat") == "python_function":
        return _arguments(event).get("Python module id") is not None
    return event.get("cat") in ("cpu_op", "user_annotation")


def _end(event: Event) -> float:
    end: float = event["ts"] + event["dur"]
    return end


# -- the plugin


def repair() -> None:
    """Wraps the plugin's parser; once, however often it is called, and not without the plugin."""
    try:
        from torch_tb_profiler import plugin
        from torch_tb_profiler.profiler import (
            data,
            loader,
            memory_parser,
            op_tree,
            tensor_core,
            trace,
        )
        from torch_tb_profiler.profiler.diffrun import contract
    except ImportError:
        return
    profile = data.RunProfileData
    if getattr(profile, _REPAIRED, False):
        return
    original = profile.__init__

    def init(self: Any, worker: str, span: str, trace_json: dict[str, Any]) -> None:
        events = mapped_events(trace_json["traceEvents"])
        original(self, worker, span, {**trace_json, "traceEvents": events})
        self.neusight_calls, self.neusight_steps = calls_of(events), steps_of(events)

    profile.__init__ = init
    setattr(profile, _REPAIRED, True)
    _fix_trees(op_tree.OpTreeBuilder)
    _fix_memory(memory_parser.MemoryParser)
    fix_ranks(data, loader)
    trace.NcclOpNameSet.extend(_NCCL_ANNOTATIONS)
    tensor_core.TC_OP_Allowlist.allowlist.extend(_TENSOR_CORE_OPERATORS)
    tensor_core.TC_Allowlist.allowlist.extend(_TENSOR_CORE_KERNELS)
    _fix_comparison(contract.DiffStats)
    fix_pages(plugin.TorchProfilerPlugin)
    # The plugin loads in processes that would not be repaired; threads of this one are.
    loader.Process = threading.Thread
    loader.Queue = queue.Queue


def _fix_comparison(stats: Any) -> None:
    """The page of Diff pairs the operators of both sides by their places in its lists, whatever
    their names: here both sides have the same names in the same order."""
    to_dict = stats.to_dict

    def paired(self: Any) -> dict[str, Any]:
        found: dict[str, Any] = to_dict(self)
        sides = [found["left"], found["right"]]
        rows = [{row["name"]: row for row in side["aggs"]} for side in sides]
        names = dict.fromkeys(name for known in rows for name in known)
        for side, known, others in zip(sides, rows, reversed(rows), strict=True):
            side["aggs"] = [
                known.get(name) or {**dict.fromkeys(others[name], 0), "name": name}
                for name in names
            ]
        return found

    stats.to_dict = paired


class _Trees(dict[int, Any]):
    """The plugin's trees by thread; `whole` are those before backward operators were moved."""

    def __init__(self, trees: dict[int, Any], whole: dict[int, Any]) -> None:
        super().__init__(trees)
        self.whole = whole


def _fix_memory(parser: Any) -> None:
    """The plugin finds the operator of an allocation in the tree of its thread, where no backward
    operator is left once modules are known."""
    find = parser.find_memory_nodes

    def find_in_whole_trees(self: Any, trees: dict[int, Any]) -> Any:
        return find(self, {**trees, **getattr(trees, "whole", {})})

    parser.find_memory_nodes = find_in_whole_trees


def _fix_trees(builder: Any) -> None:
    """Where modules are known, the plugin moves backward operators below those of their forward."""
    build_module, modules_of, build_tree = (
        builder._build_backward_module,
        builder._get_modules,
        builder.build_tree,
    )

    def build_and_drop(node: Any, parent: Any, backward_of: Any, result: list[Any]) -> None:
        """A module in whose forward nothing is differentiated has no backward; the plugin makes one
        for it that has no time, and fails when it sorts by time."""
        build_module(node, parent, backward_of, result)
        made = result if parent is None else parent.children
        if made and made[-1].start_time is None:
            made.pop()

    def modules_and_backward(self: Any) -> Any:
        roots = dict(self.tid2tree)
        whole = {thread: copy(root) for thread, root in roots.items()}
        for thread, root in roots.items():
            whole[thread].children = list(root.children)
        modules, backward = modules_of(self)
        self.neusight_moved = (roots, whole, backward or [])
        return modules, backward

    def build_and_keep(self: Any, *args: Any, **named: Any) -> Any:
        """Backward operators of no module (a loss, say) go back where they were; the plugin loses
        them, and the time of their kernels."""
        self.neusight_moved = ({}, {}, [])
        trees = build_tree(self, *args, **named)
        roots, whole, backward = self.neusight_moved
        kept: set[int] = set()
        waiting = list(trees.values())
        while waiting:
            node = waiting.pop()
            kept.add(id(node))
            waiting += node.children
        for node in backward:
            if id(node) not in kept:
                thread = int(node.tid)
                trees.setdefault(thread, roots[thread]).children.append(node)
        for root in trees.values():
            root.children.sort(key=lambda node: (node.start_time, -node.end_time))
        return _Trees(trees, whole)

    builder._build_backward_module = staticmethod(build_and_drop)
    builder._get_modules = modules_and_backward
    builder.build_tree = build_and_keep


class Repair(base_plugin.TBLoader):  # type: ignore[misc]  # tensorboard has no annotations
    """What TensorBoard loads; it adds no plugin."""

    def load(self, context: Any) -> None:
        """Nothing to show."""
        return


repair()
