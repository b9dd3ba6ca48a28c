"""The figures that a baseline keeps: which are judged, and in which unit."""

from __future__ import annotations

from typing import NamedTuple


class Metric(NamedTuple):
    """A figure by its name, what it is called, and its unit: "us", "bytes", "flops", "tokens/s",
    "samples/s" or "" (a count). Less is better, but of what is so much a second.

    `of_one` is its name per sample, by which it is judged where the batch is another one.
    """

    name: str
    title: str
    unit: str
    of_one: str = ""


#: What is judged, in the order of reports. Times are microseconds of the steady step.
METRICS = (
    Metric("step_latency_us", "step latency", "us", of_one="latency"),
    Metric("gpu_busy_us", "GPU busy time", "us", of_one="GPU busy time"),
    Metric("peak_memory_bytes", "peak memory", "bytes"),
    Metric("peak_reserved_bytes", "peak reserved memory", "bytes"),
    Metric("num_kernels", "kernels", ""),
    Metric("num_synchronizations", "synchronizations", ""),
    Metric("flops", "FLOPs", "flops", of_one="FLOPs"),
    Metric("communication_bytes", "communication", "bytes"),
)

#: What is kept beside that where the batch of a step, of all ranks, is known; not judged.
INTAKE_METRICS = (
    Metric("samples_per_step", "samples a step", ""),
    Metric("tokens_per_step", "tokens a step", ""),
)

#: Kept likewise, and judged: the first of them that the baseline and the program both have.
RATE_METRICS = (
    Metric("tokens_per_second", "throughput", "tokens/s"),
    Metric("samples_per_second", "throughput", "samples/s"),
)

#: Kept, and judged, of a model that generates: the time to the first token of the recorded prompt,
#: and to each more at the last recorded context.
PHASE_METRICS = (
    Metric("ttft_us", "time to first token", "us"),
    Metric("tpot_us", "time per output token", "us"),
)

#: What is kept beside that where torch.compile compiled something; the first two are judged.
COMPILED_METRICS = (
    Metric("num_graph_breaks", "graph breaks", ""),
    Metric("num_recompiles", "recompiles", ""),
    Metric("num_graphs", "compiled graphs", ""),
    Metric("num_fused_kernels", "fused kernels", ""),
)

#: All of them, in the order of the file; all but the first `METRICS` may be missing.
KEPT_METRICS = (
    *METRICS,
    *PHASE_METRICS,
    *INTAKE_METRICS,
    *RATE_METRICS,
    *COMPILED_METRICS,
)
