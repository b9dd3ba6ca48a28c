"""What a formula reads by name, and how a call's arguments reach it."""

from __future__ import annotations

import pytest

from neusight.ops.formula import KINDS, Formula, Parameter, bound, parameters_of
from neusight.predictors.errors import RegistrationError
from neusight.predictors.kernel import Kernel
from neusight.recording.recording import Argument, MathMode, OpSignature, TensorSpec

X = TensorSpec((2, 3), (3, 1), "float32")


def call(**arguments: Argument) -> OpSignature:
    return OpSignature("mylib::op", "default", tuple(arguments.items()), (X,))


def formula(
    call: OpSignature,
    math: MathMode,
    *,
    x: TensorSpec,
    dims: tuple[int, ...] = (),
    scale: float = 1.0,
    mask: TensorSpec | None = None,
) -> list[Kernel]:
    return []


def read(kind: str, value: Argument) -> Argument:
    return KINDS[kind].read(value)


def test_keyword_only_parameters_are_arguments_of_the_op() -> None:
    parameters = parameters_of(formula)

    assert parameters.named == (
        Parameter("x", "TensorSpec"),
        Parameter("dims", "tuple[int, ...]", True),
        Parameter("scale", "float", True),
        Parameter("mask", "TensorSpec | None", True),
    )
    assert not parameters.takes_others


def test_arguments_are_bound_by_name_whatever_their_order() -> None:
    given = call(mask=None, scale=2, x=X, dims=(1,), unread="text")

    assert bound(parameters_of(formula), given) == {
        "x": X,
        "dims": (1,),
        "scale": 2.0,
        "mask": None,
    }


def test_an_optional_argument_that_the_op_lacks_keeps_the_formulas_default() -> None:
    assert bound(parameters_of(formula), call(x=X, scale=None)) == {"x": X}


def test_others_are_handed_over_as_they_are_recorded() -> None:
    def rest(
        call: OpSignature, math: MathMode, *, x: TensorSpec, **others: Argument
    ) -> list[Kernel]:
        return []

    assert bound(parameters_of(rest), call(x=X, y=X, math=1)) == {"x": X, "y": X}


def test_a_missing_argument_is_named_with_those_there_are() -> None:
    with pytest.raises(TypeError, match="mylib::op has no argument x, only y, z"):
        bound(parameters_of(formula), call(y=X, z=1))


def test_an_argument_of_another_type_is_named_with_its_value() -> None:
    with pytest.raises(TypeError, match="mylib::op: argument x is not a tensor but 3"):
        bound(parameters_of(formula), call(x=3))


def test_the_old_form_reads_nothing_by_name() -> None:
    parameters = parameters_of(lambda signature, math: [])

    assert parameters.named == ()
    assert parameters_of(lambda *both: []).named == ()


@pytest.mark.parametrize("wrong", [lambda *, x: [], lambda call, math, x: []])
def test_a_formula_without_a_place_for_the_call_is_refused(wrong: Formula) -> None:
    with pytest.raises(RegistrationError, match=r"def formula\(call, math, \*, x, y\)"):
        parameters_of(wrong)


def test_the_math_mode_is_given_to_those_that_read_it() -> None:
    assert parameters_of(formula).takes_math
    assert parameters_of(lambda *both: []).takes_math
    assert not parameters_of(lambda call, *, x: []).takes_math


def test_an_annotation_that_no_argument_has_is_refused() -> None:
    def odd(call: OpSignature, math: MathMode, *, x: dict[str, int]) -> list[Kernel]:
        return []

    with pytest.raises(RegistrationError, match=r"parameter x is annotated 'dict\[str, int\]'"):
        parameters_of(odd)


def test_annotations_may_be_objects_or_absent() -> None:
    def plain(call, math, *, x, dim, sizes, mask):  # type: ignore[no-untyped-def]
        return []

    plain.__annotations__ = {
        "x": TensorSpec,
        "sizes": tuple[int, ...],
        "mask": TensorSpec | None,
    }

    assert [parameter.kind for parameter in parameters_of(plain).named] == [
        "TensorSpec",
        "Argument",
        "tuple[int, ...]",
        "TensorSpec | None",
    ]


def test_lists_are_read_leniently() -> None:
    assert read("tuple[int, ...]", 3) == (3,)
    assert read("tuple[int, ...]", None) == ()
    assert read("tuple[TensorSpec, ...]", X) == (X,)
    assert read("tuple[TensorSpec, ...]", (X, None, (X,))) == (X, X)
    assert read("tuple[TensorSpec | None, ...]", (X, None)) == (X, None)
    assert read("tuple[bool, ...]", (True, False)) == (True, False)


def test_single_values_are_read_strictly_unless_they_may_be_none() -> None:
    assert (read("int", 3), read("float", 3), read("bool", True)) == (3, 3.0, True)
    assert (read("int | None", None), read("bool | None", None)) == (None, None)
    assert (read("str", "float16"), read("str", None)) == ("float16", "")
    for kind in ("int", "float", "bool", "tuple[TensorSpec | None, ...]"):
        with pytest.raises(TypeError, match="not a"):
            read(kind, "text")
