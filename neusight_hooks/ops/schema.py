"""Whether a formula fits the schema that torch has of its op: names, types, and no tensor missed.

Torch is asked only where it is loaded already; pricing a recording needs no schema, because the
recording holds every argument by its name.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from neusight.ops.formula import KINDS, Parameter, Parameters


class SchemaArgument(NamedTuple):
    """An argument of an overload; `is_out` where it only takes a result."""

    name: str
    torch_type: str
    is_out: bool


class Signature(NamedTuple):
    """One overload as torch declares it; `text` is the whole schema."""

    name: str
    arguments: tuple[SchemaArgument, ...]
    text: str


def signatures_of(op: str) -> tuple[Signature, ...]:
    """The overloads that a registered name stands for: all and the in-place form's, or the one
    named. Empty where torch is not loaded or does not know the op."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "_C"):
        return ()
    packet, _, overload = op.partition(".")
    names = [packet] if packet.endswith("_") else [packet, f"{packet}_"]
    return tuple(
        signature
        for name in names
        for signature in _overloads(torch, name)
        if not overload or signature.name == f"{name}.{overload}"
    )


def _overloads(torch: Any, packet: str) -> Iterator[Signature]:
    # torch._C: what torch.ops.<namespace>.<name>.overloads() asks; it lists TorchScript's own
    # overloads too (max of two ints), which the dispatcher does not know.
    for schema in torch._C._jit_get_schemas_for_operator(packet):
        overload = schema.overload_name
        qualified = f"{packet}.{overload}" if overload else packet
        if not torch._C._dispatch_has_kernel(qualified):
            continue
        arguments = tuple(
            SchemaArgument(argument.name, str(argument.real_type), argument.is_out)
            for argument in schema.arguments
        )
        yield Signature(f"{packet}.{overload or 'default'}", arguments, str(schema))


def misfits(ops: Sequence[str], parameters: Parameters, apart: Collection[str] = ()) -> list[str]:
    """What is wrong with registering a formula of these parameters for the ops, in sentences.
    Overloads in `apart` have a formula of their own."""
    signatures = [
        signature
        for op in ops
        for signature in signatures_of(op)
        if signature.name == op or signature.name not in apart
    ]
    found = [text for signature in signatures for text in _misfits(signature, parameters)]
    known = {argument.name for signature in signatures for argument in signature.arguments}
    return found + [
        f"no overload of {', '.join(ops)} has an argument '{parameter.name}'"
        for parameter in parameters.named
        if signatures and parameter.is_optional and parameter.name not in known
    ]


def _misfits(signature: Signature, parameters: Parameters) -> Iterator[str]:
    types = {argument.name: argument.torch_type for argument in signature.arguments}
    for name in parameters.positional:
        if name in types:
            yield f"'{name}' is an argument of {signature.text}: it belongs after a `*`"
    for parameter in parameters.named:
        torch_type = types.get(parameter.name)
        if torch_type is not None and not _fits(parameter, torch_type):
            yield (f"'{parameter.name}' is {torch_type} in {signature.text}, not {parameter.kind}")
        elif torch_type is None and not parameter.is_optional:
            yield f"there is no argument '{parameter.name}' in {signature.text}"
    if parameters.names_tensors and not parameters.takes_others:
        yield from _missed(signature, {parameter.name for parameter in parameters.named})


def _fits(parameter: Parameter, torch_type: str) -> bool:
    accepted = KINDS[parameter.kind].torch_types
    inner = torch_type.removeprefix("Optional[").removesuffix("]")
    return not accepted or torch_type in accepted or (parameter.is_optional and inner in accepted)


def _missed(signature: Signature, names: Collection[str]) -> Iterator[str]:
    """A tensor without a name in the formula is one that it may mistake another for."""
    for argument in signature.arguments:
        if "Tensor" in argument.torch_type and not argument.is_out and argument.name not in names:
            yield (
                f"the formula does not name the tensor '{argument.name}' of {signature.text}: "
                "name it, or end with `**others` if only the sum of the others counts"
            )
