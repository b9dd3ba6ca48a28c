"""GPT-QModel: layers of checkpoints that GPTQ or AWQ quantized, as transformers loads them, through
Marlin's kernels."""

from __future__ import annotations

from enum import Enum
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from neusight.stubs.stub_ops import counted, make_op, names

_PACKAGE = "gptqmodel"
_INTEGER_BITS = 32
_SUPPORTED_BITS = (4, 8)

_marlin_gemm = make_op(
    "gptqmodel::marlin_gemm(Tensor input, Tensor qweight, Tensor scales, Tensor? qzeros, "
    "Tensor? bias) -> Tensor",
    lambda input, qweight, scales, qzeros, bias: input.new_empty(
        (*input.shape[:-1], scales.shape[-1])
    ),
)


class METHOD(str, Enum):
    """How weights were quantized."""

    GPTQ = "gptq"
    AWQ = "awq"


class FORMAT(str, Enum):
    """How they are packed."""

    GPTQ = "gptq"
    GPTQ_V2 = "gptq_v2"
    GEMM = "gemm"
    GEMV = "gemv"
    GEMV_FAST = "gemv_fast"
    LLM_AWQ = "llm-awq"
    MARLIN = "marlin"


class BACKEND(str, Enum):
    """Whose kernels multiply: Marlin's, whatever is asked for."""

    AUTO = "auto"
    AUTO_TRAINABLE = "auto_trainable"
    MARLIN = "marlin"


class QuantizeConfig(SimpleNamespace):
    """What the package keeps of a configuration."""


class BaseQuantLinear(nn.Module):
    """A linear layer with packed weights, and scales and zero points of groups of them."""

    qweight: Tensor
    qzeros: Tensor
    scales: Tensor
    bias: Tensor | None

    @counted(_PACKAGE, "a quantized Linear")
    def __init__(
        self,
        bits: int,
        group_size: int,
        desc_act: bool,
        sym: bool,
        in_features: int,
        out_features: int,
        bias: bool = False,
        dev: Any = None,
        **others: Any,
    ) -> None:
        super().__init__()
        if bits not in _SUPPORTED_BITS:
            raise NotImplementedError(
                f"Marlin's kernels have weights of 4 and 8 bits, not {bits}: {_PACKAGE} takes "
                "other kernels for them, which are not forecast"
            )
        self.in_features, self.out_features = in_features, out_features
        self.has_zeros = not sym
        groups = 1 if group_size <= 0 else -(-in_features // group_size)
        packed = _INTEGER_BITS // bits
        integers = {"dtype": torch.int32, "device": dev}
        self.register_buffer("qweight", torch.zeros(self.packed_shape(packed), **integers))
        self.register_buffer("qzeros", torch.zeros(groups, out_features // packed, **integers))
        made = {"dtype": torch.float16, "device": dev}
        self.register_buffer("scales", torch.zeros(groups, out_features, **made))
        self.register_buffer("bias", torch.zeros(out_features, **made) if bias else None)

    def packed_shape(self, packed: int) -> tuple[int, int]:
        return self.in_features // packed, self.out_features

    def forward(self, x: Tensor) -> Tensor:
        """One product, which unpacks the weight as it reads it."""
        zeros = self.qzeros if self.has_zeros else None
        out: Tensor = _marlin_gemm(x, self.qweight, self.scales, zeros, self.bias)
        return out


class MarlinLinear(BaseQuantLinear):
    """Packed along the features that enter, as GPTQ's checkpoints are."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        groups, size = self.scales.shape[0], self.in_features
        of_group = torch.arange(size, dtype=torch.int32, device=self.scales.device)
        self.register_buffer("g_idx", of_group // -(-size // groups))


class AwqMarlinLinear(BaseQuantLinear):
    """Packed along the features that leave, as AWQ's checkpoints are."""

    def packed_shape(self, packed: int) -> tuple[int, int]:
        return self.in_features, self.out_features // packed


class ScaledActivation(nn.Module):
    """An activation whose result is divided by the scales of the layer after it."""

    def __init__(self, module: nn.Module, scales: Tensor) -> None:
        super().__init__()
        self.act, self.scales = module, nn.Parameter(scales)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.act(x) / self.scales.view(1, 1, -1)
        return out


class GPTQ:
    """Quantizes a layer by what enters it, which no forecast computes."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        raise NotImplementedError(
            "quantizing with GPTQ reads what enters each layer, which a forecast does not compute: "
            "load a checkpoint that is quantized already"
        )


def hf_select_quant_linear_v2(
    *, quant_method: str | METHOD, **settings: Any
) -> type[BaseQuantLinear]:
    """The class of layers of such a checkpoint."""
    return AwqMarlinLinear if METHOD(quant_method) is METHOD.AWQ else MarlinLinear


def hf_gptqmodel_post_init(model: nn.Module, use_act_order: bool, **others: Any) -> nn.Module:
    """Packs weights as the kernels read them; as many bytes as before."""
    return model


def _convert(model: nn.Module, *settings: Any) -> tuple[nn.Module, bool]:
    return model, False


MODULES: dict[str, dict[str, Any]] = {
    "gptqmodel": names(BACKEND, QuantizeConfig),
    "gptqmodel.nn_modules": {},
    "gptqmodel.nn_modules.qlinear": names(BaseQuantLinear),
    "gptqmodel.quantization": names(FORMAT, GPTQ, METHOD),
    "gptqmodel.quantization.awq": {},
    "gptqmodel.quantization.awq.modules": {},
    "gptqmodel.quantization.awq.modules.act": names(ScaledActivation),
    "gptqmodel.utils": {},
    "gptqmodel.utils.importer": names(hf_select_quant_linear_v2),
    "gptqmodel.utils.model": names(
        hf_gptqmodel_post_init,
        hf_convert_gptq_v1_to_v2_format=_convert,
        hf_convert_gptq_v2_to_v1_format=_convert,
    ),
    "gptqmodel.version": {},
}
