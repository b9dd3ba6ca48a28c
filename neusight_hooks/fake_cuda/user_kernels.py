"""Kernels that the program itself wrote: launched by name, priced by their tensors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes
from torch._subclasses.fake_tensor import FakeTensor

from neusight.fake_cuda.import_hooks import when_imported
from neusight.fake_cuda.patching import Patches
from neusight.fake_cuda.triton_driver import TargetDriver
from neusight.ops import mapped_ops
from neusight.recording.dispatch.op_cache import KnownOp
from neusight.recording.recorder import Recorder
from neusight.recording.recording import Argument, OpSignature
from neusight.recording.signature import spec_of

#: A launch of a Triton kernel as an op, for graphs: torch.compile knows no other kernels where
#: Triton is not installed. `order` are the names of its arguments, `names` the same in the order of
#: those that are written, read, whole numbers, and others (as texts).
LAUNCH_SCHEMA = (
    "neusight::triton_launch(str kernel, str[] order, str[] names, Tensor(a!)[] written, "
    "Tensor[] read, SymInt[] integers, str[] others, SymInt[] grid) -> ()"
)

#: A parameter of a kernel in its text, where it is no constant.
_PARAMETER = re.compile(r"^\s*(\w+)\s*(?!.*constexpr)")


def install_user_kernels(patches: Patches, recorder: Recorder) -> None:
    """Kernels of `@triton.jit` that run on forecast tensors are recorded; none is compiled, and
    `@triton.autotune` times none: its first configuration runs. Triton's driver answers as the
    target would."""

    def patch_kernels(module: Any) -> None:
        run = module.JITFunction.run

        def run_or_record(
            self: Any, *args: Any, grid: Any = None, warmup: bool = False, **kwargs: Any
        ) -> Any:
            given = {**dict(zip(self.arg_names, args, strict=False)), **kwargs}
            if warmup and recorder.is_open:
                return UnbuiltKernel(self, kwargs)
            if not _has_forecast(given.values()):
                return run(self, *args, grid=grid, warmup=warmup, **kwargs)
            if not recorder.mode.is_inside:  # else torch asks what an op made of it returns
                values = {name: given[name] for name in self.arg_names if name in given}
                values["grid"] = _sizes(grid, given)
                record_launch(recorder, self.__name__, values)
            return UnbuiltKernel(self, kwargs)

        patches.set(module.JITFunction, "run", run_or_record)
        launch = getattr(torch.ops.neusight, "triton_launch", None)  # where Triton is a stub
        if launch is not None:
            recorder.take_over(launch.default, partial(_record_compiled_launch, recorder))

    def patch_tuning(module: Any) -> None:
        tune = module.Autotuner.run

        def run_first(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not _has_forecast((*args, *kwargs.values())):
                return tune(self, *args, **kwargs)
            first = self.configs[0] if self.configs else None
            return self.fn.run(*args, **{**(first.kwargs if first else {}), **kwargs})

        patches.set(module.Autotuner, "run", run_first)

    def patch_driver(module: Any) -> None:
        patches.set(module.driver, "_active", TargetDriver())

    when_imported(patches, "triton.runtime.jit", patch_kernels)
    when_imported(patches, "triton.runtime.autotuner", patch_tuning)
    when_imported(patches, "triton.runtime.driver", patch_driver)
    _install_jiterator(patches, recorder)


def _install_jiterator(patches: Patches, recorder: Recorder) -> None:
    """CUDA code of one element (torch.cuda.jiterator): results have the shape that all tensors
    broadcast to, and their common dtype (ATen/native/cuda/jiterator.cu)."""

    def launch(
        code: str,
        name: str,
        return_by_ref: bool,
        num_outputs: int,
        tensors: Sequence[torch.Tensor],
        values: Mapping[str, Any],
    ) -> Any:
        _, dtype = elementwise_dtypes(
            *tensors, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
        )
        broadcast: Any = torch.broadcast_shapes  # torch leaves it without annotations
        shape = broadcast(*(tensor.shape for tensor in tensors))
        out = [torch.empty(shape, dtype=dtype, device="cuda") for _ in range(num_outputs)]
        inputs = {f"in_{place}": tensor for place, tensor in enumerate(tensors)}
        outputs = {f"out_{place}": tensor for place, tensor in enumerate(out)}
        record_launch(recorder, name, {**inputs, **outputs, **values}, "jiterator")
        return out[0] if num_outputs == 1 else tuple(out)

    patches.set(torch._C, "_cuda_jiterator_compile_and_launch_kernel", launch)


def _has_forecast(values: Iterable[Any]) -> bool:
    return any(isinstance(_without_descriptor(value), FakeTensor) for value in values)


def _without_descriptor(value: Any) -> Any:
    """The tensor of a TensorDescriptor, Triton's or the stub's; any other value as it is."""
    return value.base if type(value).__name__ == "TensorDescriptor" else value


def _sizes(grid: Any, given: Mapping[str, Any]) -> tuple[int, ...]:
    """How many programs are launched, along up to three dimensions."""
    found = grid(dict(given)) if callable(grid) else grid
    sizes = found if isinstance(found, (list, tuple)) else (found,)
    return tuple(int(size) for size in sizes if size is not None)


class UnbuiltKernel:
    """What a launch or a warm-up gives: a kernel that was not compiled. Its registers and
    memory are unknown; programs that fit their grid to them get the values below."""

    #: Registers of a thread that keep an SM full (65,536 over 2,048 threads), and nothing spilled.
    n_regs = 32
    n_spills = 0

    def __init__(self, kernel: Any, options: Mapping[str, Any]) -> None:
        self._kernel = kernel
        self.name = kernel.__name__
        #: Triton launches 4 warps where it is not stated how many.
        self.metadata = SimpleNamespace(
            shared=0, num_warps=options.get("num_warps", 4), name=self.name
        )
        self.asm: dict[str, str] = {}

    def _init_handles(self) -> None:
        pass

    def __getitem__(self, grid: Any) -> Any:
        """Launches it as the kernel itself is launched."""
        return self._kernel[grid]


class UserKernel:
    """Stands where compiled code expects a Triton kernel of the program's own."""

    def __init__(self, recorder: Recorder, name: str, source: str) -> None:
        self._recorder = recorder
        self._name, self._parameters = _named(name, source)

    def run(self, *args: Any, **kwargs: Any) -> None:
        names = [*self._parameters, *(f"arg_{at}" for at in range(len(args)))]
        record_launch(self._recorder, self._name, dict(zip(names, args, strict=False)))


def _named(name: str, source: str) -> tuple[str, list[str]]:
    """The kernel's own name (Inductor numbers copies) and its parameters that are no constants.

    >>> _named("add_0", "@triton.jit\\ndef add(x_ptr, n, BLOCK : tl.constexpr):\\n  pass")
    ('add', ['x_ptr', 'n'])
    """
    for found in re.finditer(r"def (\w+)\(([^)]*)\)", source):
        if name.startswith(found[1]):
            parameters = map(_PARAMETER.match, found[2].split(","))
            return found[1], [match[1] for match in parameters if match]
    return name, []


def record_launch(
    recorder: Recorder, name: str, values: Mapping[str, Any], language: str = "triton"
) -> None:
    """Puts a launch of a kernel of the program's own on the tape, under its language and name."""
    with torch._C._DisableTorchDispatch():
        arguments = tuple((key, _argument(value)) for key, value in values.items())
    if f"{language}::{name}" not in mapped_ops():
        recorder.warn_once(
            "kernels of the program's own are priced by the bytes of their tensors; "
            f'register_op("{language}::{name}") describes them better'
        )
    recorder.record_op(KnownOp(OpSignature(f"{language}::{name}", "default", arguments, ())))


def _record_compiled_launch(
    recorder: Recorder,
    kernel: str,
    order: Sequence[str],
    names: Sequence[str],
    written: Sequence[torch.Tensor],
    read: Sequence[torch.Tensor],
    integers: Sequence[int],
    others: Sequence[str],
    grid: Sequence[int],
) -> None:
    """Runs the op of `LAUNCH_SCHEMA`: puts the launch on the tape as one without torch.compile."""
    values = dict(zip(names, (*written, *read, *integers, *others), strict=True))
    arguments = {name: values[name] for name in order} | {"grid": tuple(grid)}
    record_launch(recorder, kernel, arguments)


def _argument(value: Any) -> Argument:
    value = _without_descriptor(value)
    if isinstance(value, torch.Tensor):
        return spec_of(value)
    if isinstance(value, (list, tuple)):
        return tuple(_argument(item) for item in value)
    return value if isinstance(value, bool | int | float | str) else str(value)
