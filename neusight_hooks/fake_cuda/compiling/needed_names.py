"""The names inside torch that compiling without a GPU stands on, and which of them have moved."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from operator import attrgetter

__all__ = ["NEEDED_NAMES", "moved_names"]

#: What is replaced or called, by module. All are private: if one moves, programs are forecast as
#: eager ones, and the summary names it. What only some of torch 2.11 to 2.15 have is asked for
#: where it is used.
NEEDED_NAMES: dict[str, tuple[str, ...]] = {
    "torch._C._dynamo.guards": (
        "_empty_strided_cpu",
        "_empty_strided_cpu_pinned",
        "_empty_strided_cuda",
        "_reinterpret_tensor",
    ),
    "torch._dynamo": ("list_backends", "reset"),
    "torch._C._dynamo.eval_frame": ("reset_code", "set_code_exec_strategy"),
    "torch._dynamo.convert_frame": (
        "ConvertFrameReturn",
        "_compile",
        "get_and_maybe_log_recompilation_reasons",
        "input_codes.seen",
    ),
    "torch._dynamo.exc": ("BackendCompilerFailed", "InternalTorchDynamoError", "Unsupported"),
    "torch._dynamo.guards": ("CheckFunctionManager",),
    "torch._dynamo.output_graph": ("graph_break_reasons",),
    "torch._dynamo.trace_rules": (
        "SKIP_DIRS",
        "_recompile_re",
        "add",
        "get_legacy_mod_inlinelist",
        "get_torch_obj_rule_map",
    ),
    "torch._dynamo.types": ("FrameAction.SKIP", "FrameExecStrategy"),
    "torch._dynamo.utils": ("counters",),
    "torch._dynamo.variables.builder": (
        "VariableBuilder._type_dispatch",
        "VariableBuilder.wrap_tensor",
        "infer_subclass_type",
    ),
    "torch._dynamo.variables.optimizer": ("OptimizerVariable.call_method",),
    "torch._dynamo.variables.torch": ("TorchInGraphFunctionVariable._get_handlers",),
    "torch._functorch.config": ("_config", "check_custom_op_aliasing", "enable_autograd_cache"),
    "torch._guards": ("CompileContext.current_compile_id", "Guard.name", "GuardsSet"),
    "torch._inductor.async_compile": ("AsyncCompile.triton", "AsyncCompile.wait"),
    "torch._inductor.codecache": (
        "PyCodeCache.load",
        "PyCodeCache.load_by_key_path",
        "PyCodeCache.write",
        "code_hash",
    ),
    "torch._inductor.codegen.triton": ("TritonScheduling.define_kernel",),
    "torch._inductor.codegen.wrapper": (
        "PythonWrapperCodegen.write_get_raw_stream_header_once",
        "PythonWrapperCodegen.write_triton_header_once",
    ),
    "torch._inductor.compile_fx": ("_InProcessFxCompile.codegen_and_compile",),
    "torch._inductor.cudagraph_trees": (
        "CUDAGraphTreeManager.get_curr_generation",
        "CUDAGraphTreeManager.user_invoked_mark_step",
        "cudagraphify",
        "get_manager",
    ),
    "torch._inductor.cudagraph_utils": (
        "FunctionID",
        "WrappedFunction",
        "check_for_mutation",
        "log_cudagraph_skip_and_bump_counter",
    ),
    "torch._inductor.config": (
        "alignment_asserts",
        "autotune_local_cache",
        "compile_threads",
        "fx_graph_cache",
    ),
    "torch._inductor.dependencies": ("MemoryDep",),
    "torch._inductor.fx_passes.joint_graph": (
        "UniformValueConstantFolder._add_peephole_patterns",
        "UniformValueConstantFolder.run",
    ),
    "torch._inductor.fx_passes.pad_mm": (
        "_should_pad",
        "has_triton",
        "should_exclude_padding_time",
    ),
    "torch._inductor.output_code": ("get_expanded_dims", "index_expanded_dims"),
    "torch._inductor.runtime.hints": ("DeviceProperties.create.cache_clear",),
    "torch._inductor.scheduler": (
        "Scheduler.codegen",
        "Scheduler.enter_context",
        "Scheduler.graph_partition",
        "Scheduler.should_partition",
        "has_triton",
    ),
    "torch._subclasses.meta_utils": ("MetaTensorDescriber.describe_tensor",),
    "torch.nn.modules.module": ("_has_any_global_hook",),
    "torch.fx.experimental.proxy_tensor": ("unset_fake_temporarily",),
    "torch.utils._triton": ("triton_hash_with_backend",),
}


def moved_names(needed: Mapping[str, tuple[str, ...]] | None = None) -> list[str]:
    """Those (default: `NEEDED_NAMES`) that this torch does not have. Imports Inductor, which takes
    seconds.

    >>> moved_names()
    []
    """
    return [
        f"{module}.{name}"
        for module, names in (needed or NEEDED_NAMES).items()
        for name in names
        if not _is_there(module, name)
    ]


def _is_there(module: str, name: str) -> bool:
    try:
        attrgetter(name)(import_module(module))
    except (AttributeError, ImportError):
        return False
    return True
