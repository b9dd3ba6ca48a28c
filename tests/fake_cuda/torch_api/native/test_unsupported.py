"""Every public name of torch.cuda and its like answers, or names the call, the line, what to do."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import neusight
from neusight.predictors.errors import UnansweredCallError

MODULES = (
    "torch.accelerator",
    "torch.backends.cuda",
    "torch.backends.cudnn",
    "torch.cuda",
    "torch.cuda.amp",
    "torch.cuda.comm",
    "torch.cuda.gds",
    "torch.cuda.graphs",
    "torch.cuda.green_contexts",
    "torch.cuda.jiterator",
    "torch.cuda.memory",
    "torch.cuda.nccl",
    "torch.cuda.nvtx",
    "torch.cuda.profiler",
    "torch.cuda.random",
    "torch.cuda.streams",
    "torch.cuda.tunable",
)

#: What the modules import for themselves, and classes of errors.
NOT_THEIRS = ("contextmanager", "classproperty", "CudaError", "signature", "SDPBackend")


def arguments() -> dict[str, Callable[[], tuple[Any, ...]]]:
    """What each function that needs arguments is called with."""

    def x() -> torch.Tensor:
        return torch.ones(2, 4, 16, 64, device="cuda", dtype=torch.float16)

    def attention() -> tuple[Any, ...]:
        return (torch.backends.cuda.SDPAParams(x(), x(), x(), None, 0.0, False, False),)

    def a_graph() -> tuple[Any, ...]:
        return (torch.cuda.CUDAGraph(),)

    def pool() -> tuple[Any, ...]:
        return (torch.cuda.MemPool(),)

    tensors: dict[str, Callable[[], tuple[Any, ...]]] = {
        "is_acceptable": lambda: (x(),),
        "torch.cuda.nccl.is_available": lambda: ([x()],),
        "torch.cuda.nccl.broadcast": lambda: ([x()],),
        "torch.cuda.comm.broadcast": lambda: (x(), [0]),
        "device_of": lambda: (x(),),
        "scatter": lambda: (x(), [0]),
        "gather": lambda: ([x()],),
        "reduce_add": lambda: ([x(), x()],),
        "reduce_add_coalesced": lambda: ([[x()]],),
        "broadcast_coalesced": lambda: ([x()], [0]),
        "all_reduce": lambda: ([x()],),
        "all_gather": lambda: ([x()], [x()]),
        "reduce": lambda: ([x()],),
        "reduce_scatter": lambda: ([x()], [x()]),
        "make_graphed_callables": lambda: (torch.nn.Linear(2, 2).cuda(), (torch.ones(2).cuda(),)),
        "set_rng_state": lambda: (torch.cuda.get_rng_state(),),
        "set_rng_state_all": lambda: (torch.cuda.get_rng_state_all(),),
        "can_use_flash_attention": attention,
        "can_use_efficient_attention": attention,
        "can_use_cudnn_attention": attention,
        "use_mem_pool": pool,
        "graph": a_graph,
        "SDPAParams": lambda: (x(), x(), x(), None, 0.0, False, False),
        "stream": lambda: (torch.cuda.Stream(),),
        "set_stream": lambda: (torch.cuda.current_stream(),),
        "StreamContext": lambda: (torch.cuda.Stream(),),
        "gds_register_buffer": lambda: (x().untyped_storage(),),
        "gds_deregister_buffer": lambda: (x().untyped_storage(),),
        "custom_bwd": lambda: (len,),
        "set_flags": lambda: (True,),
    }
    plain = {
        "manual_seed": (1,), "manual_seed_all": (1,), "set_device": (0,), "device": (0,),
        "set_device_index": (0,), "set_device_idx": (0,), "device_index": (0,),
        "can_device_access_peer": (0, 0), "set_per_process_memory_fraction": (1.0,),
        "set_sync_debug_mode": (0,), "get_stream_from_external": (7,),
        "caching_allocator_alloc": (512,), "caching_allocator_delete": (0,),
        "check_error": (0,), "init_rank": (1, b"", 0), "range_push": ("a",), "range": ("a",),
        "mark": ("a",), "range_start": ("a",), "range_end": (0,),
        "range_pop": (), "set_filename": ("a.csv",), "set_max_tuning_duration": (1,),
        "set_max_tuning_iterations": (1,), "set_rotating_buffer_size": (1,),
        "set_numerical_check_tolerances": (True,), "cuFFTPlanCache": (0,),
        "cuFFTPlanCacheAttrContextProp": (None, None), "GdsFile": ("a", 0),
        "change_current_allocator": (None,), "enable_flash_sdp": (True,),
        "enable_math_sdp": (True,), "enable_mem_efficient_sdp": (True,),
        "enable_cudnn_sdp": (True,), "allow_fp16_bf16_reduction_math_sdp": (False,),
        "tune_gemm_in_file": ("a",), "mgpu_tune_gemm_in_file": ("a", 1),
        "CUDAPluggableAllocator": ("a.so", "a", "f"), "preferred_rocm_fa_library": (),
    }  # fmt: skip
    return {**tensors, **{name: partial(tuple[Any, ...], given) for name, given in plain.items()}}


def public_names(module: Any) -> Iterator[tuple[str, Any]]:
    for name in sorted(dir(module)):
        thing = getattr(module, name)
        if name.startswith("_") or not callable(thing) or name in NOT_THEIRS:
            continue
        if inspect.ismodule(thing) or not str(thing.__module__ or "").startswith("torch"):
            continue
        if isinstance(thing, type) and issubclass(thing, Exception):
            continue
        yield name, thing


@pytest.mark.parametrize("module_name", MODULES)
def test_each_public_name_answers_or_says_why_not(module_name: str) -> None:
    given = arguments()
    refused: list[str] = []
    with neusight.forecast_on("H100"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.ones(8, device="cuda").relu_()
        module = importlib.import_module(module_name)
        for name, thing in public_names(module):
            values = given.get(f"{module_name}.{name}", given.get(name, tuple))()
            try:
                thing(*values)
            except UnansweredCallError as error:
                refused.append(str(error))

    assert all(f"at {Path(__file__).name}:" in text for text in refused)
    expected = {
        "torch.cuda": 3,
        "torch.cuda.memory": 2,
        "torch.cuda.gds": 3,
        "torch.cuda.green_contexts": 1,
        "torch.cuda.nccl": 6,
        "torch.cuda.tunable": 2,
    }
    assert len(refused) == expected.get(module_name, 0), refused


def test_a_name_of_a_cuda_core_that_nothing_answers_is_absent_and_says_so() -> None:
    core: Any = torch._C
    with neusight.forecast_on("H100"):
        torch.ones(8, device="cuda")
        assert not hasattr(core, "_cuda_something_new")
        with pytest.raises(AttributeError, match=r"asked for at test_unsupported.py:\d+"):
            core._cuda_something_new()
        with pytest.raises(AttributeError, match=r"no attribute 'nothing'$"):
            core.nothing  # noqa: B018

    assert "__getattr__" not in vars(core)
    assert not hasattr(core, "_cuda_sleep") or torch.version.cuda


def test_the_line_of_a_refused_call_is_the_programs() -> None:
    with neusight.forecast_on("H100"):
        x = torch.ones(8, device="cuda")
        with pytest.raises(
            UnansweredCallError,
            match=r"test_unsupported.py:\d+ .* "
            r"torch.distributed",
        ):
            torch.cuda.nccl.all_reduce([x])
