"""Optimizers that step in one kernel for many tensors, as Apex and DeepSpeed bring them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from neusight.stubs.stub_ops import count_use, make_op

adam_of_lists = make_op(
    "apex::multi_tensor_adam(Tensor(a!)[] self, Tensor[] grads, Tensor(b!)[] exp_avgs, "
    "Tensor(c!)[] exp_avg_sqs) -> ()",
    lambda *lists: None,
)
_sgd = make_op(
    "apex::multi_tensor_sgd(Tensor(a!)[] self, Tensor[] grads, "
    "Tensor(b!)[] momentum_buffer_list) -> ()",
    lambda *lists: None,
)

Parameters = Iterable[Any]
Closure = Callable[[], Any] | None


class _OneKernel(Optimizer):
    """Steps over all tensors of a group and type together; states are float32."""

    #: The package that it replaces.
    package = "apex"

    def __init__(self, params: Parameters, defaults: dict[str, Any]) -> None:
        count_use(self.package, type(self).__name__)
        super().__init__(params, defaults)

    def step(self, closure: Closure = None, *others: Any, **more: Any) -> Any:
        loss = None if closure is None else closure()
        with torch.no_grad():
            for group in self.param_groups:
                by_type: dict[torch.dtype, list[Tensor]] = {}
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        by_type.setdefault(parameter.dtype, []).append(parameter)
                for parameters in by_type.values():
                    self._update(group, parameters)
        return loss

    def _update(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        raise NotImplementedError

    def _states(self, name: str, parameters: list[Tensor], dtype: Any) -> list[Tensor]:
        for parameter in parameters:
            state = self.state[parameter]
            if name not in state:
                state[name] = torch.zeros_like(parameter, dtype=dtype)
        return [self.state[parameter][name] for parameter in parameters]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Gradients go, as both packages have it by default."""
        super().zero_grad(set_to_none=set_to_none)


class FusedAdam(_OneKernel):
    """Adam, or AdamW where `adam_w_mode`."""

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        **others: Any,
    ) -> None:
        if amsgrad:
            raise RuntimeError("FusedAdam does not support the AMSGrad variant.")
        defaults = {"lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps}
        super().__init__(params, {**defaults, "weight_decay": weight_decay})

    def _update(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        group["step"] = group.get("step", 0) + 1
        first = self._states("exp_avg", parameters, torch.float32)
        second = self._states("exp_avg_sq", parameters, torch.float32)
        adam_of_lists(parameters, [parameter.grad for parameter in parameters], first, second)


class FusedSGD(_OneKernel):
    """Gradient descent with momentum."""

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        **others: Any,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    def _update(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        buffers = self._states("momentum_buffer", parameters, None) if group["momentum"] else []
        _sgd(parameters, [parameter.grad for parameter in parameters], buffers)


#: DeepSpeed's, which goes by the same name.
DeepSpeedAdam = type("FusedAdam", (FusedAdam,), {"package": "deepspeed"})
