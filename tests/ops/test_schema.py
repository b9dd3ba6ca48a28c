"""Every formula against torch's own schemas, and what does not fit is refused."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from neusight import ops
from neusight.ops import formulas, map_op, register_op, unregister_op
from neusight.ops.formula import Formula, parameters_of
from neusight.ops.schema import misfits, signatures_of
from neusight.predictors.errors import RegistrationError
from neusight.predictors.kernel import Kernel
from neusight.recording.recording import MathMode, OpSignature, TensorSpec
from neusight.stubs.catalogue import CATALOGUE

#: What declares the ops that torch itself declares only when it is asked to.
DECLARERS = (
    "torch.distributed._functional_collectives",
    "torch.distributed._symmetric_memory",
    "torch.distributed.fsdp",
    "torch.nn.modules.linear_cross_entropy",
)

#: Registered names that torch answers without the dispatcher, or dispatches in other versions.
WITHOUT_SCHEMA = {
    "aten::is_non_overlapping_and_dense",
    "aten::is_nonoverlapping_and_dense",
    "aten::is_strides_like_format",
    "aten::layout",
    "aten::prim_layout",
    "c10d::wait",
    "prim::device",
    "semi_structured::cusparselt_mm",
    "semi_structured::cutlass_mm",
    "prim::layout",
}


def by_formula() -> Iterator[tuple[Formula, list[str]]]:
    for module in DECLARERS:
        importlib.import_module(module)
    names: dict[Formula, list[str]] = {}
    for name, formula in formulas().items():
        names.setdefault(formula, []).append(name)
    yield from names.items()


def test_every_formula_fits_the_schemas_of_its_ops() -> None:
    own = set(formulas())

    wrong = {
        formula.__name__: found
        for formula, names in by_formula()
        if (found := misfits(names, parameters_of(formula), apart=own))
    }

    assert wrong == {}


def test_every_registered_op_is_one_that_torch_has() -> None:
    named = {name for _, names in by_formula() for name in names if not name.endswith("*")}
    # What is recorded of sparse tensors has an overload of ours.
    unknown = {name for name in named if not signatures_of(name.removesuffix(".sparse"))}

    # Nor do packages that are replaced have their ops in torch, but once a stub is loaded.
    spaces = {op.partition("::")[0] for op in torch._C._dispatch_get_all_op_names()}
    spaces -= CATALOGUE.keys()
    of_torch = {name for name in unknown if name.partition("::")[0] in spaces | {"prim"}}

    assert of_torch - WITHOUT_SCHEMA == set()


def test_the_bias_is_never_taken_for_the_left_operand() -> None:
    """aten::addmm(self, mat1, mat2): its `self` is the bias, that of mm the left operand."""

    def product(
        call: OpSignature, math: MathMode, *, self: TensorSpec, mat2: TensorSpec
    ) -> list[Kernel]:
        return [Kernel.gemm(self.shape[0], mat2.shape[1], self.shape[1], dtype=self.dtype)]

    with pytest.raises(
        RegistrationError,
        match=r"product does not fit aten::_addmm_activation\.out: the formula does not name the "
        r"tensor 'mat1' of aten::_addmm_activation\.out\(.*name it, or end with `\*\*others`",
    ):
        register_op("aten::_addmm_activation.out")(product)


def test_an_argument_that_the_op_does_not_have_is_refused() -> None:
    def linear(
        call: OpSignature, math: MathMode, *, input: TensorSpec, weight: TensorSpec
    ) -> list[Kernel]:
        return []

    with pytest.raises(RegistrationError, match=r"there is no argument 'input' in aten::mm\.out"):
        register_op("aten::mm.out")(linear)


def test_an_optional_argument_is_one_that_some_overload_has() -> None:
    def scan(call: OpSignature, math: MathMode, *, self: TensorSpec, dims: int = 0) -> list[Kernel]:
        return []

    with pytest.raises(RegistrationError, match=r"no overload of aten::cumsum\.out has an"):
        register_op("aten::cumsum.out")(scan)


def test_a_type_that_is_not_that_of_the_schema_is_refused() -> None:
    def scan(
        call: OpSignature, math: MathMode, *, self: TensorSpec, dim: TensorSpec
    ) -> list[Kernel]:
        return []

    with pytest.raises(RegistrationError, match=r"'dim' is int in aten::cumsum\.out\(.*not Tensor"):
        register_op("aten::cumsum.out")(scan)


def test_arguments_of_the_op_before_the_star_are_refused() -> None:
    with pytest.raises(RegistrationError, match=r"'self' is an argument of .* after a `\*`"):
        register_op("aten::cumsum.out")(lambda self, dim: [])


def test_the_in_place_form_is_one_of_the_overloads() -> None:
    assert {"aten::relu.default", "aten::relu_.default"} <= {
        signature.name for signature in signatures_of("aten::relu")
    }
    assert [signature.name for signature in signatures_of("aten::relu.out")] == ["aten::relu.out"]


def test_overloads_of_torchscript_are_left_out() -> None:
    names = {signature.name for signature in signatures_of("aten::max")}

    assert "aten::max.other" in names
    assert "aten::max.int" not in names


def test_an_op_that_torch_does_not_know_fits_everything() -> None:
    def formula(call: OpSignature, math: MathMode, *, anything: int) -> list[Kernel]:
        return []

    assert misfits(["nobody::knows"], parameters_of(formula)) == []


def test_an_own_op_is_checked_as_those_of_torch_are() -> None:
    library = torch.library.Library("schematest", "DEF")
    library.define("scaled(Tensor x, Tensor scale) -> Tensor")
    library.impl("scaled", lambda x, scale: x * scale, "CompositeExplicitAutograd")

    def forgets(call: OpSignature, math: MathMode, *, x: TensorSpec) -> list[Kernel]:
        return [Kernel.elementwise("scaled", x.numel, dtype=x.dtype)]

    def fits(
        call: OpSignature, math: MathMode, *, x: TensorSpec, scale: TensorSpec
    ) -> list[Kernel]:
        return [Kernel.elementwise("scaled", x.numel, dtype=x.dtype)]

    with pytest.raises(RegistrationError, match="does not name the tensor 'scale'"):
        register_op("schematest::scaled")(forgets)
    register_op(torch.ops.schematest.scaled)(fits)
    unregister_op("schematest::scaled")
    library._destroy()


def test_pricing_needs_no_schema() -> None:
    """A recording names its arguments: a saved one is priced whatever torch there is."""
    matrix = TensorSpec((4, 4), (4, 1), "float32")
    signature = OpSignature("aten::mm", "default", (("self", matrix), ("mat2", matrix)), (matrix,))

    assert map_op(signature, MathMode()).kernels[0].flops == 2 * 4 * 4 * 4


@pytest.mark.parametrize(
    "path", sorted(Path(ops.__file__).parent.glob("*/*.py")), ids=lambda path: path.name
)
def test_no_formula_takes_a_tensor_by_its_place(path: Path) -> None:
    """The first tensor of one op is the left operand, of another the bias."""
    source = path.read_text(encoding="utf-8")

    assert not re.findall(r"(?:read_tensors\(call\)|call\.input_tensors)\[", source)
    assert "call.arguments" not in source
    assert "call.tensor(" not in source
