"""torch.compile inside a forecast: all of Dynamo and Inductor, from its first use on."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neusight.compatibility.torch_internals import missing
from neusight.fake_cuda.compiling.cache.entries import Entries
from neusight.fake_cuda.compiling.cache.graph_cache import cache_folder, install_graph_cache
from neusight.fake_cuda.compiling.cache.keys import source_version
from neusight.fake_cuda.compiling.choices.padding import install_padding, padding_query_result
from neusight.fake_cuda.compiling.choices.tuning import install_tuning
from neusight.fake_cuda.compiling.code_generation import install_code_generation
from neusight.fake_cuda.compiling.frames import install_frames
from neusight.fake_cuda.compiling.graphs.install import install_cuda_graphs
from neusight.fake_cuda.compiling.launching import install_runtime
from neusight.fake_cuda.compiling.rules.fallback import install_fallback
from neusight.fake_cuda.compiling.rules.flex_attention import install_flex_attention
from neusight.fake_cuda.compiling.rules.replaced_functions import install_stubs
from neusight.fake_cuda.compiling.rules.self_check import compile_failure
from neusight.fake_cuda.compiling.rules.settings import install_settings
from neusight.fake_cuda.compiling.rules.templates import install_templates
from neusight.fake_cuda.compiling.tracing import install_tracing
from neusight.fake_cuda.compiling.wrappers import Wrappers, install_wrappers
from neusight.fake_cuda.patching import Patches
from neusight.fake_cuda.torch_api.overrides import attention_query_result
from neusight.predictors.gpu import GPU
from neusight.recording.recorder import Recorder

#: Backends of torch that compile for no GPU, beside Inductor.
_WITHOUT_GPU = (
    "inductor",
    "eager",
    "eager_noexcept",
    "aot_eager",
    "aot_eager_decomp_partition",
    "cudagraphs",
)

#: The question that fusion asks a GPU.
INDUCTOR_QUERY = "inductor"


def install_compiler(
    patches: Patches,
    recorder: Recorder,
    gpu: GPU,
    on_query: Callable[[str, object], None],
    wrappers: Wrappers,
) -> None:
    """torch.compile runs whole; Inductor is imported, and changed, once something is compiled."""
    compiler = _Compiler(patches, recorder, gpu, on_query, wrappers)

    def compile(model: Any = None, **kwargs: Any) -> Any:
        if not compiler.is_ready() or not compiler.knows(kwargs.get("backend", "inductor")):
            return model if model is not None else lambda function: function
        compiled = real_compile(model, **kwargs)
        is_function = model is not None and not isinstance(model, nn.Module)
        return recorder.hooks.around_function(compiled) if is_function else compiled

    def compile_module(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        compiled = compile(self._call_impl, *args, **kwargs)
        if compiled != self._call_impl:
            # Its hooks are compiled with it, where ours are none.
            patches.on_restore(lambda: setattr(self, "_compiled_call_impl", compiled))
            self._compiled_call_impl = recorder.hooks.around(self, compiled)

    real_compile: Any = patches.replace_code(torch, "compile", compile)
    patches.set(nn.Module, "compile", compile_module)
    if "torch._dynamo.convert_frame" in sys.modules:
        compiler.prepare_for_older()


def inductor_query_result(device_query: str, gpu: GPU) -> str | None:
    """What `gpu` answers Inductor; None if the query is another one."""
    return repr(_answer(gpu)) if device_query == INDUCTOR_QUERY else None


def _answer(gpu: GPU) -> tuple[object, ...]:
    """What splits of reductions and limits of fusion depend on."""
    return (gpu.vendor, *gpu.compute_capability, gpu.num_sms)


def _has_same_results(gpu: GPU, queries: Mapping[str, object]) -> bool:
    """Whether `gpu` answers what compiling a graph asked as it was answered then."""
    return all(
        repr(answer)
        == (attention_query_result(device_query, gpu) or padding_query_result(device_query, gpu))
        for device_query, answer in queries.items()
    )


@dataclass(eq=False)
class _Compiler:
    """What torch.compile needs of a forecast, set up where it is first called."""

    _patches: Patches
    _recorder: Recorder
    _gpu: GPU
    _on_query: Callable[[str, object], None]
    _wrappers: Wrappers
    _cache_folder: Path | None = field(default_factory=cache_folder)
    _is_ready: bool | None = None
    _compile_frame: Any = None  # torch's own, where it waits for the first use

    def is_ready(self) -> bool:
        """Whether programs are compiled; False where torch's internals have moved."""
        if self._is_ready is None:
            self._is_ready = False  # whatever interrupts
            with self._recorder.mode.inside():
                self._is_ready = self._set_up()
        return self._is_ready

    def knows(self, backend: object) -> bool:
        """Whether a backend runs without a GPU; one that is a function of the program's own does
        with the graph what it wants, and an unknown name is torch's to refuse."""
        from torch._dynamo import list_backends

        if backend not in _WITHOUT_GPU and backend in list_backends(exclude_tags=()):
            self._recorder.warn_once(f'backend "{backend}" is forecast as eager')
            return False
        return True

    def _set_up(self) -> bool:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's own modules, while they are imported
            absent = missing("compiling")
        if absent:
            self._recorder.warn_once(
                f"torch.compile is forecast as eager: torch {torch.__version__} has no "
                f"{absent[0].name}"
            )
            return False
        failure = compile_failure()
        if failure:
            self._recorder.warn_once(
                f"torch.compile is forecast as eager: torch {torch.__version__} failed neusight's "
                f"self-check of it ({failure})"
            )
            return False
        self._on_query(INDUCTOR_QUERY, _answer(self._gpu))
        self._wrappers.begin()  # that was no question of a graph
        patches, recorder = self._patches, self._recorder
        if self._compile_frame is None:
            self._forget_what_was_compiled()
        else:  # forgotten already, and not while torch compiles: it keeps what it works on
            patches.set(sys.modules["torch._dynamo.convert_frame"], "_compile", self._compile_frame)
        _stop_checking_distributions(patches)
        install_settings(patches)
        install_stubs(patches)
        install_tracing(patches, recorder)
        install_frames(patches, recorder.compiled, recorder.tape.stacks)
        install_fallback(patches, recorder.mode, recorder.warn_once)
        install_templates(patches)
        install_flex_attention(patches, recorder.mode)
        install_code_generation(patches)
        install_cuda_graphs(patches, recorder)
        if self._cache_folder is not None:
            entries = Entries(self._cache_folder, version=source_version(), warn=recorder.warn_once)
            install_graph_cache(
                patches,
                entries,
                self._wrappers,
                gpu=self._gpu,
                target=_answer(self._gpu),
                holds=partial(_has_same_results, self._gpu),
            )
        install_wrappers(patches, recorder, self._wrappers, self._on_query)
        install_runtime(patches, recorder)
        install_padding(patches, self._gpu, self._on_query)
        install_tuning(patches, recorder.warn_once, self._gpu)
        return True

    def prepare_for_older(self) -> None:
        """What was compiled before the forecast is compiled again inside it, for its GPU."""
        convert_frame: Any = sys.modules["torch._dynamo.convert_frame"]
        self._forget_what_was_compiled()
        self._compile_frame = convert_frame._compile

        def set_up_first(*args: Any, **kwargs: Any) -> Any:
            if not self.is_ready():
                return convert_frame.ConvertFrameReturn()  # runs as it is
            return convert_frame._compile(*args, **kwargs)

        self._patches.set(convert_frame, "_compile", set_up_first)

    def _forget_what_was_compiled(self) -> None:
        """Code that was compiled, and what Inductor knows of a GPU, is gone now and afterwards."""
        self._patches.on_restore(_forget)
        _forget()


def _stop_checking_distributions(patches: Patches) -> None:
    """torch stops checking the arguments of distributions at the first compile in a process; here
    until the forecast ends, lest the next one be of another program."""
    from torch._dynamo.eval_frame import TorchPatcher

    patches.set(torch.distributions.Distribution, "_validate_args", False)
    patches.on_restore(TorchPatcher.patch.cache_clear)  # a compile afterwards does it again


def _forget() -> None:
    convert_frame = sys.modules.get("torch._dynamo.convert_frame")
    if convert_frame is None or not convert_frame.input_codes.seen:
        return  # nothing was compiled, and a reset would import half of Inductor
    import torch._dynamo

    torch._dynamo.reset()
    hints = sys.modules.get("torch._inductor.runtime.hints")
    if hints is not None:
        hints.DeviceProperties.create.cache_clear()
