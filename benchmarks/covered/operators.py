"""Cases of torch's own test databases: operators, list operators, modules and optimizers."""

from __future__ import annotations

import importlib.util
import itertools
import re
import sys
import unittest
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from operator import attrgetter
from types import ModuleType
from typing import Any

import torch

import neusight
from covered.cases import CannotTry, Case, Outcome, plain
from covered.comparing import (
    DEVICE,
    GPU,
    OTHER_SAMPLES,
    VERSION,
    Leaf,
    Leaves,
    Result,
    Sample,
    Tensor,
    compared,
    leaves,
    without_strides,
)


def _without_expecttest() -> None:
    """torch's test class derives from one of `expecttest`; no test runs here, so any will do."""
    if importlib.util.find_spec("expecttest") is None:
        module: Any = ModuleType("expecttest")
        module.TestCase = unittest.TestCase
        sys.modules["expecttest"] = module


_without_expecttest()
try:
    from torch.cuda.jiterator import _JittedFunction
    from torch.testing._internal import common_methods_invocations as databases
    from torch.testing._internal.common_modules import module_db
    from torch.testing._internal.common_optimizers import (
        _get_optim_inputs_including_global_cliquey_kwargs as optimizer_inputs,
    )
    from torch.testing._internal.common_optimizers import optim_db
except ImportError as error:
    raise CannotTry(f"torch's test databases cannot be imported: {error}") from error

DTYPES = ("float32", "bfloat16")

#: One case in so many is in the sample.
EVERY = 97


def cases() -> Iterator[Case]:
    """Every case; the sample is each so many-th of them."""
    for place, case in enumerate(_all_cases()):
        yield Case(case.name, case.run, limit_s=case.limit_s, is_sampled=place % EVERY == 0)


def _all_cases() -> Iterator[Case]:
    for dtype, is_backward in itertools.product(DTYPES, (False, True)):
        direction = "backward" if is_backward else "forward"
        for op in databases.op_db:
            if _has(op, getattr(torch, dtype), is_backward):
                run = partial(operator, op, getattr(torch, dtype), is_backward)
                yield Case(f"{dtype} {direction}/{op.full_name}", run)
    for dtype, op in itertools.product(DTYPES, _list_operators()):
        if getattr(torch, dtype) in op.supported_dtypes("cuda"):
            run = partial(list_operator, op, getattr(torch, dtype))
            yield Case(f"{dtype} lists/{op.name}", run)
    for dtype, info in itertools.product(DTYPES, module_db):
        yield Case(f"{dtype} modules/{info.name}", partial(module, info, getattr(torch, dtype)))
    for info in optim_db:
        yield Case(f"optimizers/{info.optim_cls.__name__}", partial(optimizer, info))
    for op in databases.op_db:
        if op.error_inputs_func is not None:
            yield Case(f"mistakes/{op.full_name}", partial(mistakes, op))


def _has(op: Any, dtype: torch.dtype, is_backward: bool) -> bool:
    if not is_backward:
        return dtype in op.supported_dtypes("cuda")
    return bool(op.supports_autograd and dtype in op.supported_backward_dtypes("cuda"))


def _list_operators() -> Iterable[Any]:
    return [
        *databases.foreach_unary_op_db,
        *databases.foreach_binary_op_db,
        *databases.foreach_pointwise_op_db,
        *databases.foreach_reduce_op_db,
        *databases.foreach_other_op_db,
    ]


def operator(op: Any, dtype: torch.dtype, is_backward: bool) -> Outcome:
    """An operator's samples: what it gives, or its gradients."""
    if isinstance(op.op, _JittedFunction):
        op.op.is_cuda_available = True  # it asked when the database was made
    has_free_sizes = op.name in FREE_SIZES
    note = AS_CUDA.get(op.name, "its sizes hang on values: invented" if has_free_sizes else "")
    draw = partial(_samples_of, op, dtype, is_backward)
    compare = partial(
        compared,
        has_free_sizes=has_free_sizes,
        as_cuda=partial(_as_cuda, op.name),
        note="" if is_backward else note,
    )
    outcome = compare(partial(draw, is_copied=False))
    if outcome.reason == OTHER_SAMPLES:
        # The database asks tensors for values or exact types: it draws on the CPU.
        outcome = compare(partial(draw, is_copied=True))
    if outcome.status == "failed" and NOT_ON_CUDA.get(op.full_name, "\0") in outcome.reason:
        return Outcome("ok", "as on CUDA, which has no kernel for it: an error", outcome.version)
    return outcome


#: Operators without a kernel on CUDA, and what their error says.
NOT_ON_CUDA = {"sparse.mm.reduce": "has a kernel for the CPU only"}

#: Operators whose sizes hang on values, by their names in the database.
FREE_SIZES = frozenset({"argwhere", "masked_select", "nonzero", "unique", "unique_consecutive"})

#: Operators that give something else on CUDA than on the CPU, and what (aten/src/ATen/native/cuda
#: and torch/_meta_registrations.py, 2.13).
_ROWS = "CUDA's strides: cuSOLVER gives V row by row"
_STATISTICS = "statistics as on CUDA: float32, one for each channel also in evaluation"
AS_CUDA = {
    "svd": _ROWS,
    "linalg.svd": _ROWS,
    "svd_lowrank": _ROWS,
    "pca_lowrank": _ROWS,
    "linalg.eig": "CUDA's strides: eigenvectors row by row",
    "fft.hfft2": "CUDA's strides: those of cuFFT's results",
    "fft.rfftn": "CUDA's strides: those of cuFFT's results",
    "nn.functional.max_unpool2d": "CUDA's strides: contiguous, whatever the input's",
    "nn.functional.scaled_dot_product_attention": "CUDA's strides: those of its attention kernels",
    "nonzero": "CUDA's strides: positions axis by axis; sizes hang on values: invented",
    "nonzero_static": "CUDA's strides: positions axis by axis",
    "native_layer_norm": _STATISTICS,
    "native_batch_norm": _STATISTICS,
    "_native_batch_norm_legit": _STATISTICS,
    "_batch_norm_with_update": _STATISTICS,
}


def _as_cuda(name: str, given: Leaves, out: Leaves) -> Leaves:
    """What CUDA gives where the CPU gave `out`; without strides where they are others."""
    reason = AS_CUDA.get(name, "")
    if reason.startswith("CUDA's strides"):
        return tuple(without_strides(leaf) for leaf in out)
    if reason != _STATISTICS or not out:  # of a backward, gradients are compared
        return out
    data, result, *others = given[0], *out
    assert isinstance(data, Tensor)
    found: list[Leaf] = [result]
    for leaf in others:
        if isinstance(leaf, Tensor) and leaf.dtype != "uint8":
            shape = leaf.shape if name == "native_layer_norm" else (data.shape[1],)
            strides = leaf.strides or tuple(int(length > 1) for length in shape if 0 not in shape)
            leaf = replace(leaf, dtype="float32", shape=shape, strides=strides)
        found.append(leaf)
    return tuple(found)


def _samples_of(
    op: Any, dtype: torch.dtype, is_backward: bool, device: str, *, is_copied: bool
) -> Iterator[Sample]:
    where = "cpu" if is_copied else device
    for drawn in op.sample_inputs(where, dtype, requires_grad=is_backward):
        if is_copied:
            drawn = drawn.transform(partial(_copied, device=device))
        inputs = (drawn.input, drawn.args, [*drawn.kwargs.items()])
        run = partial(_call, op, drawn, device, is_backward)
        yield Sample(leaves(inputs, device, with_values=True), run)


def _copied(value: Any, *, device: str) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().to(device).requires_grad_(value.requires_grad)


def _named(name: str) -> Any:
    try:
        return attrgetter(name)(torch)
    except AttributeError:
        return None


#: Operators that are functions of torch: programs take those of the forecast, by name.
NAMED = {op.op: op.name for op in databases.op_db if _named(op.name) is op.op}


def _call(op: Any, drawn: Any, device: str, is_backward: bool) -> Result:
    op = _named(NAMED[op.op]) if getattr(op, "op", None) in NAMED else op
    out = op(drawn.input, *drawn.args, **drawn.kwargs)
    if not is_backward:
        return Result(leaves(out, device))
    processed = drawn.output_process_fn_grad(out) if drawn.output_process_fn_grad else out
    inputs = (drawn.input, drawn.args, drawn.kwargs)
    return Result(gradients=_gradients(processed, inputs, device))


def _gradients(out: object, inputs: object, device: str) -> tuple[Any, ...]:
    """Shapes and dtypes of the gradients: no layout of them is promised."""
    results = _with_gradient(out)
    wanted = _with_gradient(inputs)
    if not results or not wanted:
        return ()
    ones = [torch.ones_like(result) for result in results]
    found = torch.autograd.grad(results, wanted, ones, allow_unused=True)
    return leaves(found, device, with_strides=False)


def _with_gradient(tree: object) -> list[torch.Tensor]:
    return [
        leaf
        for leaf in torch.utils._pytree.tree_leaves(tree)
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    ]


def mistakes(op: Any) -> Outcome:
    """Operands that torch refuses on a GPU: whether each is refused in its class and words."""
    found: list[str] = []
    with neusight.forecast_on(GPU):
        # Those without words are no mistakes where an operator is called as a function.
        wanted = [mistake for mistake in op.error_inputs("cuda") if mistake.error_regex]
        for number, mistake in enumerate(wanted, 1):
            drawn = mistake.sample_input
            try:
                op(drawn.input, *drawn.args, **drawn.kwargs)
            except mistake.error_type as error:
                if re.search(mistake.error_regex, str(error)):
                    continue
                words = f"in other words: {error}"
            except Exception as error:
                words = f"as another error: {type(error).__name__}: {error}"
            else:
                words = f"not: {mistake.error_regex}"
            found.append(f"mistake {number} of {len(wanted)} is refused {words}")
    return Outcome("difference" if found else "ok", plain("; ".join(found)), VERSION)


def list_operator(op: Any, dtype: torch.dtype) -> Outcome:
    """A `torch._foreach_*`, and its form in place."""

    def draw(device: str) -> Iterator[Sample]:
        for drawn in op.sample_inputs(device, dtype, noncontiguous=False):
            inputs = (drawn.input, drawn.args, [*drawn.kwargs.items()])
            given = leaves(inputs, device, with_values=True)
            for method in (op.method_variant, op.inplace_variant):
                if method is not None:
                    yield Sample(given, partial(_call, method, drawn, device, False))

    return compared(draw)


def module(info: Any, dtype: torch.dtype) -> Outcome:
    """A module in training and in evaluation: results, and gradients of inputs and parameters."""

    def draw(device: str) -> Iterator[Sample]:
        for is_training in (True, False):
            for drawn in info.module_inputs_func(
                info, device=device, dtype=dtype, requires_grad=True, training=is_training
            ):
                parts = [p for p in (drawn.constructor_input, drawn.forward_input) if p]
                inputs = [(part.args, [*part.kwargs.items()]) for part in parts]
                given = (DEVICE, *leaves((is_training, inputs), device, with_values=True))
                run = partial(_module_call, info, drawn, device, dtype, is_training)
                yield Sample(given, run)

    return compared(draw)


def _module_call(
    info: Any, drawn: Any, device: str, dtype: torch.dtype, is_training: bool
) -> Result:
    made, forward = drawn.constructor_input, drawn.forward_input
    net = info.module_cls(*made.args, **made.kwargs).to(device, dtype).train(is_training)
    if forward is None:
        return Result(leaves(dict(net.state_dict()), device))
    out = net(*forward.args, **forward.kwargs)
    inputs = (forward.args, forward.kwargs, list(net.parameters()))
    return Result(leaves(out, device), _gradients(out, inputs, device))


def optimizer(info: Any) -> Outcome:
    """An optimizer with each of its flags: two steps, then parameters and states."""

    def draw(device: str) -> Iterator[Sample]:
        for drawn in optimizer_inputs("cuda", torch.float32, info):
            given = (DEVICE, *leaves([*drawn.kwargs.items()], device, with_values=True))
            yield Sample(given, partial(_steps, info, drawn, device))

    return compared(draw, is_whole=True)


def _steps(info: Any, drawn: Any, device: str) -> Result:
    flags = dict(drawn.kwargs)
    if device == "cpu":
        flags.pop("capturable", None)
    sizes = ((8, 4), (8, 8))  # Muon takes matrices alone
    parameters = [torch.rand(size, device=device, requires_grad=True) for size in sizes]
    if flags.get("differentiable"):  # steps are part of the graph: no leaves
        parameters = [parameter.clone() for parameter in parameters]
    own = info.optim_cls(parameters, **flags)
    for _ in range(2):
        for parameter in parameters:
            gradient = torch.rand_like(parameter)
            parameter.grad = gradient.to_sparse() if info.only_supports_sparse_grads else gradient
        own.step(lambda: parameters[0].sum())
    return Result((*leaves(parameters, device), *_states(own, drawn.kwargs, device)))


def _states(own: torch.optim.Optimizer, flags: dict[str, Any], device: str) -> Iterator[Leaf]:
    """An optimizer's states. Steps are counted on the CPU unless a GPU needs them."""
    if isinstance(own, torch.optim.LBFGS):
        return  # how many it keeps hangs on the loss
    is_on_device = bool(flags.get("capturable") or flags.get("fused"))
    for state in own.state.values():
        for name, value in sorted(state.items()):
            [leaf] = leaves(value, device)
            if (
                name in ("step", "mu_product")
                and device == "cpu"
                and not isinstance(own, torch.optim.ASGD)
            ):
                leaf = replace(leaf, is_on_device=is_on_device)
            yield leaf
