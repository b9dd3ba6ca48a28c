"""Dynamo takes a function that stands in a forecast for one of torch's for that one."""

from __future__ import annotations

from typing import Any

from neusight.fake_cuda.patching import Patches


def install_stubs(patches: Patches) -> None:
    """What replaced a function of torch is traced as that function is; else it breaks the graph."""
    from torch._dynamo import trace_rules
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

    tables: tuple[dict[Any, Any], ...] = (
        trace_rules.get_torch_obj_rule_map(),
        TorchInGraphFunctionVariable._get_handlers(),
    )
    for table in tables:
        for replaced, stub in patches.replaced:
            real = getattr(replaced, "__wrapped__", replaced)  # of functions that keep answers
            # Both tables know functions as they were when Dynamo first looked.
            known = table.get(real, table.get(stub))
            if known is not None:
                table[real] = known
                patches.undo.callback(table.pop, stub, None)
                table[stub] = known
