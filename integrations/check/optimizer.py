"""Which optimizer a step has and how it updates its parameters; and how that changed."""

from __future__ import annotations

from collections.abc import Iterable

from neusight.integrations.check.baseline import Case, OpRow
from neusight.recording.recording import Entry, Mark, stepped_optimizer

#: What `torch.optim` launches with fused=True, and with foreach=True (the default on CUDA).
_FUSED, _FOREACH = "aten::_fused_", "aten::_foreach_"

_CHANGES = {
    ("fused", "foreach"): "fused=True was removed",
    ("fused", "single"): "fused=True was removed, and foreach is off too",
    ("foreach", "fused"): "fused=True was added",
    ("single", "fused"): "fused=True was added",
    ("foreach", "single"): "its parameters are updated one by one (foreach=False or fused=False)",
    ("single", "foreach"): "its parameters are updated together (foreach, the default on CUDA)",
}


def optimizer_names(entries: Iterable[Entry]) -> str:
    """The classes of the optimizers that step there, in order; "" where there is none.

    >>> optimizer_names([Mark("annotation_begin", "Optimizer.step#AdamW.step")])
    'AdamW'
    """
    names = (stepped_optimizer(entry.name) for entry in entries if isinstance(entry, Mark))
    return ", ".join(dict.fromkeys(filter(None, names)))


def optimizer_change(before: Case, now: Case) -> str:
    """In words; "" where nothing changed that is known. Another learning rate is none."""
    reported = []
    if before.optimizer != now.optimizer and before.optimizer and now.optimizer:
        reported.append(f"it was {before.optimizer} before")
    way = _CHANGES.get((_way_of(before.ops), _way_of(now.ops)))
    if way is not None:
        reported.append(way)
    name = f"the optimizer, {now.optimizer}" if now.optimizer else "the optimizer"
    return f"{name}: {'; '.join(reported)}" if reported else ""


def _way_of(rows: Iterable[OpRow]) -> str:
    """How parameters are updated: "fused", "foreach" or "single"; "" without an optimizer."""
    ops = {row.op for row in rows if row.phase == "optimizer" and row.num_kernels}
    if any(op.startswith(_FUSED) for op in ops):
        return "fused"
    if any(op.startswith(_FOREACH) for op in ops):
        return "foreach"
    return "single" if any(op.startswith("aten::") for op in ops) else ""
