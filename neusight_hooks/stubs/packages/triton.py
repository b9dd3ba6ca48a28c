"""Triton where it is not installed: enough for a program to define its kernels, which are recorded
by `fake_cuda/user_kernels.py` as those of the real package are; none is ever executed."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any, NoReturn

import torch

from neusight.fake_cuda.triton_driver import TargetDriver
from neusight.fake_cuda.user_kernels import LAUNCH_SCHEMA
from neusight.stubs.stub_ops import count_use, make_op, names


def settle() -> None:
    """Torch looks for Triton before the program has it, and goes on as without."""
    import_module("torch._inductor.runtime.triton_compat")
    utilities: Any = import_module("torch.utils._triton")
    utilities.has_triton_package()  # keeps its answer, as the next does
    inductor: Any = import_module("torch._inductor.utils")
    inductor.get_triton_attrs_descriptor_version()


def _not_here(name: str) -> NoReturn:
    raise RuntimeError(
        f"Triton is not installed, so {name} cannot run: in a forecast its kernels are launched on "
        "CUDA tensors and recorded."
    )


#: Launches a kernel inside a graph of torch.compile; it computes nothing while that is traced.
_launch_op: Any = make_op(LAUNCH_SCHEMA, lambda *args: None)


class KernelInterface:
    """What is launched as kernel[grid](...)."""

    arg_names: tuple[str, ...] = ()

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        def launch(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                given = dict(zip(self.arg_names, args, strict=False))
                return _launch_compiled(self, grid, {**given, **kwargs})
            return self.run(*args, grid=grid, warmup=False, **kwargs)

        return launch

    def add_arguments(self, given: dict[str, Any]) -> None:
        """Adds the arguments that it has beside those that it is given."""

    def run(self, *args: Any, **kwargs: Any) -> Any:
        _not_here(getattr(self, "__name__", "a kernel"))


class JITFunction(KernelInterface):
    """A kernel: its name and the names of its arguments."""

    def __init__(self, fn: Callable[..., Any], **options: Any) -> None:
        self.fn = fn
        parameters = inspect.signature(fn).parameters
        self.arg_names = tuple(parameters)
        self.arg_defaults = {
            name: parameter.default
            for name, parameter in parameters.items()
            if parameter.default is not parameter.empty
        }
        self.__name__, self.__module__, self.__doc__ = fn.__name__, fn.__module__, fn.__doc__
        self.written = _written_by(fn, self.arg_names)

    def warmup(self, *args: Any, grid: Any, **kwargs: Any) -> Any:
        return self.run(*args, grid=grid, warmup=True, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError("Cannot call @triton.jit'd outside of the scope of a kernel")


class Config:
    """Sizes that a kernel may be tuned to."""

    def __init__(
        self,
        kwargs: dict[str, Any],
        num_warps: int = 4,
        num_stages: int = 3,
        num_ctas: int = 1,
        maxnreg: int | None = None,
        pre_hook: Any = None,
        **others: Any,
    ) -> None:
        self.kwargs = kwargs
        self.num_warps, self.num_stages, self.num_ctas = num_warps, num_stages, num_ctas
        self.maxnreg, self.pre_hook = maxnreg, pre_hook

    def all_kwargs(self) -> dict[str, Any]:
        return {**self.kwargs, "num_warps": self.num_warps, "num_stages": self.num_stages}


class Autotuner(KernelInterface):
    """A kernel and the configurations that it is tuned over."""

    def __init__(
        self,
        fn: Any,
        arg_names: Sequence[str],
        configs: Sequence[Config],
        key: Sequence[str] = (),
        reset_to_zero: Sequence[str] | None = None,
        restore_value: Sequence[str] | None = None,
        pre_hook: Any = None,
        post_hook: Any = None,
        **tuning: Any,
    ) -> None:
        """As triton's own, of which packages derive; nothing is tuned."""
        self.fn, self.configs, self.arg_names = fn, list(configs), tuple(arg_names)
        self.keys = list(key)
        self.user_defined_pre_hook = pre_hook is not None
        self.user_defined_post_hook = post_hook is not None
        self.reset_to_zero, self.restore_value = reset_to_zero or [], restore_value or []
        self.cache: dict[Any, Config] = {}
        self.__name__ = fn.__name__
        self.best_config = self.configs[0] if self.configs else None

    def add_arguments(self, given: dict[str, Any]) -> None:
        """Those of the first configuration, which is not tuned."""
        if self.configs:
            for name, value in self.configs[0].kwargs.items():
                given.setdefault(name, value)


class Heuristics(KernelInterface):
    """A kernel some of whose arguments are computed from the others."""

    def __init__(self, fn: Any, values: dict[str, Callable[[dict[str, Any]], Any]]) -> None:
        self.fn, self.values, self.arg_names = fn, values, fn.arg_names
        self.__name__ = fn.__name__

    def add_arguments(self, given: dict[str, Any]) -> None:
        for name, value in self.values.items():
            given[name] = value(given)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(self.arg_names, args, strict=False)), **kwargs}
        self.add_arguments(given)
        return self.fn.run(*args, **kwargs, **{name: given[name] for name in self.values})


def _launch_compiled(kernel: Any, grid: Any, given: dict[str, Any]) -> None:
    """The launch as an op: torch.compile traces this function, and keeps no other kernels."""
    kernel.add_arguments(given)
    while not isinstance(kernel, JITFunction):
        kernel = kernel.fn
        kernel.add_arguments(given)
    found = grid(given) if callable(grid) else grid
    sizes = list(found) if isinstance(found, (list, tuple)) else [found]
    order = [name for name in kernel.arg_names if name in given]
    tensors = [name for name in order if isinstance(given[name], torch.Tensor)]
    integers = [
        name for name in order if isinstance(given[name], int) and not isinstance(given[name], bool)
    ]
    written = [name for name in tensors if name in kernel.written]
    read = [name for name in tensors if name not in kernel.written]
    others = [name for name in order if name not in tensors and name not in integers]
    _launch_op(
        kernel.__name__,
        order,
        [*written, *read, *integers, *others],
        [given[name] for name in written],
        [given[name] for name in read],
        [given[name] for name in integers],
        [str(given[name]) for name in others],
        sizes,
    )


#: Functions of triton.language that write through their first argument, and Python's own that a
#: kernel may call.
_WRITING = ("store", "atomic_")
_OF_PYTHON = ("range", "min", "max", "float", "int")


def _written_by(fn: Callable[..., Any], parameters: Sequence[str]) -> tuple[str, ...]:
    """Parameters of a kernel through which it writes: what its stores' addresses are computed
    from, and what it passes to functions that are not Triton's. All of them where none is
    found."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(fn)))
    except (OSError, TypeError, SyntaxError):
        return tuple(parameters)
    found: set[str] = set()
    sources: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            _record_sources(sources, node.targets, node.value)
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)) and node.value is not None:
            _record_sources(sources, [node.target], node.value)
        elif isinstance(node, ast.Call):
            found |= _names_in(_written_arguments(node))
    added = found
    while added:
        added = set().union(*(sources.get(name, set()) for name in added)) - found
        found |= added
    return tuple(name for name in parameters if name in found) or tuple(parameters)


def _written_arguments(call: ast.Call) -> list[ast.expr]:
    """What a call may write through."""
    function = call.func
    if isinstance(function, ast.Attribute):
        if function.attr.startswith(_WRITING):
            return call.args[:1] or [word.value for word in call.keywords if word.arg == "pointer"]
        return []
    if isinstance(function, ast.Name) and function.id not in _OF_PYTHON:
        return [*call.args, *(word.value for word in call.keywords)]
    return []


def _record_sources(
    sources: dict[str, set[str]], targets: Iterable[ast.expr], value: ast.expr
) -> None:
    for name in _names_in(targets):
        sources.setdefault(name, set()).update(_names_in([value]))


def _names_in(nodes: Iterable[ast.AST]) -> set[str]:
    return {node.id for root in nodes for node in ast.walk(root) if isinstance(node, ast.Name)}


def jit(fn: Any = None, **options: Any) -> Any:
    count_use("triton", "jit")
    return JITFunction if fn is None else JITFunction(fn)


def autotune(configs: Sequence[Config], key: Sequence[str], **options: Any) -> Any:
    """Has a kernel tuned; in a forecast its first configuration runs."""
    return lambda fn: Autotuner(fn, fn.arg_names, configs)


def heuristics(values: dict[str, Callable[[dict[str, Any]], Any]]) -> Any:
    return lambda fn: Heuristics(fn, values)


def cdiv(x: int, y: int) -> int:
    return (x + y - 1) // y


def next_power_of_2(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


class TensorDescriptor:
    """A tensor, and the blocks that a kernel loads of it."""

    def __init__(
        self,
        base: torch.Tensor,
        shape: Sequence[int],
        strides: Sequence[int],
        block_shape: Sequence[int],
        padding: str = "zero",
        **others: Any,
    ) -> None:
        self.base, self.padding = base, padding
        self.shape, self.strides = list(shape), list(strides)
        self.block_shape = list(block_shape)

    @staticmethod
    def from_tensor(
        tensor: torch.Tensor, block_shape: Sequence[int], padding: str = "zero"
    ) -> TensorDescriptor:
        return TensorDescriptor(tensor, tensor.shape, tensor.stride(), block_shape, padding)


def set_allocator(allocator: Callable[..., Any]) -> None:
    """Sets what gives kernels their scratch memory, which no forecast counts."""


# -- triton.language, of which nothing runs --------------------------------------------------------


class Word:
    """A name of Triton's language. It can be passed around, and compared with itself."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, name: str) -> Word:
        return _word(name)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        _not_here(f"triton.language.{self.name}")

    def __getitem__(self, item: Any) -> Word:
        return self

    def __repr__(self) -> str:
        return f"triton.language.{self.name}"


_words: dict[str, Word] = {}


def _word(name: str) -> Word:
    if name.startswith("__"):
        raise AttributeError(name)
    return _words.setdefault(name, Word(name))


class constexpr:
    """A value that is known when a kernel is compiled."""

    def __init__(self, value: Any) -> None:
        self.value: Any = value.value if isinstance(value, constexpr) else value

    def __index__(self) -> int:
        return int(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __eq__(self, other: object) -> bool:
        return bool(self.value == (other.value if isinstance(other, constexpr) else other))

    def __hash__(self) -> int:
        return hash(self.value)


# -- triton.testing --------------------------------------------------------------------------------


def do_bench(
    fn: Callable[[], Any],
    warmup: int = 25,
    rep: int = 100,
    grad_to_none: Any = None,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
) -> Any:
    """Milliseconds of one call in the forecast, in which all calls take as long."""
    fn()
    make: Any = torch.cuda.Event  # without annotations in torch
    begin, end = (make(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    fn()
    end.record()
    torch.cuda.synchronize()
    taken = begin.elapsed_time(end)
    if quantiles is not None:
        return [taken] * len(quantiles) if len(quantiles) > 1 else taken
    return [taken] if return_mode == "all" else taken


class Benchmark:
    """A plot of times, as it is described."""

    def __init__(
        self, x_names: Any, x_vals: Any, line_arg: str, line_vals: Any, **others: Any
    ) -> None:
        self.x_names = [x_names] if isinstance(x_names, str) else list(x_names)
        self.x_vals, self.line_arg, self.line_vals = x_vals, line_arg, line_vals
        self.args = others.get("args", {})


class Plotted:
    """A function that is run for each point of a benchmark."""

    def __init__(self, fn: Callable[..., Any], benchmarks: Any) -> None:
        self.fn = fn
        self.benchmarks = benchmarks if isinstance(benchmarks, list) else [benchmarks]

    def run(self, show_plots: bool = False, print_data: bool = False, **others: Any) -> None:
        for benchmark in self.benchmarks:
            for x in benchmark.x_vals:
                values = x if isinstance(x, (list, tuple)) else [x] * len(benchmark.x_names)
                point = dict(zip(benchmark.x_names, values, strict=False))
                row = [
                    self.fn(**point, **{benchmark.line_arg: line}, **benchmark.args)
                    for line in benchmark.line_vals
                ]
                if print_data:
                    print(*point.values(), *row)


def perf_report(benchmarks: Any) -> Callable[[Callable[..., Any]], Plotted]:
    return lambda fn: Plotted(fn, benchmarks)


class DriverConfig:
    """Holds the driver, which answers as the target."""

    active = TargetDriver()

    def set_active(self, driver: Any) -> None:
        """Leaves the target's as it is."""


class GPUTarget:
    """Backend, capability and warp size of a GPU."""

    def __init__(self, backend: str, arch: int | str, warp_size: int) -> None:
        self.backend, self.arch, self.warp_size = backend, arch, warp_size


_driver = DriverConfig()
_LANGUAGE = {"__getattr__": _word, "constexpr": constexpr, "cdiv": cdiv}
_LANGUAGE_MODULES = (
    *("", ".core", ".math", ".standard"),
    *(".extra", ".extra.cuda", ".extra.libdevice", ".extra.cuda.libdevice"),
)
_TUNING = names(Autotuner, Config, Heuristics, autotune, heuristics)

MODULES: dict[str, dict[str, Any]] = {
    "triton": {
        **names(JITFunction, KernelInterface, cdiv, jit, next_power_of_2, set_allocator),
        **names(Config, autotune, heuristics),
        "constexpr_function": lambda fn: fn,
    },
    "triton.backends": {},
    "triton.backends.compiler": names(GPUTarget),
    "triton.runtime": {"driver": _driver, "JITFunction": JITFunction},
    "triton.runtime.autotuner": _TUNING,
    "triton.runtime.jit": names(JITFunction, KernelInterface, jit),
    "triton.testing": names(Benchmark, Plotted, do_bench, perf_report, do_bench_cudagraph=do_bench),
    "triton.tools": {},
    "triton.tools.tensor_descriptor": names(TensorDescriptor),
    **{f"triton.language{name}": _LANGUAGE for name in _LANGUAGE_MODULES},
}
