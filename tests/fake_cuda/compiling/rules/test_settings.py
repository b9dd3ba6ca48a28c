"""What a program sets in torch's configuration does not undo the forecast's own settings."""

from __future__ import annotations

import threading
from typing import Any

import torch
import torch._functorch.config as autograd_config
import torch._inductor.config as inductor_config
from compiled_net import ops, torch_compile

import neusight


def test_a_program_keeps_what_it_sets_and_compiles_all_the_same() -> None:
    with inductor_config.patch(), autograd_config.patch():
        with neusight.forecast_on("H100") as forecast:
            inductor_config.fx_graph_cache = True
            inductor_config.cpp_wrapper = True
            autograd_config.check_custom_op_aliasing = True
            function: Any = torch_compile(lambda x: torch.relu(x) + 1)
            function(torch.ones(4, device="cuda"))
            held = inductor_config.fx_graph_cache

        assert (held, inductor_config.fx_graph_cache) == (False, True)
        inductor_config.cpp_wrapper = False
    assert "inductor::triton_poi_fused_add_relu_0" in ops(*forecast.recording.steps)


def test_other_threads_compile_too() -> None:
    with neusight.forecast_on("H100") as forecast:
        function: Any = torch_compile(lambda x: torch.relu(x).square())
        threads = [
            threading.Thread(target=function, args=(torch.ones(4, device="cuda"),))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
            thread.join()

    assert ops(*forecast.recording.steps)["inductor::triton_poi_fused_pow_relu_0"] == 2
    assert forecast.warnings == []
