"""Two forecasts compared as text: what makes them hard to compare, then figures and reasons."""

from __future__ import annotations

from neusight.integrations.check.comparing.pair import Pair
from neusight.integrations.check.outputs.report_text import figure_texts
from neusight.integrations.check.outputs.terminal import figure_lines, reasons
from neusight.predictors.terminal_text import printable

#: Ops that are named where their prices differ.
_OPS_SHOWN = 3


def pair_lines(pair: Pair) -> list[str]:
    """The comparison for a terminal."""
    heading = [*pair.warnings]
    for letter, side in (("A", pair.first), ("B", pair.second)):
        heading.append(f"{letter}  {side.title}: {side.about}")
        heading += [f"     {note}" for note in side.notes]
    return [
        *(printable(line) for line in (*heading, _verdict(pair), "")),
        *figure_lines(pair.judgement, ("A", "B"), is_judged=False),
        *(printable(line) for line in _price_lines(pair)),
        *reasons(pair.judgement, pair.second.folder),
    ]


def pair_markdown(pair: Pair) -> str:
    """The same for a pull request."""
    text = "\n".join(pair_lines(pair))
    return f"## Two forecasts compared\n\n````text\n{text}\n````\n"


def _verdict(pair: Pair) -> str:
    """The step, or the sample where the batch is another one."""
    latency = next(change for change in pair.judgement.metrics if change.name == "step_latency_us")
    batch = pair.judgement.batch
    was, now = figure_texts(latency)
    one = latency.per or "step"
    reported = f"{was} → {now} a {one}"
    share = latency.one_after / latency.one_before - 1
    if latency.one_after == latency.one_before:
        reported += ", the same"
    else:
        reported += f": B takes {abs(share):.1%} {'less' if share < 0 else 'more'} time"
    return reported if batch is None else f"{batch.words}, so compared per {batch.unit}: {reported}"


def _price_lines(pair: Pair) -> list[str]:
    changes = pair.judgement.price_changes
    named = ", ".join(f"{op} {share:+.1%}" for op, share in changes[:_OPS_SHOWN])
    more = f" and {len(changes) - _OPS_SHOWN} more" if len(changes) > _OPS_SHOWN else ""
    return [f"  called as before, priced otherwise: {named}{more}"] if changes else []
