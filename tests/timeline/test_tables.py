"""When the ops and kernels of small programs run, as tables; NEUSIGHT_UPDATE_GOLDEN=1 rewrites
them."""

from __future__ import annotations

from collections import defaultdict

from small_programs import PROGRAMS, recorded

from neusight.forecast import host_profile
from neusight.predictors.gpu import GPU, find_gpu
from neusight.predictors.tiled import Tiled
from neusight.timeline.operators.tree import with_operators
from neusight.timeline.pricing import Pricer
from neusight.timeline.ranks.contention import schedule_beside
from neusight.timeline.spans import Timeline
from neusight.timeline.steady import bound_of, critical_path_of, kernels_of, steady_step_of
from places import require_golden

#: Machines by GPU and host: the host sets the pace, the GPU does, and what a profiler adds.
MACHINES = (("H100", "plain"), ("T4", "cloud,ghz=2.4,launch=9"), ("A100", "profiled"))


def test_programs_take_as_long_as_the_golden_table_has_them() -> None:
    """Of each step what it takes, what the GPU and the host are busy and what bounds it; of each
    operator and kernel how often it runs, the sum of the starts and that of the durations."""
    lines = []
    for name in PROGRAMS:
        for gpu, host in MACHINES if name == "training" else MACHINES[:2]:
            timeline = timeline_of(name, find_gpu(gpu), host)
            lines += [f"{name} on {gpu}, {host}", *steps(timeline), *spans(timeline)]

    require_golden("timelines.txt", lines)


def timeline_of(name: str, gpu: GPU, host: str) -> Timeline:
    """Also where the program would ask that GPU for another path."""
    pricer = Pricer(gpu, Tiled())
    recording = recorded(name).recording
    pricer.prepare(recording)
    return schedule_beside(recording, pricer, host_profile(host, gpu), gpu)


def steps(timeline: Timeline) -> list[str]:
    steady = steady_step_of(timeline)
    path = critical_path_of(kernels_of(steady, timeline)) if steady else []
    return [
        f"  {step.represents} steps {step.latency_ns} {step.gpu_busy_ns} {step.host_ns} "
        f"{step.communication_ns} {bound_of(step, timeline)}"
        for step in timeline.steps
    ] + [f"  critical path {len(path)} {sum(kernel.duration_ns for kernel in path)}"]


def spans(timeline: Timeline) -> list[str]:
    """The operators of the steady step, else of the last."""
    sums: defaultdict[tuple[object, ...], list[int]] = defaultdict(lambda: [0, 0, 0])
    shown = with_operators(timeline, [steady_step_of(timeline) or timeline.steps[-1]])
    rows = [((span.kind, span.name, span.thread), span) for span in shown.host]
    rows += [((kernel.kernel.name, kernel.stream), kernel) for kernel in shown.kernels]  # type: ignore[misc]
    for key, span in rows:
        row = sums[key]
        row[0] += 1
        row[1] += span.start_ns
        row[2] += span.duration_ns
    return [f"    {' '.join(map(str, (*key, *row)))}" for key, row in sums.items()]
