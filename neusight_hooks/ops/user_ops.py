"""What a script's own functions say of its ops, as values that another process can take over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from neusight.ops.registry import Formula, formulas, map_op, register_op, unregister_op
from neusight.predictors.kernel import Kernel
from neusight.recording.recording import MathMode, OpCall, OpSignature, Recording


@dataclass(frozen=True)
class UserOps:
    """The ops that a script registered by name, and the kernels of each of their calls."""

    names: tuple[str, ...] = ()
    kernels: Mapping[tuple[OpSignature, MathMode], tuple[Kernel, ...]] = field(default_factory=dict)


def user_ops_of(recording: Recording, before: Mapping[str, Formula]) -> UserOps:
    """What the recorded program registered since `before`, said of every call in the recording."""
    own = {name: formula for name, formula in formulas().items() if before.get(name) != formula}
    if not own:
        return UserOps()
    calls = {
        (entry.signature, entry.math)
        for step in recording.steps
        for entry in step.entries
        if isinstance(entry, OpCall)
    }
    mapped = {call: map_op(*call) for call in calls if _is_of(call[0], own)}
    return UserOps(
        tuple(own), {call: found.kernels for call, found in mapped.items() if found.is_mapped}
    )


def register_user_ops(ops: UserOps) -> None:
    """Registers in this process what another one's functions said. A call that is not among them,
    such as one of another size that advice tries out, counts as unmapped."""

    def kernels_of(signature: OpSignature, math: MathMode) -> tuple[Kernel, ...]:
        found = ops.kernels.get((signature, math))
        if found is None:
            raise LookupError("the script's own function was not asked for these shapes")
        return found

    known = formulas()
    for name in ops.names:
        if name in known:
            unregister_op(name)
        register_op(name)(kernels_of)


def _is_of(signature: OpSignature, names: Mapping[str, Formula]) -> bool:
    """Whether one of the names stands for the op, in place or not, by overload or without."""
    bare = {signature.op, signature.op.removesuffix("_")}
    return any(name in names for op in bare for name in (op, f"{op}.{signature.overload}"))
