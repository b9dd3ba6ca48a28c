"""Kernels that a GPU would choose by timing (max-autotune): default ones, and what is at stake."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from neusight.fake_cuda.compiling.rules.fallback import line_of
from neusight.fake_cuda.compiling.rules.flex_attention import number_of
from neusight.fake_cuda.patching import Patches
from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.predictors.registry import find_predictor

#: Inductor's settings that ask for timings.
TUNING = (
    "max_autotune",
    "max_autotune_gemm",
    "max_autotune_pointwise",
    "coordinate_descent_tuning",
)
#: Of those, what chooses blocks of Triton kernels alone, when they first run: what is written stays
#: the same, and a kernel says for which it is (`FusedKernel`).
_OF_BLOCKS = frozenset({"coordinate_descent_tuning"})

#: What Inductor has templates for (torch/_inductor/kernel: mm, bmm, conv).
_PRODUCTS = frozenset(
    f"extern_kernels.{name}"
    for name in ("mm", "addmm", "bias_addmm", "bmm", "baddbmm", "_int_mm", "convolution")
)


class TuningGain(NamedTuple):
    """What a GPU would time of a graph, and what fusing all that may follow its products into their
    templates would save at most: the time of these kernels."""

    num_products: int
    num_fused: int
    most_us: float

    def words(self, name: str, place: str) -> str:
        """The line of a graph.

        >>> TuningGain(2, 1, 12.3).words("max-autotune", "net.py:7").partition(": ")[2]
        '2 products, 1 fused would save 12 us a call at most'
        """
        line = f"{name} is forecast with default kernels; a GPU would choose by timing"
        if not self.num_products:
            return f"{line} at {place}: no product"
        count = f"{self.num_products} product{'s' * (self.num_products > 1)}"
        if not self.num_fused:
            return f"{line} at {place}: {count}, with nothing to fuse"
        return (
            f"{line} at {place}: {count}, {self.num_fused} fused would save "
            f"{self.most_us:.0f} us a call at most"
        )


def install_tuning(patches: Patches, warn: Callable[[str], None], gpu: GPU) -> None:
    """Nothing is timed: kernels are those that Inductor takes without, and each graph says what a
    GPU would have chosen from. (Templates can be written without Triton; but how long their kernels
    take was never measured here.)"""
    from torch._inductor import config
    from torch._inductor.compile_fx import _InProcessFxCompile
    from torch._inductor.scheduler import Scheduler

    compile_graph: Callable[..., Any] = _InProcessFxCompile.codegen_and_compile
    write_code: Callable[..., Any] = Scheduler.codegen
    requested: list[tuple[str, str]] = []  # what the graph that is compiled asked for, and its line

    def codegen_and_compile(self: Any, gm: Any, *args: Any, **kwargs: Any) -> Any:
        names = [name for name in TUNING if getattr(config, name)]
        if not names:
            return compile_graph(self, gm, *args, **kwargs)
        is_max = any(name.startswith("max") for name in names)
        requested.append(("max-autotune" if is_max else names[0], line_of(gm) or "(no line)"))
        try:
            with config.patch({name: False for name in names if name not in _OF_BLOCKS}):
                return compile_graph(self, gm, *args, **kwargs)
        finally:
            requested.pop()

    def codegen(self: Any) -> Any:
        if requested:
            warn(_tuning_gain(self.nodes, gpu).words(*requested[-1]))
        return write_code(self)

    patches.set(_InProcessFxCompile, "codegen_and_compile", codegen_and_compile)
    patches.set(Scheduler, "codegen", codegen)


def _tuning_gain(nodes: Sequence[Any], gpu: GPU) -> TuningGain:
    products = [node for node in nodes if _is_product(node)]
    written = {buffer.get_name() for node in products for buffer in node.get_outputs()}
    kernels = [_kernel(node) for node in nodes if _may_follow(node, written)]
    times_us = [item.latency_us for item in find_predictor().predict(kernels, gpu)]
    return TuningGain(len(products), len(kernels), sum(times_us))


def _is_product(node: Any) -> bool:
    return getattr(node.node, "python_kernel_name", None) in _PRODUCTS


def _may_follow(node: Any, written: set[str]) -> bool:
    """Whether it computes element by element on what a product wrote."""
    if node.is_extern() or node.is_template() or node.is_reduction():
        return False
    sizes = set(_numels(buffer.get_name() for buffer in node.get_outputs()))
    read = {dependency.name for dependency in node.read_writes.reads} & written
    return any(size in sizes for size in _numels(read))


def _numels(names: Any) -> Iterator[int]:
    from torch._inductor.virtualized import V

    for name in names:
        yield number_of(V.graph.get_numel(name))


def _kernel(node: Any) -> Kernel:
    outputs = [buffer.get_name() for buffer in node.get_outputs()]
    return Kernel.rows(
        KernelClass.ELEMENTWISE,
        "epilogue",
        1,
        max(_numels(outputs), default=1),
        dtype="float32",
        bytes_read=int(node.get_read_buffer_sizes()),
        bytes_written=int(node.get_write_buffer_sizes()),
    )
