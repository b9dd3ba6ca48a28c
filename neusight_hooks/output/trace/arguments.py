"""What a trace says of an op or a kernel beside its time: shapes, grid, occupancy, collective."""

from __future__ import annotations

from collections.abc import Iterable

from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import (
    DTYPE_BYTES,
    Kernel,
    RowsSize,
)
from neusight.predictors.physics.launch_geometry import geometry_of
from neusight.predictors.predictor import Estimate
from neusight.recording.recording import Argument, OpSignature, TensorSpec

CPP_TYPES = {
    "float32": "float",
    "float64": "double",
    "float16": "c10::Half",
    "bfloat16": "c10::BFloat16",
    "int64": "long int",
    "int32": "int",
    "int16": "short int",
    "int8": "signed char",
    "uint8": "unsigned char",
    "bool": "bool",
    "complex64": "c10::complex<float>",
    "complex128": "c10::complex<double>",
    "float8_e4m3fn": "c10::Float8_e4m3fn",
    "float8_e5m2": "c10::Float8_e5m2",
}
#: c10::ScalarType, as a dtype argument is shown.
_SCALAR_TYPES = {
    "uint8": 0, "int8": 1, "int16": 2, "int32": 3, "int64": 4, "float16": 5, "float32": 6,
    "float64": 7, "complex32": 8, "complex64": 9, "complex128": 10, "bool": 11, "bfloat16": 15,
    "float8_e5m2": 23, "float8_e4m3fn": 24,
}  # fmt: skip
#: A number whose value is not known.
UNKNOWN = "?"
#: Texts that are shown as numbers (c10::Layout, c10::MemoryFormat).
_SCALARS = {
    **_SCALAR_TYPES, UNKNOWN: "", "strided": 0, "contiguous_format": 0, "preserve_format": 1,
    "channels_last": 2, "channels_last_3d": 3,
}  # fmt: skip
REGISTERS_PER_BLOCK = 65536
#: Elements of a thread's work in PyTorch's vectorized kernels.
_ELEMENTS_PER_THREAD = 4


def launch_arguments(kernel: Kernel, estimate: Estimate, gpu: GPU) -> dict[str, object]:
    """Grid, block and occupancy, as the price has them."""
    launch = geometry_of(
        kernel.kernel_class,
        gpu,
        num_ctas=_num_blocks(kernel, estimate),
        threads_per_cta=estimate.threads_per_cta,
        tile=estimate.tile,
        itemsize=DTYPE_BYTES[kernel.dtype],
    )
    warps_per_block = -(-launch.threads_per_cta // gpu.warp_size)
    return {
        "registers per thread": launch.registers_per_thread,
        "shared memory": launch.shared_memory_bytes,
        "blocks per SM": round(launch.num_ctas / gpu.num_sms, 6),
        "warps per SM": round(launch.num_ctas * warps_per_block / gpu.num_sms, 6),
        "grid": [launch.num_ctas, 1, 1],
        "block": [launch.threads_per_cta, 1, 1],
        "est. achieved occupancy %": round(100 * launch.occupancy),
    }


def _num_blocks(kernel: Kernel, estimate: Estimate) -> int:
    """The CTAs that the predictor stated; of rows, where it stated none, by what each takes on."""
    if estimate.num_ctas > 1 or not isinstance(kernel.size, RowsSize):
        return estimate.num_ctas
    if kernel.size.rows > 1:
        return kernel.size.rows
    return -(-kernel.size.width // (estimate.threads_per_cta * _ELEMENTS_PER_THREAD))


def forecast_arguments(kernel: Kernel, estimate: Estimate) -> dict[str, object]:
    """What only a forecast knows; readers of profiles ignore it."""
    args: dict[str, object] = {
        "forecast by": estimate.predictor,
        "forecast origin": estimate.origin,
        "forecast low us": round(estimate.low_us, 3),
        "forecast high us": round(estimate.high_us, 3),
        "in trained range": estimate.in_range,
        "bound by": estimate.bound,
        "kernel class": kernel.kernel_class.value,
        "waves": round(estimate.num_waves, 3),
        "FLOPs": kernel.flops,
        "bytes moved": kernel.num_bytes,
    }
    if estimate.tile is not None:
        args["tile"] = list(estimate.tile)
        args["split k"] = estimate.split_k
    return args


def shape_arguments(arguments: Iterable[Argument]) -> dict[str, object]:
    """The inputs of an operator as record_shapes shows them."""
    shown = [_shown(argument) for argument in arguments]
    names = ("Concrete Inputs", "Input type", "Input Strides", "Input Dims")
    return {name: [row[at] for row in shown] for at, name in enumerate(names)}


def passed(signature: OpSignature) -> tuple[Argument, ...]:
    """What the op was called with; of a kernel that was fused, its tensors and then its sizes."""
    if not signature.op.startswith("inductor::"):
        return tuple(
            _wrapped(value) if name == "other" and signature.overload == "Tensor" else value
            for name, value in signature.arguments
        )
    sizes = signature.by_name.get("numels", ())
    return (*signature.input_tensors, *(sizes if isinstance(sizes, tuple) else ()))


def _wrapped(value: Argument) -> Argument:
    """A number of Python's where a tensor is expected is passed as one."""
    if isinstance(value, (float, int)):
        kinds = {bool: "bool", int: "int64", float: "float64"}
        return TensorSpec((), (), kinds[type(value)])
    return value


def _shown(argument: Argument) -> tuple[str, str, object, object]:
    """Value, type, strides and dims of one argument."""
    if isinstance(argument, TensorSpec):
        kind = CPP_TYPES.get(argument.dtype, argument.dtype)
        return "", kind, list(argument.stride), list(argument.shape)
    if isinstance(argument, tuple):
        tensors = [item for item in argument if isinstance(item, TensorSpec)]
        if tensors:
            strides = [list(item.stride) for item in tensors]
            return "", "TensorList", strides, [list(item.shape) for item in tensors]
        return f"[{', '.join(_concrete(item) for item in argument)}]", "ScalarList", [], []
    if argument is None or (isinstance(argument, str) and argument not in _SCALARS):
        return "", "", [], []
    return _concrete(argument), "Scalar", [], []


def _concrete(value: Argument) -> str:
    if isinstance(value, bool) or not isinstance(value, (float, str)):
        return str(value)
    if isinstance(value, str):
        return str(_SCALARS.get(value, value))
    text = f"{value:.17g}"  # as C++ prints a double: 0.1 is 0.10000000000000001, 1.0 is "1."
    return text if any(mark in text for mark in ".einf") else text + "."
