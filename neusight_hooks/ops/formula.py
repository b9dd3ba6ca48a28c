"""A formula's parameters, and how a call's arguments are bound to them by name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple, get_args

from neusight.predictors.errors import RegistrationError
from neusight.predictors.kernel import Kernel
from neusight.recording.recording import Argument, OpSignature, TensorSpec, flattened

#: What `register_op` registers: a pure function of shapes. It takes the call, the math mode where
#: its kernels depend on it and, as keyword-only parameters, those arguments of the op that it
#: reads, by their names in torch.
Formula = Callable[..., Iterable[Kernel]]

Reader = Callable[[Argument], Argument]


class Kind(NamedTuple):
    """What a parameter takes: the types of torch's schemas that fit, and how a value is read."""

    torch_types: frozenset[str]
    read: Reader


class Parameter(NamedTuple):
    """An argument of the op that a formula reads; an optional one may be absent from the op."""

    name: str
    kind: str
    is_optional: bool = False


class Parameters(NamedTuple):
    """What a formula reads by name; `takes_others` where it takes all other arguments too."""

    named: tuple[Parameter, ...] = ()
    takes_others: bool = False
    positional: tuple[str, ...] = ()
    takes_math: bool = True

    @property
    def names_tensors(self) -> bool:
        """Whether it gives a tensor a meaning of its own."""
        return any("TensorSpec" in parameter.kind for parameter in self.named)


def _tensor(value: Argument) -> Argument:
    if not isinstance(value, TensorSpec):
        raise TypeError(f"not a tensor but {value!r}")
    return value


def _tensor_or_none(value: Argument) -> Argument:
    return value if isinstance(value, TensorSpec) else None


def _some_tensors(value: Argument) -> Argument:
    if not isinstance(value, tuple):
        raise TypeError(f"not a list but {value!r}")
    return tuple(map(_tensor_or_none, value))


def _integer(value: Argument) -> Argument:
    if not isinstance(value, (int, float)):
        raise TypeError(f"not an integer but {value!r}")
    return int(value)


def _number(value: Argument) -> Argument:
    if not isinstance(value, (int, float)):
        raise TypeError(f"not a number but {value!r}")
    return float(value)


def _flag(value: Argument) -> Argument:
    if not isinstance(value, (bool, int)):
        raise TypeError(f"not a flag but {value!r}")
    return bool(value)


def _integers(value: Argument) -> Argument:
    if isinstance(value, (int, float)):
        return (int(value),)
    items = value if isinstance(value, tuple) else ()
    return tuple(int(item) for item in items if isinstance(item, (int, float)))


def _kind(torch_types: str, read: Reader) -> Kind:
    return Kind(frozenset(torch_types.split()), read)


#: The annotations that a formula's parameters may have. Dtypes, devices, layouts and memory
#: formats are recorded as text.
KINDS: dict[str, Kind] = {
    "TensorSpec": _kind("Tensor", _tensor),
    "TensorSpec | None": _kind("Tensor Optional[Tensor]", _tensor_or_none),
    "tuple[TensorSpec, ...]": _kind(
        "Tensor Optional[Tensor] List[Tensor] List[Optional[Tensor]] Optional[List[Tensor]] "
        "List[List[Tensor]]",
        lambda value: tuple(flattened(value, TensorSpec)),
    ),
    "tuple[TensorSpec | None, ...]": _kind("List[Tensor] List[Optional[Tensor]]", _some_tensors),
    "int": _kind("int SymInt", _integer),
    "int | None": _kind(
        "int SymInt Optional[int] Optional[SymInt]",
        lambda value: int(value) if isinstance(value, (int, float)) else None,
    ),
    "float": _kind("float number int", _number),
    "bool": _kind("bool", _flag),
    "bool | None": _kind(
        "bool Optional[bool]", lambda value: bool(value) if isinstance(value, (bool, int)) else None
    ),
    "str": _kind(
        "str Optional[str] Device Optional[Device] Layout Optional[Layout] MemoryFormat "
        "Optional[MemoryFormat] ScalarType Optional[ScalarType]",
        lambda value: value if isinstance(value, str) else "",
    ),
    "tuple[int, ...]": _kind(
        "int Optional[int] List[int] List[SymInt] Optional[List[int]] Optional[List[SymInt]]",
        _integers,
    ),
    "tuple[bool, ...]": _kind(
        "List[bool]", lambda value: tuple(map(bool, value)) if isinstance(value, tuple) else ()
    ),
    "Argument": Kind(frozenset(), lambda value: value),  # of any type, as it was recorded
}

_FORM = (
    "write it as `def formula(call, *, x, y)` or `def formula(call, math, *, x, y)`, with the "
    "names of the op's arguments"
)


def parameters_of(formula: Formula) -> Parameters:
    """What a formula reads by name: its keyword-only parameters, and `**others` for the rest."""
    named: list[Parameter] = []
    positional: list[str] = []
    takes_others = takes_any = False
    for parameter in inspect.signature(formula).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY:
            optional = parameter.default is not parameter.empty
            named.append(Parameter(parameter.name, _kind_of(formula, parameter), optional))
        elif parameter.kind is parameter.VAR_KEYWORD:
            takes_others = True
        elif parameter.kind is parameter.VAR_POSITIONAL:
            takes_any = True
        elif parameter.default is parameter.empty or len(positional) < 2:
            positional.append(parameter.name)
    if len(positional) > 2 or not (positional or takes_any):
        raise RegistrationError(
            f"{_name(formula)} takes the call, its math mode where it reads that and, by keyword "
            f"only, the op's arguments that it reads; it has the positional parameters "
            f"{', '.join(positional) or 'none'}: {_FORM}."
        )
    takes_math = takes_any or len(positional) == 2
    return Parameters(tuple(named), takes_others, tuple(positional), takes_math)


def _kind_of(formula: Formula, parameter: inspect.Parameter) -> str:
    annotation = parameter.annotation
    if annotation is parameter.empty:
        return "Argument"
    words = annotation if isinstance(annotation, str) else _words(annotation)
    if words not in KINDS:
        raise RegistrationError(
            f"{_name(formula)}: parameter {parameter.name} is annotated {words!r}; a formula's "
            f"parameters are one of {', '.join(KINDS)}."
        )
    return words


def _words(annotation: object) -> str:
    """The annotation as it is written: classes by their names, without modules."""
    is_class = isinstance(annotation, type) and not get_args(annotation)
    text = getattr(annotation, "__name__", "") if is_class else str(annotation)
    return re.sub(r"\b\w+\.", "", text)


def _name(formula: Formula) -> str:
    return getattr(formula, "__name__", repr(formula))


def bound(parameters: Parameters, signature: OpSignature) -> dict[str, Argument]:
    """The call's arguments by the names that the formula gives them; TypeError if one is absent or
    of another type. An optional one that is absent keeps the formula's own default."""
    given = signature.by_name
    found: dict[str, Argument] = {}
    for name, kind, is_optional in parameters.named:
        if name in given:
            try:
                found[name] = KINDS[kind].read(given[name])
            except TypeError as error:
                if not (is_optional and given[name] is None):
                    raise TypeError(f"{signature.op}: argument {name} is {error}") from None
        elif not is_optional:
            raise TypeError(f"{signature.op} has no argument {name}, only {', '.join(given)}")
    if parameters.takes_others:
        taken = {*found, *parameters.positional}
        found.update((name, value) for name, value in given.items() if name not in taken)
    return found
