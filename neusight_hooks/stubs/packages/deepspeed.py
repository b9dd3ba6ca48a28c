"""DeepSpeed's fused Adam; its engine is not forecast."""

from __future__ import annotations

from typing import Any, NoReturn

from neusight.predictors.errors import UnmappedOpError
from neusight.recording.call_stack import call_site
from neusight.stubs.shared.fused_optimizers import DeepSpeedAdam
from neusight.stubs.stub_ops import names


def initialize(*args: Any, **kwargs: Any) -> NoReturn:
    """Refuses, and says what is forecast instead."""
    raise UnmappedOpError(
        f"deepspeed.initialize at {call_site()} has no stub in a forecast, since deepspeed "
        "cannot be imported; FSDP, DDP and ZeroRedundancyOptimizer of torch are forecast."
    )


_ADAM = names(DeepSpeedAdam)

MODULES: dict[str, dict[str, Any]] = {
    "deepspeed": names(initialize),
    "deepspeed.ops": {},
    "deepspeed.ops.adam": _ADAM,
    "deepspeed.ops.adam.fused_adam": _ADAM,
}
