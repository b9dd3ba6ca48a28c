"""What HolisticTraceAnalysis says of the traces in a folder, as JSON; for a Python that has it.

HTA needs pandas before 3, which neusight's own tests need not have: test_hta.py runs this file.
"""

import contextlib
import json
import os
import sys
import warnings
from typing import Any

os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"  # else durations are cut to whole microseconds


def figures(folder: str) -> dict[str, Any]:
    """A row or more for each analysis; times in microseconds."""
    from hta.trace_analysis import TraceAnalysis

    analysis = TraceAnalysis(trace_dir=folder)
    by_kind, _ = analysis.get_gpu_kernel_breakdown(visualize=False)
    graph, found = analysis.critical_path_analysis(rank=0, annotation="ProfilerStep", instance_id=1)
    return {
        "temporal": rows(analysis.get_temporal_breakdown(visualize=False)),
        "kernels": rows(by_kind),
        "idle": rows(analysis.get_idle_time_breakdown(ranks=[0], visualize=False)[0]),
        "queue": rows(analysis.get_queue_length_time_series(ranks=[0])[0].reset_index()),
        "launches": rows(analysis.get_cuda_kernel_launch_stats(ranks=[0], visualize=False)[0]),
        "overlap": rows(analysis.get_comm_comp_overlap(visualize=False)),
        "annotations": rows(analysis.get_gpu_user_annotation_breakdown(visualize=False)),
        "bandwidth": rows(analysis.get_memory_bw_time_series(ranks=[0]).get(0)),
        "ranks": sorted(analysis.t.traces),
        "stragglers": stragglers(analysis),
        "critical_path_found": bool(found),
        "critical_path": dict(graph.summary()) if found else {},
    }


def stragglers(analysis: Any) -> list[int]:
    """The rank that comes last to its collectives; none of a rank alone.

    HTA 0.5 knows the names of NCCL before 2.19 only, in real profiles too.
    """
    if len(analysis.t.traces) == 1:
        return []
    names = analysis.t.symbol_table.sym_table
    for number, name in enumerate(names):
        if name.startswith("ncclDevKernel"):
            names[number] = name.replace("ncclDevKernel", "ncclKernel", 1)
            analysis.t.symbol_table.sym_index[names[number]] = number
    return [int(rank) for rank in analysis.get_potential_stragglers(num_candidates=1)]


def rows(frame: Any) -> list[dict[str, Any]]:
    """A data frame as plain rows."""
    if frame is None:
        return []
    loaded: list[dict[str, Any]] = json.loads(frame.to_json(orient="records"))
    return loaded


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with contextlib.redirect_stdout(sys.stderr):
        found = figures(sys.argv[1])
    print(json.dumps(found))
