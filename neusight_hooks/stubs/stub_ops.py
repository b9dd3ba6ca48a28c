"""Ops that a package's own kernels are: declared to torch, with what they return and no more."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, cast

import torch

P = ParamSpec("P")
R = TypeVar("R")

#: One for each namespace; torch leaves the class without annotations.
_libraries: dict[str, Any] = {}
_make_library: Any = torch.library.Library

#: The functions and classes that the program used, by package, in the order of their first use.
_used: dict[str, dict[str, None]] = {}


def make_op(schema: str, fake: Callable[..., Any]) -> Any:
    """Declares "package::name(...) -> ..." to torch and gives the op. `fake` makes what it returns
    out of its arguments; which kernels it launches says the formula of that name in
    `neusight.ops`. It lives as long as the process, as torch's own ops do."""
    name, _, arguments = schema.partition("(")
    namespace, _, short = name.partition("::")
    library = _libraries.get(namespace)
    if library is None:
        library = _libraries[namespace] = _make_library(namespace, "FRAGMENT")
    library.define(f"{short}({arguments}")
    torch.library.register_fake(name, fake, lib=library)
    return getattr(getattr(torch.ops, namespace), short)


def differentiable(
    op: Any,
    backward: Callable[..., Any],
    *,
    saves: Callable[[Sequence[Any], Any], Sequence[torch.Tensor | None]],
) -> None:
    """Gives the op a backward pass: `saves` says of its inputs and its output which tensors are
    kept, `backward(saved, inputs, *gradients)` the gradient of each input. Of `inputs` only what is
    no tensor is passed, so that nothing else is kept alive."""

    def setup(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        ctx.save_for_backward(*saves(inputs, output))
        ctx.set_materialize_grads(False)
        ctx.given = [None if isinstance(item, torch.Tensor) else item for item in inputs]

    def run(ctx: Any, *gradients: Any) -> Any:
        return backward(ctx.saved_tensors, ctx.given, *gradients)

    namespace = op._qualified_op_name.partition("::")[0]
    torch.library.register_autograd(
        op._qualified_op_name, run, setup_context=setup, lib=_libraries[namespace]
    )


def counted(package: str, label: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Notes for the summary that the program calls this function, or makes such an object; not what
    stubs call of each other."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        reported = label or function.__qualname__.removesuffix(".__init__")

        @functools.wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            if torch.compiler.is_compiling():  # Dynamo calls it while it traces, and leaves it out
                _record_compiled(package, reported)
            elif not str(sys._getframe(1).f_globals.get("__name__")).startswith(__package__):
                count_use(package, reported)
            return function(*args, **kwargs)

        return cast("Callable[P, R]", called)

    return decorate


def stub(package: str, parameters: str, label: str = "") -> Callable[[Callable[..., Any]], Any]:
    """The function with the parameters that the package's own has, "q, k, causal=False", called
    with those that it names itself, or with all of them where it ends in `**settings`; counted."""

    def decorate(function: Callable[..., Any]) -> Any:
        own = inspect.signature(function).parameters.values()
        known = {item.name for item in own}
        takes_all = any(item.kind is item.VAR_KEYWORD for item in own)
        given = inspect.signature(eval(f"lambda {parameters}: None")).parameters.values()
        passed = ", ".join(
            f"{item.name}={item.name}"
            for item in given
            if item.kind is not item.VAR_KEYWORD and (takes_all or item.name in known)
        )
        # A frame of the stub's own file, as one of the program's would be taken for its line.
        source = f"lambda {parameters}: _function({passed})"
        code = compile(source, function.__code__.co_filename, "eval")
        called = eval(code, {"__name__": function.__module__, "_function": function})
        called.__name__, called.__qualname__ = function.__name__, function.__qualname__
        counting = counted(package, label or function.__qualname__.removesuffix(".__init__"))(
            called
        )
        named = functools.update_wrapper(counting, function, updated=())
        named.__wrapped__ = called
        return named

    return decorate


def count_use(package: str, label: str) -> None:
    """Notes for the summary that the program uses what goes by this label."""
    _used.setdefault(package, {})[label] = None


def _record_compiled(package: str, label: str) -> None:
    count_use(package, label)


# As torch.compiler.assume_constant_result does, which imports all of Dynamo for it. Without it a
# compiled call is not named in the summary.
_record_compiled._dynamo_marked_constant = True  # type: ignore[attr-defined]


def used_functions() -> dict[str, list[str]]:
    """What was used since this was asked last, by package."""
    found = {package: list(functions) for package, functions in _used.items()}
    _used.clear()
    return found


def names(*objects: Any, **others: Any) -> dict[str, Any]:
    """Functions and classes by their own names, and others by those given."""
    return {**{item.__name__: item for item in objects}, **others}
