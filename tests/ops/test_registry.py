"""Which formula knows an op, and what happens without one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from neusight.ops import is_mapped, kernels_of, map_op, mapped_ops, register_op, unregister_op
from neusight.predictors.errors import RegistrationError
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.recording.recording import MathMode, OpSignature
from op_calls import MATH, call, kernels, names, spec


def test_importing_the_ops_does_not_import_torch() -> None:
    code = (
        "import sys, neusight.ops; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )

    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_op_registered_by_name_is_mapped_until_it_is_forgotten() -> None:
    @register_op("testlib::twice")
    def twice(signature: OpSignature, math: MathMode) -> list[Kernel]:
        return [Kernel.elementwise("twice", signature.tensor("x").numel, dtype="float32")] * 2

    try:
        assert names(call("testlib::twice", spec(4), x=spec(4))) == ["twice", "twice"]
    finally:
        unregister_op("testlib::twice")

    assert not is_mapped("testlib::twice")


def test_an_overload_goes_before_its_op() -> None:
    register_op("testlib::pick")(lambda signature, math: [])
    register_op("testlib::pick.special")(
        lambda signature, math: [Kernel.elementwise("special", 1, dtype="float32")]
    )
    try:
        plain = kernels_of(call("testlib::pick", x=spec(4)), MATH)
        special = kernels_of(call("testlib::pick", overload="special", x=spec(4)), MATH)
    finally:
        unregister_op("testlib::pick")
        unregister_op("testlib::pick.special")

    assert plain == ()
    assert [kernel.name for kernel in special] == ["special"]


def test_packets_and_overloads_of_torch_are_known_by_their_names() -> None:
    class Packet:
        _qualified_op_name = "testlib::packet"

    class Schema:
        name = "testlib::packet"
        overload_name = ""

    class Overload:
        _schema = Schema()

    try:
        register_op(Packet())(lambda signature, math: [])
        register_op(Overload())(lambda signature, math: [])

        assert {"testlib::packet", "testlib::packet.default"} <= set(mapped_ops())
    finally:
        unregister_op(Packet())
        unregister_op(Overload())


def test_an_op_is_registered_once() -> None:
    with pytest.raises(RegistrationError, match="aten::mm is registered already"):
        register_op("aten::mm")(lambda signature, math: [])


def test_two_names_in_one_registration_must_differ() -> None:
    with pytest.raises(RegistrationError, match="registered already"):
        register_op("testlib::same", "testlib::same")(lambda signature, math: [])


@pytest.mark.parametrize("packet", ["mm", "::mm", "aten::", "aten::mm (Tensor)", 3, None])
def test_what_is_no_op_is_refused(packet: object) -> None:
    with pytest.raises(RegistrationError, match="register_op takes"):
        register_op(packet)


def test_an_unknown_op_is_one_kernel_that_moves_all_its_tensors() -> None:
    mapping = map_op(call("mylib::magic", spec(8), x=spec(4), y=spec(2, 2)), MATH)

    (kernel,) = mapping.kernels
    assert not mapping.is_mapped
    assert mapping.reason == "no function is registered for it"
    assert kernel.kernel_class is KernelClass.UNKNOWN
    assert (kernel.name, kernel.bytes_read, kernel.bytes_written) == ("mylib::magic", 32, 32)


def test_a_formula_that_fails_falls_back_and_says_why() -> None:
    mapping = map_op(call("mm", spec(2, 2), self=None, mat2=None), MATH)

    assert not mapping.is_mapped
    assert "argument self is not a tensor" in mapping.reason
    assert mapping.kernels[0].kernel_class is KernelClass.UNKNOWN


def test_ops_on_the_host_launch_nothing() -> None:
    on_host = spec(4, device="cpu")

    assert kernels(call("add", on_host, self=on_host, other=on_host)) == ()
    assert kernels(call("mylib::magic", on_host, x=on_host)) == ()
