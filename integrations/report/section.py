"""One forecast on a page: verdict, changes, timeline, modules, memory, where the time goes."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from neusight.advice.advice import Advice
from neusight.inference.phases import phase_figures
from neusight.integrations.report.memory import MemoryReport
from neusight.integrations.report.page.changes import advice_table, compiled_tables, remedy_table
from neusight.integrations.report.page.html_tables import Detail
from neusight.integrations.report.page.lanes import lanes_of, operator_lanes
from neusight.integrations.report.page.memory_view import view_of_memory
from neusight.integrations.report.page.modules import view_of_modules
from neusight.integrations.report.page.ranks_view import view_of_ranks
from neusight.integrations.report.page.time_tables import view_of_times
from neusight.integrations.report.page.timeline_view import timeline_text, view_of_timeline
from neusight.output.summary import headline, verdict_text
from neusight.predictors.formatting import amount_text, bytes_text, counted, time_text
from neusight.timeline.spans import StepSpan
from neusight.timeline.steady import steady_step_of

if TYPE_CHECKING:
    from neusight.forecast import Forecast


def section_of(
    forecast: Forecast, number: int, label: str, advice: Sequence[Advice], detail: Detail
) -> list[str]:
    """The section of a page on one forecast. Of ranks side by side the timeline is that of the
    slowest, whose step is theirs, and the memory that of the one that needs most."""
    parts = [
        f"<section><h2>{escape(label)}</h2>",
        _headline(forecast),
        _cards(forecast) if forecast.verdict.num_kernels and not forecast.failure else "",
        _notes(forecast),
    ]
    if not forecast.needs_most.memory.fits and not forecast.failure:
        remedies = MemoryReport(forecast.needs_most).advice
        parts += ["<h3>What would make it fit</h3>", remedy_table(remedies)]
    if advice and forecast.verdict.num_kernels:
        parts += ["<h3>What to change</h3>", advice_table(advice)]
    if forecast.ranks and not forecast.failure:
        view = view_of_ranks(forecast.ranks, f"ranks-{number}", detail)
        parts += [f"<h3>{len(forecast.ranks)} ranks side by side</h3>", view]
    last, most = forecast.slowest, forecast.needs_most
    step = steady_step_of(last.timeline)
    if step is not None:
        parts += _of_step(last, step, number, f"{label}{_rank_label(forecast, last)}", detail)
    if most.memory.events:
        parts += [f"<h3>Memory{_rank_label(forecast, most)}</h3>", view_of_memory(most, detail)]
    if forecast.compiled is not None:
        parts += ["<h3>What torch.compile made of it</h3>", compiled_tables(forecast.compiled)]
    if step is not None and last.verdict.num_kernels:
        parts += ["<h3>Where the time goes</h3>", view_of_times(last, step, detail)]
    return [*parts, "</section>"]


def _rank_label(forecast: Forecast, rank: Forecast) -> str:
    return f", rank {rank.recording.rank}" if forecast.ranks else ""


def _of_step(
    forecast: Forecast, step: StepSpan, number: int, label: str, detail: Detail
) -> list[str]:
    """Timeline and modules; nothing to draw where nothing ran."""
    drawn = lanes_of(forecast.timeline, step)
    if not any(lane.spans for lane in drawn.lanes[1:]):
        return []
    drawn = drawn._replace(lanes=(*drawn.lanes, *operator_lanes(forecast.timeline, step)))
    latency = time_text(forecast.verdict.step_latency.median)
    parts = [
        "<h3>Timeline of the steady step</h3>",
        view_of_timeline(
            drawn,
            f"timeline-{number}",
            label=f"Timeline of the steady step on {label}, {latency}",
            words=timeline_text(drawn),
            most=detail.num_spans,
        ),
    ]
    if forecast.verdict.num_kernels:
        parts += ["<h3>Modules</h3>", view_of_modules(forecast, step, f"modules-{number}", detail)]
    return parts


# -- the verdict ---------------------------------------------------------------------------------


def _headline(forecast: Forecast) -> str:
    if forecast.failure:
        first, *_ = forecast.summary().splitlines()
        reported = first.removeprefix(f"{forecast.gpu.name}: ")
        return (
            f'<p><span class="bad">{escape(reported)}</span>: {escape(forecast.failure)}</p>'
            "<p>The figures are of what was recorded until then.</p>"
        )
    if forecast.verdict.num_kernels == 0:
        ops = counted(forecast.recording.num_ops, "op")
        why = (
            f"{ops} recorded on the GPU, and none in the steady step launches a kernel."
            if forecast.recording.num_ops
            else "nothing was put on the GPU. Move the model and its data there: model.cuda(), "
            'batch.to("cuda").'
        )
        return f'<p><span class="bad">Nothing to forecast</span>: {why}</p>'
    reported = forecast.memory_verdict
    colour = {"fits": "good", "unknown": "muted"}.get(reported, "bad")
    fits = f'<span class="{colour}">{verdict_text(reported)}</span>'
    return f'<p class="verdict">{fits}, {escape(headline(forecast.verdict))}</p>'


def _cards(forecast: Forecast) -> str:
    """The headline figures, and the others in a line below them."""
    cards = "".join(
        f'<div class="card"><b>{escape(figure)}</b><span>{escape(words)}</span></div>'
        for figure, words in _headline_figures(forecast)
    )
    details = " · ".join(_details(forecast))
    return f'<div class="cards">{cards}</div><p class="muted">{escape(details)}</p>'


def _headline_figures(forecast: Forecast) -> list[tuple[str, str]]:
    verdict, memory, gpu = forecast.verdict, forecast.needs_most.memory, forecast.gpu
    latency, needed = verdict.step_latency, memory.needed_range
    used = memory.peak_reserved + gpu.context_bytes
    rate = verdict.whole_batch.per_second(latency.median)
    ranks = f" on {verdict.replicas.words}" if verdict.replicas.world_size > 1 else ""
    return [
        (
            time_text(latency.median),
            f"a step; 80 % range {time_text(latency.low)} to {time_text(latency.high)}",
        ),
        (
            (f"{rate[0]:,.0f}", f"{rate[1]} a second{ranks}; {verdict.batch.known_by}")
            if rate
            else ("-", "throughput: the batch is not known (--samples, --tokens)")
        ),
        (
            (
                bytes_text(used),
                f"of {bytes_text(gpu.memory_bytes)}: reserved and context; "
                f"{bytes_text(needed.low)} to {bytes_text(needed.high)}",
            )
            if forecast.memory_verdict != "unknown"
            else ("-", f"of {bytes_text(gpu.memory_bytes)}: memory is not known")
        ),
        (f"{verdict.mfu:.1%}", f"MFU, {amount_text(verdict.flops, 'flops')} a step"),
        *phase_figures(forecast.phases),
    ]


def _details(forecast: Forecast) -> list[str]:
    verdict = forecast.verdict
    coverage = ", ".join(f"{s:.0%} {origin}" for origin, s in verdict.coverage.items() if s)
    waits = "host waits" if verdict.num_synchronizations != 1 else "host wait"
    return [
        f"{verdict.bound}-bound, GPU busy {time_text(verdict.gpu_busy_us)} a step",
        f"{counted(verdict.num_kernels, 'kernel')} of {counted(verdict.num_ops, 'op')}",
        f"{verdict.num_synchronizations:,} {waits} for the GPU",
        f"kernel time priced: {coverage or 'none'}",
    ]


def _notes(forecast: Forecast) -> str:
    notes = list(forecast.warnings)
    if forecast.unmapped:
        notes.append(f"unmapped, priced by bytes over bandwidth: {', '.join(forecast.unmapped)}")
    failure = forecast.needs_most.memory.out_of_memory
    if failure is not None:
        notes.append(
            f"out of memory in step {failure.step} at {failure.op} in "
            f"{failure.module or '(no module)'}: {bytes_text(failure.num_bytes)} more, with "
            f"{bytes_text(failure.allocated)} allocated"
        )
    if not notes:
        return ""
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f'<ul class="notes">{items}</ul>'
