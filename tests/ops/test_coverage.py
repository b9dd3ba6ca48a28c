"""The registry against torch itself: every op of a kind is mapped, and what optimizers call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import neusight
from neusight.ops import is_mapped, kernels_of
from neusight.recording.recording import MathMode, OpSignature, TensorSpec

MATH = MathMode()


# -- breadth ---------------------------------------------------------------------------------------


def aten_overloads() -> Iterator[Any]:
    """Every aten overload that a dispatch mode can meet."""
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        if namespace != "aten":
            continue
        packet, _, overload = rest.partition(".")
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"):
            continue
        found = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
        if found is not None:
            yield found


def unmapped(overloads: list[Any]) -> list[str]:
    names = {(o._schema.name, o._schema.overload_name or "default") for o in overloads}
    return sorted({op for op, overload in names if not is_mapped(op, overload)})


@pytest.mark.parametrize("tag", ["pointwise", "reduction"])
def test_every_op_that_torch_tags_is_mapped(tag: str) -> None:
    wanted = getattr(torch.Tag, tag, None)
    overloads = [o for o in aten_overloads() if wanted in o.tags]

    assert unmapped(overloads) == []


def test_every_view_launches_nothing() -> None:
    def is_view(overload: Any) -> bool:
        aliases = [a.alias_info for a in overload._schema.arguments if a.alias_info is not None]
        return any(not alias.is_write for alias in aliases)

    views = [overload for overload in aten_overloads() if is_view(overload)]
    x = TensorSpec((4,), (1,), "float32")

    assert unmapped(views) == []
    for overload in views:
        call = OpSignature(overload._schema.name, "default", (("self", x),), (x,))
        assert kernels_of(call, MATH) == (), overload


def test_what_is_left_out_is_known() -> None:
    """Sparse, quantized, nested, MPS and MKL-DNN ops fall back; anything else is a gap."""
    left_out = [
        "sparse",
        "mkldnn",
        "mps",
        "quantized",
        "nested",
        "nnpack",
        "for_cpu",
        "cpu_fallback",
        "_test_",
        "triton",
        "cslt_compress",
        "coo",
        "csr",
        "lstm_mps",
        "dyn_quant",
        "int4pack",
        "histogramdd",
        "coalesce",
        "spdiags",
        "spsolve",
        "sspaddmm",
        "hspmm",
        "semi_",
        "per_channel",
        "per_tensor",
        "philox",
        "from_file",
        "_foobar",
        "compressed",
        "helper_functional",
        "q_",
        "to_dense",
    ]

    gaps = [op for op in unmapped(list(aten_overloads())) if not any(k in op for k in left_out)]

    assert gaps == []


# -- optimizers ------------------------------------------------------------------------------------


OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("Adam", {"amsgrad": True}),
    ("Adam", {"capturable": True}),
    ("AdamW", {"fused": True}),
    ("AdamW", {"foreach": False}),
    ("SGD", {"lr": 0.1, "nesterov": True, "momentum": 0.9}),
    ("RMSprop", {"centered": True}),
    ("Adagrad", {}),
    ("Adadelta", {}),
    ("NAdam", {}),
    ("RAdam", {}),
    ("Adamax", {}),
    ("Adafactor", {}),
    ("LBFGS", {}),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("optimizer", "options"), OPTIMIZERS, ids=str)
def test_optimizers_are_mapped_whole(optimizer: str, options: dict[str, Any]) -> None:
    with neusight.forecast_on("H100") as forecast:
        model = nn.Linear(4, 4).cuda()
        stepper = getattr(torch.optim, optimizer)(model.parameters(), **options)

        def loss() -> torch.Tensor:
            stepper.zero_grad()
            result: torch.Tensor = model(torch.randn(2, 4, device="cuda")).mean()
            result.backward()
            return result

        for _ in range(2):
            stepper.step(loss)

    assert list(forecast.unmapped) == []
