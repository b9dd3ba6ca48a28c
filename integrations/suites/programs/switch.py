"""Switch Transformers as transformers ran them in 2024, which the NeuSight paper measured.

Three things differ from the library of today, and each costs time that the figures hold:

- experts ran one after the other: each looked for its tokens (a mask, a wait for their number),
  took them out, and put its results back;
- the position bias, masked once a stack, was added to the scores in place. It is a view of
  [queries, keys, heads] with the heads first, so neighbours of the scores lie apart in it;
- the scores were neither scaled nor masked again in each layer.

Which tokens an expert gets is known: the source's tokens are alike, so a layer sends all to one
expert, which takes as many of each sequence as its capacity.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from neusight.integrations.suites.case import CannotBuild, CaseProgram, Step
from neusight.integrations.suites.programs.language import language_model, step_of_model

#: The name of this attention in transformers' register, and of the masked bias at the bias.
_ATTENTION, _MASKED = "scores_with_bias_in_place", "masked_once"


def switch_step(program: CaseProgram, settings: Mapping[str, Any]) -> Step:
    """One step of the case."""
    model = language_model(settings, mode=program.mode)
    _run_as_then(model)
    return step_of_model(program, model)


def _run_as_then(model: Any) -> None:
    """Changes a Switch Transformer to what that library did."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    num_layers = 0
    for module in model.modules():
        if type(module).__name__ == "SwitchTransformersSparseMLP":
            module.forward = partial(_experts_in_turn, module)
            num_layers += 1
        if hasattr(module, "config") and hasattr(module.config, "_attn_implementation"):
            module.config._attn_implementation = _ATTENTION
    if not num_layers:
        raise CannotBuild("this version of transformers names the layers of experts otherwise")
    ALL_ATTENTION_FUNCTIONS.register(_ATTENTION, _attention)


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    position_bias: Any,
    dropout: float = 0.0,
    **others: object,
) -> tuple[Tensor, Tensor]:
    """As the library's functions of attention: the output with heads last, and the weights."""
    scores = torch.matmul(query, key.transpose(2, 3))
    if not hasattr(position_bias, _MASKED):  # layers of a stack share the bias, and so its mask
        setattr(position_bias, _MASKED, position_bias if mask is None else position_bias + mask)
    scores += getattr(position_bias, _MASKED)
    weights = F.dropout(F.softmax(scores.float(), dim=-1), dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def _experts_in_turn(layer: Any, hidden: Tensor) -> Tensor:
    batch, length, width = hidden.shape
    mask, probabilities, _ = layer.router(hidden)
    mask = mask.bool()
    flat, results = hidden.reshape(-1, width), hidden.clone().view(-1, width)
    room = min(length, layer.router.expert_capacity)
    firsts = torch.arange(0, batch * length, length)[:, None] + torch.arange(room)
    rows = firsts.reshape(-1).to(hidden.device)
    for number in range(layer.router.num_experts):
        torch.nonzero(mask[..., number])
        if number == 0:
            results[rows] = layer.experts[f"expert_{number}"](flat[rows])
        torch.nonzero(mask[..., number])
    weighted: Tensor = probabilities * results.view(batch, length, width)
    return weighted
