"""The op registry: which function says what an op launches, and what happens without one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from neusight.ops.formula import Formula, Parameters, bound, parameters_of
from neusight.ops.made_contiguous import with_copies
from neusight.ops.schema import misfits
from neusight.predictors.errors import RegistrationError
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.recording.recording import MathMode, OpSignature, TensorSpec

__all__ = [
    "Formula",
    "Mapping",
    "formulas",
    "is_mapped",
    "kernels_of",
    "map_op",
    "mapped_ops",
    "register_op",
    "unregister_op",
    "why_unmapped",
]

AnyFormula = TypeVar("AnyFormula", bound=Formula)


class _Registered(NamedTuple):
    """A formula and what it reads by name."""

    formula: Formula
    parameters: Parameters

    def kernels(self, signature: OpSignature, math: MathMode) -> tuple[Kernel, ...]:
        """What it says of the call, after the copies of operands that are made contiguous."""
        call, copies = with_copies(signature)
        given = (call, math) if self.parameters.takes_math else (call,)
        kernels = tuple(self.formula(*given, **bound(self.parameters, call)))
        return copies + kernels if kernels else kernels


_formulas: dict[str, _Registered] = {}


class Mapping(NamedTuple):
    """The kernels of an op; where `is_mapped` is false they are a guess and `reason` says why."""

    kernels: tuple[Kernel, ...]
    is_mapped: bool
    reason: str = ""


def register_op(*packets: object) -> Callable[[AnyFormula], AnyFormula]:
    """Registers the decorated function as the one that knows the kernels of these ops.

    A packet is a `torch.ops.namespace.name`, one of its overloads, or its name as text. A name
    without an overload stands for all overloads and for the in-place form; a name with one
    ("aten::add.out") goes before it; a text that ends in "*" stands for all names that begin so
    and have no function of their own.

    The function takes the call, the math mode if its kernels depend on it (TF32, cuDNN's search)
    and, after a `*`, the arguments of the op that it reads, by the names that the op's schema gives
    them. Where torch is loaded and knows the op,
    RegistrationError says which name or type is not in the schema and which tensor was forgotten.

    >>> from neusight.predictors.kernel import Kernel
    >>> from neusight.recording.recording import TensorSpec
    >>> @register_op("mylib::swish")
    ... def swish(call, *, x: TensorSpec):
    ...     return [Kernel.elementwise("swish", x.numel, dtype=x.dtype)]
    >>> is_mapped("mylib::swish")
    True
    >>> unregister_op("mylib::swish")
    """
    names = [_qualified_name(packet) for packet in packets]
    if not names:
        raise RegistrationError('register_op needs an op, for example register_op("mylib::swish").')

    def register(formula: AnyFormula) -> AnyFormula:
        registered = _checked(names, formula)
        _formulas.update(dict.fromkeys(names, registered))
        return formula

    return register


def _checked(names: list[str], formula: Formula) -> _Registered:
    """RegistrationError if the formula cannot be the one of these ops."""
    if not callable(formula):
        raise RegistrationError(f"register_op({names[0]!r}) decorates a function, not {formula!r}.")
    for name in names:
        if name in _formulas or names.count(name) > 1:
            raise RegistrationError(
                f"Op {name} is registered already; unregister_op({name!r}) forgets it."
            )
    parameters = parameters_of(formula)
    wrong = misfits(names, parameters, apart=_formulas.keys())
    if wrong and not _is_of_another_torch(formula):
        label = getattr(formula, "__name__", repr(formula))
        raise RegistrationError(
            f"{label} does not fit {', '.join(names)}: {'; '.join(wrong[:_SHOWN])}. An op whose "
            "arguments differ takes a function of its own, with their names after a `*`."
        )
    return _Registered(formula, parameters)


#: Misfits that an error names; the overloads of an op have mostly the same.
_SHOWN = 2

#: The torch whose schemas the formulas of this package are written for.
_WRITTEN_FOR = "2.13."


def _is_of_another_torch(formula: Formula) -> bool:
    """Whether the formula is ours and torch is not the one it was written for. An op that is
    declared otherwise there then counts as unmapped, and nothing else is lost."""
    version = str(getattr(sys.modules.get("torch"), "__version__", ""))
    is_ours = (getattr(formula, "__module__", None) or "").startswith(f"{__package__}.")
    return is_ours and not version.startswith(_WRITTEN_FOR)


def unregister_op(packet: object) -> None:
    """Forgets the function registered for this op."""
    name = _qualified_name(packet)
    if _formulas.pop(name, None) is None:
        raise RegistrationError(f"Op {name} is not registered.")


def mapped_ops() -> tuple[str, ...]:
    """Every registered name, sorted."""
    return tuple(sorted(_formulas))


def formulas() -> dict[str, Formula]:
    """What is registered now, by name."""
    return {name: registered.formula for name, registered in _formulas.items()}


def is_mapped(op: str, overload: str = "default") -> bool:
    """Whether a function is registered for the op ("aten::add")."""
    return _formula_of(op, overload) is not None


def kernels_of(signature: OpSignature, math: MathMode) -> tuple[Kernel, ...]:
    """The kernels that the op launches, in order; views launch none.

    An op that is not registered is one kernel of class UNKNOWN that moves all its tensors.
    """
    return map_op(signature, math).kernels


def map_op(signature: OpSignature, math: MathMode) -> Mapping:
    """The kernels of an op and whether they are known or a guess. Never raises."""
    if _is_host_only(signature):
        return Mapping((), True)
    registered = _formula_of(signature.op, signature.overload)
    if registered is None:
        return Mapping((_unknown(signature),), False, "no function is registered for it")
    try:
        return Mapping(registered.kernels(signature, math), True)
    except Exception as error:  # a forecast goes on, and reports what it could not map
        return Mapping((_unknown(signature),), False, f"{type(error).__name__}: {error}")


def why_unmapped(signature: OpSignature) -> str:
    """Why the kernels of an op are unknown; "" where they are known."""
    return map_op(signature, MathMode()).reason


def _formula_of(op: str, overload: str) -> _Registered | None:
    candidates = [f"{op}.{overload}", op]
    if op.endswith("_") and not op.endswith("__"):
        candidates += [f"{op[:-1]}.{overload}", op[:-1]]
    named = next((_formulas[name] for name in candidates if name in _formulas), None)
    return named or next((_formulas[name] for name in _beginnings(op) if name in _formulas), None)


def _beginnings(op: str) -> Iterator[str]:
    """The names with a star that stand for the op, the longest first. They end where a word of
    its name does."""
    for end in range(len(op), 0, -1):
        if op[end - 1] in ":_":
            yield f"{op[:end]}*"


def _is_host_only(signature: OpSignature) -> bool:
    tensors = signature.input_tensors + signature.output_tensors
    return bool(tensors) and all(spec.device == "cpu" for spec in tensors)


def _unknown(signature: OpSignature) -> Kernel:
    inputs = [spec for spec in signature.input_tensors if spec.device != "cpu"]
    outputs = [spec for spec in signature.output_tensors if spec.device != "cpu"]
    largest = max(inputs + outputs, key=_safe_bytes, default=TensorSpec((), (), "float32"))
    return Kernel.rows(
        KernelClass.UNKNOWN,
        signature.op.removeprefix("aten::").strip("_") or signature.op,
        1,
        max(0, largest.numel),
        dtype=largest.dtype,
        bytes_read=sum(map(_safe_bytes, inputs)),
        bytes_written=sum(map(_safe_bytes, outputs)),
        scatters=any(word in signature.op for word in _SCATTERING),
    )


#: Words in the name of an op without a description, which is all that is known of it: it writes
#: where others write too.
_SCATTERING = ("scatter", "index_put", "index_add", "bincount", "histc")


def _safe_bytes(spec: TensorSpec) -> int:
    try:
        return max(0, spec.num_bytes)
    except (TypeError, ValueError):
        return 0


def _qualified_name(packet: object) -> str:
    """The "namespace::name" or "namespace::name.overload" of a text, packet or overload."""
    if isinstance(packet, str):
        name = packet
    else:
        name = getattr(packet, "_qualified_op_name", "")  # torch._ops.OpOverloadPacket
        schema = getattr(packet, "_schema", None)  # torch._ops.OpOverload
        if schema is not None:
            name = f"{schema.name}.{schema.overload_name or 'default'}"
    namespace, separator, rest = name.partition("::") if isinstance(name, str) else ("", "", "")
    if not (namespace and separator and rest) or " " in name:
        raise RegistrationError(
            f"register_op takes torch.ops.namespace.name, an overload of it, or the text "
            f'"namespace::name"; got {packet!r}.'
        )
    return name
