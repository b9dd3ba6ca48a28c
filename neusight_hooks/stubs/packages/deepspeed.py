"""DeepSpeed's fused Adam: the whole package where it cannot be imported, and the extension that it
compiles where it can."""

from __future__ import annotations

from typing import Any, NoReturn

from torch import Tensor

from neusight.predictors.errors import UnmappedOpError
from neusight.recording.call_stack import call_site
from neusight.stubs.shared.fused_optimizers import DeepSpeedAdam, adam_of_lists
from neusight.stubs.stub_ops import count_use, names


def initialize(*args: Any, **kwargs: Any) -> NoReturn:
    raise UnmappedOpError(
        f"deepspeed.initialize at {call_site()} has no stub in a forecast, since deepspeed "
        "cannot be imported; FSDP, DDP and ZeroRedundancyOptimizer of torch are forecast."
    )


def multi_tensor_adam(chunk_size: int, flag: Tensor, lists: Any, *settings: Any) -> None:
    """Steps over lists of gradients, parameters and both moments."""
    count_use("deepspeed", "FusedAdam")
    gradients, parameters, first, second = lists
    adam_of_lists(parameters, gradients, first, second)


#: What its extensions hold, by the names under which it compiles them.
EXTENSIONS: dict[str, dict[str, Any]] = {"fused_adam": names(multi_tensor_adam)}

_ADAM = names(DeepSpeedAdam)

MODULES: dict[str, dict[str, Any]] = {
    "deepspeed": names(initialize),
    "deepspeed.ops": {},
    "deepspeed.ops.adam": _ADAM,
    "deepspeed.ops.adam.fused_adam": _ADAM,
}
