"""A model's products with weights of fewer bits or with LoRA adapters, as an engine runs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from neusight.predictors.errors import OptionError
from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import DTYPE_BYTES, GemmSize, Kernel, KernelClass, size_of
from neusight.serving.fusion import joined_products
from neusight.serving.launches import EXPERTS, LaunchedKernel
from neusight.serving.parallel import is_router

#: What each stands for: dynamic FP8 and INT8 (weights and activations, a scale for each row and
#: column), and INT4 weights in groups with a 16-bit scale (GPTQ and AWQ through Marlin's kernels).
QUANTIZATIONS: dict[str, str] = {
    "fp8": "float8_e4m3fn",
    "int8": "int8",
    "int4": "packed_tiles",
}
#: Weights that share a scale (AutoGPTQ's and AutoAWQ's usual choice), and the scale's bytes.
_GROUP = 128
_SCALE_BYTES = 2
_INT4_BYTES = 0.5
#: Bytes of the scale of a row or column.
_ROW_SCALE_BYTES = 4


def require_quantization(name: str, gpu: GPU) -> None:
    """OptionError where the GPU does not multiply such numbers."""
    if name in ("fp8", "int8") and name not in gpu.peak_tflops:
        other = "int8 or int4" if name == "fp8" and "int8" in gpu.peak_tflops else "int4"
        raise OptionError(
            f"{gpu.name} does not multiply {name} numbers. Choose --quantization {other}, or a GPU "
            "of Ada, Hopper or later."
        )


#: Methods of checkpoints with 4-bit weights in groups, and with FP8 weights and activations.
_GROUPED, _FP8 = ("gptq", "awq", "auto-round"), ("fp8", "fbgemm_fp8")


def stated_quantization(config: object) -> str:
    """What the `quantization_config` of a model's config comes to: a name of `QUANTIZATIONS`, ""
    without one, else the name of its method, which is not served as such.

    >>> stated_quantization({"quant_method": "awq", "bits": 4})
    'int4'
    >>> stated_quantization({"quant_method": "mxfp4"})
    'mxfp4'
    """
    if not isinstance(config, dict) or not config:
        return ""
    method = str(config.get("quant_method") or config.get("quant_algo") or "unnamed").lower()
    if method in _FP8:
        return "fp8"
    if method in _GROUPED and config.get("bits", 4) == 4:
        return "int4"
    if method == "compressed-tensors":
        return _of_compressed_tensors(config) or method
    return method


def _of_compressed_tensors(config: dict[str, object]) -> str:
    """The scheme of its first group of layers; "" where it is another."""
    groups = config.get("config_groups")
    group = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    if not isinstance(group, dict) or not isinstance(group.get("weights"), dict):
        return ""
    weights, has_activations = group["weights"], bool(group.get("input_activations"))
    scheme = weights.get("num_bits"), weights.get("type", "int"), has_activations
    names = {(4, "int", False): "int4", (8, "int", True): "int8", (8, "float", True): "fp8"}
    return names.get(scheme, "")


def quantized(launches: Sequence[LaunchedKernel], name: str) -> tuple[LaunchedKernel, ...]:
    """The kernels with the products of the layers quantized; the logits' product and a router's
    stay as they are."""
    groups = joined_products(launches)
    logits = groups[-1][0] if groups else -1
    joined = {at: group[0] for group in groups for at in group}
    found: list[LaunchedKernel] = []
    for at, launch in enumerate(launches):
        kernel = launch.kernel
        if joined.get(at, at) == logits or not _is_of_layer(launches, at):
            found.append(launch)
        elif name == "int4":
            found.append(launch._replace(kernel=_int4(kernel)))
        else:
            if joined.get(at, at) == at:
                found.append(LaunchedKernel(_quantize(kernel, name), launch.module))
            found.append(launch._replace(kernel=_eight_bits(kernel, name)))
    return tuple(found)


def _is_of_layer(launches: Sequence[LaunchedKernel], at: int) -> bool:
    """Whether it is a product with a weight, and not a router's."""
    kernel = launches[at].kernel
    size = kernel.size
    if not isinstance(size, GemmSize) or (size.batch > 1 and kernel.name != EXPERTS):
        return False
    return not is_router(launches, at)


def _activation_bytes(kernel: Kernel) -> int:
    size = size_of(kernel, GemmSize)
    return int(size.batch * size.m * size.k * DTYPE_BYTES[kernel.dtype])


def _int4(kernel: Kernel) -> Kernel:
    size = size_of(kernel, GemmSize)
    weights = size.batch * size.n * size.k
    num_bytes = int(weights * _INT4_BYTES + weights // _GROUP * _SCALE_BYTES)
    return replace(kernel, bytes_read=_activation_bytes(kernel) + num_bytes, variant="packed_tiles")


def _eight_bits(kernel: Kernel, name: str) -> Kernel:
    size = size_of(kernel, GemmSize)
    scales = size.batch * (size.m + size.n) * _ROW_SCALE_BYTES
    read = size.batch * (size.m * size.k + size.n * size.k) + scales
    return replace(kernel, dtype=QUANTIZATIONS[name], compute=name, bytes_read=read)


def _quantize(kernel: Kernel, name: str) -> Kernel:
    """The kernel that quantizes the activations of a product, a scale for each row."""
    size = size_of(kernel, GemmSize)
    return Kernel.rows(
        KernelClass.REDUCTION, "quantize", size.batch * size.m, size.k,
        dtype=kernel.dtype, out_dtype=QUANTIZATIONS[name],
        bytes_read=_activation_bytes(kernel), bytes_written=size.batch * size.m * size.k,
    )  # fmt: skip


@dataclass(frozen=True)
class Adapters:
    """LoRA adapters that are loaded at once, and their rank."""

    count: int
    rank: int


def adapted(launches: Sequence[LaunchedKernel], adapters: Adapters) -> tuple[LaunchedKernel, ...]:
    """The kernels with two products more after each of a layer: down to the adapters' rank and up
    again, of all adapters at once (as vLLM's, arXiv 2310.18547). Experts have none."""
    groups = joined_products(launches)
    logits = groups[-1][0] if groups else -1
    found: list[LaunchedKernel] = []
    for at, launch in enumerate(launches):
        found.append(launch)
        if at != logits and launch.kernel.name != EXPERTS and _is_of_layer(launches, at):
            found += [
                LaunchedKernel(item, launch.module) for item in _low_rank(launch.kernel, adapters)
            ]
    return tuple(found)


def _low_rank(kernel: Kernel, adapters: Adapters) -> tuple[Kernel, Kernel]:
    size, dtype = size_of(kernel, GemmSize), kernel.out_dtype
    held = int(adapters.count * adapters.rank * DTYPE_BYTES[dtype])
    down = Kernel.gemm(size.m, adapters.rank, size.k, dtype=dtype, weight_bytes=held * size.k)
    up = Kernel.gemm(size.m, size.n, adapters.rank, dtype=dtype, weight_bytes=held * size.n)
    return replace(down, name="lora_shrink"), replace(up, name="lora_expand")
