"""Modules of torch's compiler that are there at once, and whose code runs when it is needed."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

_DYNAMO = "torch._dynamo"
#: Loaded by itself, without the package: `FakeTensorMode` and checkpoints read settings of it.
_DYNAMO_CONFIG = "torch._dynamo.config"
_SHAPES = "torch.fx.experimental.symbolic_shapes"
_FUNCTIONS = "torch.utils._sympy.functions"
#: What fake kernels import of the module above at each op, to call it for symbolic sizes only
#: (torch/_subclasses/fake_tensor.py).
_FOR_SYMBOLS = ("compute_unbacked_bindings", "free_unbacked_symbols")
#: What they ask of it for sizes that may be symbolic, and what it says of plain numbers and truths.
_OF_PLAIN: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(
        (
            "expect_true",
            "guard_or_false",
            "guard_or_true",
            "guard_size_oblivious",
            "statically_known_true",
        ),
        lambda known, *others: known,
    ),
    "guarding_hint_or_throw": lambda number: number,
    "has_guarding_hint": lambda number: True,
    "is_nested_int": lambda number: False,
    "sym_eq": lambda first, second: _as_value(first) == _as_value(second),
    "sym_and": lambda *known: all(known),
    "sym_or": lambda *known: any(known),
}
#: The module whose functions ask whether an operand is an expression of sympy.
_PRIMS = "torch._prims_common"
#: Hooks of FSDP2, which Dynamo must leave alone at each call.
_FSDP_HOOKS = "torch.distributed.fsdp._fully_shard._fsdp_common"
#: Where torch keeps what `torch._disable_dynamo` made of a function (torch/_compile.py).
_DISABLED = "__dynamo_disable"


def install_lazy_modules(undo: ExitStack) -> None:
    """While open, Dynamo and what it knows of symbolic sizes need not be loaded for eager programs,
    which takes as long as importing torch does.

    torch imports Dynamo for the first optimizer and each of its steps (torch/_compile.py,
    optim/optimizer.py), only to say what Dynamo must not compile: as long as Dynamo is not there,
    it compiles nothing. Fake kernels import the rest at each op, for sizes that a forecast does not
    have. Whatever else is asked of one of them loads it.
    """
    install_lazy(undo, _LazyDynamo(), apart={_DYNAMO_CONFIG})
    install_lazy(undo, _LazySympy("sympy"))
    install_lazy(undo, LazyModule(_FUNCTIONS, {"Max": _loading(_FUNCTIONS, "Max")}))
    answers = {name: _loading(_SHAPES, name) for name in _FOR_SYMBOLS}
    answers |= {name: _of_plain(name, answer) for name, answer in _OF_PLAIN.items()}
    install_lazy(undo, LazyModule(_SHAPES, answers))

    importlib.import_module("torch.fx.experimental._config")  # else the last of them imports it


def install_lazy(undo: ExitStack, module: LazyModule, apart: Iterable[str] = ()) -> None:
    """While open, the module is there if it was not; those named in `apart` do without its code."""
    name = module.__name__
    spec = None if name in sys.modules else importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        return
    module.begin(spec)
    finder = _FindsPackageFirst(module, frozenset(apart))
    parent, _, child = name.rpartition(".")
    owner: dict[str, Any] = vars(sys.modules[parent]) if parent else {}

    def forget() -> None:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        if module.is_loaded:
            return
        module.forget()
        if sys.modules.get(name) is module:
            del sys.modules[name]
        if owner.get(child) is module:
            del owner[child]

    for part in apart:
        if part in sys.modules:  # of an earlier forecast: importing it again would not set it here
            vars(module)[part.removeprefix(f"{name}.")] = sys.modules[part]
    undo.callback(forget)
    sys.meta_path.insert(0, finder)
    sys.modules[name] = module
    owner[child] = module


def load_lazy_modules_in(
    undo: ExitStack, around: Callable[[], AbstractContextManager[None]]
) -> None:
    """While open, the code of modules that are late until then runs inside of `around`."""
    for module in list(sys.modules.values()):
        if isinstance(module, LazyModule):
            undo.callback(module.load_in, nullcontext)
            module.load_in(around)


def _loading(module: str, name: str) -> Callable[..., Any]:
    """The function of that name in a module that is loaded where it is called."""

    def function(*args: Any, **kwargs: Any) -> Any:
        lazy = sys.modules.get(module)
        if isinstance(lazy, LazyModule):
            lazy.load()
        return getattr(importlib.import_module(module), name)(*args, **kwargs)

    function.__name__ = function.__qualname__ = name
    return function


def _of_plain(name: str, answer: Callable[..., Any]) -> Callable[..., Any]:
    """The function of that name where nothing is symbolic; all else is for the module to say."""
    load = _loading(_SHAPES, name)

    def function(*args: Any, **kwargs: Any) -> Any:
        if args and not kwargs and all(map(_is_plain, args)):
            return answer(*args)
        return load(*args, **kwargs)

    function.__name__ = function.__qualname__ = name
    return function


def _as_value(value: Any) -> Any:
    return tuple(value) if isinstance(value, (tuple, list)) else value


def _is_plain(value: Any) -> bool:
    """Whether it is a number, a truth or a shape without symbols."""
    if isinstance(value, (tuple, list)):
        return all(type(size) is int for size in value)
    return type(value) in (bool, int)


class LazyModule(ModuleType):
    """A module whose code is run in it at the first name that it is asked for, but for `answers`,
    which do until then. What one thread loads, others wait for."""

    def __init__(self, name: str, answers: Mapping[str, Any] | None = None) -> None:
        super().__init__(name)
        self.__dict__["_lazy"] = _Loading(dict(answers or {}))

    def begin(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Makes it look like the module before its code is run."""
        names: dict[str, Any] = {
            "__spec__": spec,
            "__loader__": spec.loader,
            "__file__": spec.origin,
        }
        if spec.submodule_search_locations is not None:
            names["__path__"] = spec.submodule_search_locations
        self.__dict__.update(names, __package__=spec.parent, **self.__dict__["_lazy"].answers)

    def __getattr__(self, name: str) -> Any:
        # What reads all modules there are (warnings, inspect) asks for names with underscores.
        is_of_python = name.startswith("__") and name not in ("__all__", "__version__")
        if is_of_python or self.is_loaded or not self.load():
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self, name)

    @property
    def is_loaded(self) -> bool:
        return bool(self.__dict__["_lazy"].is_loaded)

    @property
    def is_loading(self) -> bool:
        return bool(self.__dict__["_lazy"].is_loading)

    def load(self) -> bool:
        """Runs its code if that was not done; False while this very thread does."""
        lazy: _Loading = self.__dict__["_lazy"]
        with lazy.lock:
            if lazy.is_loaded or lazy.is_loading:
                return not lazy.is_loading
            lazy.is_loading = True
            try:
                with lazy.around():
                    self._execute(lazy)
            finally:
                lazy.is_loading = False
            lazy.is_loaded = True
        return True

    def load_in(self, around: Callable[[], AbstractContextManager[None]]) -> None:
        """From now on its code would run inside of `around`."""
        self.__dict__["_lazy"].around = around

    def _execute(self, lazy: _Loading) -> None:
        name, spec = self.__name__, self.__spec__
        if sys.modules.get(name) is not self:  # a reference to it outlived the forecast
            self.__dict__.update(vars(importlib.import_module(name)))
            return
        assert spec is not None and spec.loader is not None
        for answer in lazy.answers:
            self.__dict__.pop(answer, None)
        try:
            spec.loader.exec_module(self)
        except BaseException:
            self.__dict__.update(lazy.answers)
            raise

    def forget(self) -> None:
        """Called at the end where nothing has loaded it."""


class _Loading:
    """How far a lazy module is."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.around: Callable[[], AbstractContextManager[None]] = nullcontext
        self.is_loaded = False
        self.is_loading = False
        self.lock = threading.RLock()


class _LazyDynamo(LazyModule):
    """Dynamo: functions that it must leave alone are collected before it is there, and passed to it
    once it is."""

    def __init__(self) -> None:
        super().__init__(_DYNAMO, {"disable": self._disable, "graph_break": _graph_break})
        self.__dict__["_waiting"] = []

    def __getattr__(self, name: str) -> Any:
        part = None if self.is_loaded else _PARTS_OF_DYNAMO.get((name, _caller()))
        return part or super().__getattr__(name)

    def _disable(
        self, function: Any = None, recursive: bool = True, *args: Any, **kwargs: Any
    ) -> Any:
        """As `torch._dynamo.disable`: for torch itself, which asks with `wrapping=False`, it waits
        for Dynamo; for a program it loads it."""
        if _caller() == _FSDP_HOOKS:
            return function
        if kwargs != {"wrapping": False} or args or function is None:
            self.load()
            return self.disable(function, recursive, *args, **kwargs)

        def left_alone(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        self.__dict__["_waiting"].append((function, recursive, left_alone))
        return left_alone

    def _execute(self, lazy: _Loading) -> None:
        super()._execute(lazy)
        for function, recursive, left_alone in self.__dict__["_waiting"]:
            if getattr(function, _DISABLED, None) is left_alone:
                setattr(function, _DISABLED, self.disable(function, recursive, wrapping=False))

    def forget(self) -> None:
        for function, _, left_alone in self.__dict__["_waiting"]:
            if getattr(function, _DISABLED, None) is left_alone:
                delattr(function, _DISABLED)


class _LazySympy(LazyModule):
    """sympy: as long as it is not there, no operand is an expression."""

    def __getattr__(self, name: str) -> Any:
        if name == "Basic" and not (self.is_loaded or self.is_loading) and _caller() == _PRIMS:
            return _NoExpression
        return super().__getattr__(name)


def _caller() -> str:
    """The module that asks for a name."""
    return str(sys._getframe(2).f_globals.get("__name__"))


#: What torch's modules ask of parts of Dynamo in programs that compile nothing: before a process
#: group is made, where there is nothing to clear, and where DDP begins the setting, of which
#: "python_reducer" alone is for programs that are not compiled.
_PARTS_OF_DYNAMO = {
    ("trace_rules", "torch.distributed.distributed_c10d"): SimpleNamespace(
        clear_lru_cache=lambda: None
    ),
    ("utils", "torch.nn.parallel.distributed"): SimpleNamespace(
        get_optimize_ddp_mode=lambda: str(importlib.import_module(_DYNAMO_CONFIG).optimize_ddp)
    ),
}


class _NoExpression:
    """A sentinel class without instances."""


def _graph_break(msg: str = "") -> None:
    """As torch's own, which does nothing where nothing is compiled."""


class _FindsPackageFirst(importlib.abc.MetaPathFinder):
    """Has a package's code run before a module in it is imported, as Python would have; those
    `apart` do without."""

    def __init__(self, package: LazyModule, apart: frozenset[str]) -> None:
        self._package = package
        self._prefix = f"{package.__name__}."
        self._apart = apart

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(self._prefix) or fullname in self._apart:
            return None
        package = self._package
        if package.is_loaded or package.is_loading or not package.load():
            return None
        module = sys.modules.get(fullname)
        if module is None:
            return None
        return importlib.machinery.ModuleSpec(fullname, _Imported(module))


class _Imported(importlib.abc.Loader):
    """Gives a module that the package's own code has imported already."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
