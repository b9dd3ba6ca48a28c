"""What lets torch-tb-profiler 0.4.3 lay ranks beside each other that communicate unequally.

To separate transfer from waiting, it takes the k-th call of each rank for the same one: stages of a
pipeline have another number of calls each, and groups of their own, so it shows nothing. Here calls
are paired off by their group and its count of calls, or by who sends to whom. It also takes a step
to last until its kernels have run, and so gives it the calls of later steps, which the host made
meanwhile: here each step has its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Event = dict[str, Any]

#: What ranks must have in common to meet in a call: a group, or the two ends of a transfer.
Meeting = tuple[str, ...]
#: The meetings of each annotation of NCCL, by its external id: of a batch one for each transfer.
Calls = dict[Any, list[Meeting]]

#: Begin, end and name of each step of the host.
Steps = list[tuple[float, float, str]]

_STEP = "ProfilerStep#"
_ANNOTATIONS = ("nccl:", "gloo:")
_PARAMETERS = "record_param_comms"
#: Of profiles that do not note groups: calls are paired off in their order.
_UNKNOWN: Meeting = ("",)


def calls_of(events: Iterable[Event]) -> Calls:
    """Which meetings each annotated call takes part in, by its kernel or what is recorded
    within it."""
    spans: dict[Any, list[Event]] = defaultdict(list)
    annotated: dict[Any, list[Event]] = defaultdict(list)
    calls: Calls = {}
    for event in events:
        args = event.get("args") or {}
        if event.get("ph") != "X":
            continue
        if event.get("cat") == "user_annotation" and event["name"].startswith(_ANNOTATIONS):
            spans[event["pid"], event["tid"]].append(event)
        elif event["name"] == _PARAMETERS:
            annotated[event["pid"], event["tid"]].append(event)
        elif event.get("cat") == "kernel" and "Process Group Ranks" in args:
            calls[args.get("External id")] = [_meeting(args)]
    for lane, own in spans.items():
        for span, parts in _within(own, annotated[lane]):
            found = [_meeting(part["args"]) for part in parts if "Src Rank" in part["args"]]
            if found:
                calls[(span.get("args") or {}).get("External id")] = found
    return calls


def _meeting(args: Mapping[str, Any]) -> Meeting:
    if "Src Rank" in args:
        ends = (str(args["Src Rank"]), str(args["Dst Rank"]))
        return (str(args.get("Process Group Name")), *ends)
    return (str(args.get("Process Group Name")), str(args["Process Group Ranks"]))


def _within(spans: list[Event], annotated: list[Event]) -> Iterable[tuple[Event, list[Event]]]:
    """Each span with what lies in it, of one thread."""
    annotated.sort(key=lambda event: float(event["ts"]))
    position = 0
    for span in sorted(spans, key=lambda event: float(event["ts"])):
        end = span["ts"] + span["dur"]
        while position < len(annotated) and annotated[position]["ts"] < span["ts"]:
            position += 1
        first = position
        while position < len(annotated) and annotated[position]["ts"] < end:
            position += 1
        yield span, annotated[first:position]


def steps_of(events: Iterable[Event]) -> Steps:
    """The steps of the host, in order."""
    return sorted(
        (event["ts"], event["ts"] + event["dur"], event["name"].removeprefix(_STEP))
        for event in events
        if event.get("ph") == "X"
        and event.get("cat") == "user_annotation"
        and event["name"].startswith(_STEP)
    )


def set_steps(nodes: Iterable[Any], steps: Steps, shown: Sequence[str]) -> None:
    """Gives each call to the step in which the host makes it, of those that are shown."""
    starts = [begin for begin, _, _ in steps]
    for node in nodes:
        position = bisect_right(starts, node.start_time) - 1
        if position < 0:
            continue
        _, end, name = steps[position]
        if node.start_time < end and name in shown:
            node.step_name = name


def set_transfer_times(ranks: Sequence[tuple[Sequence[Any], Calls]]) -> None:
    """Says of each call of each rank which part of it is transfer: no more than the shortest of
    those who meet in it took, at its end. A rank is its communication nodes and its calls."""
    meetings: dict[tuple[Meeting, int], list[Any]] = defaultdict(list)
    own: list[tuple[Any, list[tuple[Meeting, int]]]] = []
    for nodes, calls in ranks:
        counts: Counter[Meeting] = Counter()
        for node in nodes:
            keys: list[tuple[Meeting, int]] = []
            for meeting in calls.get(node.external_id, [_UNKNOWN]):
                keys.append((meeting, counts[meeting]))
                counts[meeting] += 1
                meetings[keys[-1]].append(node)
            own.append((node, keys))
    for node, keys in own:
        partners = [partner for key in keys for partner in meetings[key]]
        for index, (begin, end) in enumerate(node.kernel_ranges):
            from_end = index - len(node.kernel_ranges)
            shortest = min(
                (_length(partner, from_end, end - begin) for partner in partners),
                default=end - begin,
            )
            node.real_time_ranges.append((end - shortest, end))


def _length(node: Any, from_end: int, otherwise: float) -> float:
    """How long a range of a call is, counted from its last, which is NCCL's kernel."""
    if len(node.kernel_ranges) < -from_end:
        return otherwise
    begin, end = node.kernel_ranges[from_end]
    length: float = end - begin
    return length


def fix_ranks(data: Any, loader: Any) -> None:
    """Puts this in the place of the plugin's own pairing."""
    runs = loader.RunLoader
    parse = data.DistributedRunProfileData.__init__
    process = runs._process_distributed_profiles

    def take_calls_over(self: Any, profile: Any) -> None:
        parse(self, profile)
        self.neusight_calls = getattr(profile, "neusight_calls", {})
        self.neusight_steps = getattr(profile, "neusight_steps", [])

    def pair_and_process(self: Any, profiles: Any, span: Any) -> Any:
        profiles = list(profiles)
        if not all(one.has_communication and one.comm_node_list for one in profiles):
            return process(self, profiles, span)  # which shows nothing of such runs
        set_transfer_times([(one.comm_node_list, one.neusight_calls) for one in profiles])
        for one in profiles:
            set_steps(one.comm_node_list, one.neusight_steps, one.steps_names)
            one.communication_parse()
        return loader.DistributedRunGenerator(profiles, span).generate_run_profile()

    data.DistributedRunProfileData.__init__ = take_calls_over
    runs._process_distributed_profiles = pair_and_process
