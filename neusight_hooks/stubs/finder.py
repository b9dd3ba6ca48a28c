"""How a program imports stubs: by a finder in sys.meta_path while a forecast is open."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from email.message import Message
from importlib import import_module, metadata
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any

from neusight.stubs.catalogue import CATALOGUE, TAKE_WHAT_IS_THERE
from neusight.stubs.requirements import is_optional, lacks_what_is_imported

#: Where the spec of a stub says that it comes from.
_ORIGIN = "stub of neusight"

#: What an import raises where CUDA, its compiler or a library of it is missing.
_CANNOT_BE_IMPORTED = (ImportError, OSError, RuntimeError, AssertionError)


def install_stubs(undo: ExitStack, warn: Callable[[str], None]) -> None:
    """Packages that need CUDA and cannot be imported are found until `undo` ends, and what the
    program used of them is said then."""
    finder = _StubFinder()
    undo.callback(_warn_of_failures, warn, finder.failures)
    undo.callback(_forget_modules)
    undo.callback(sys.meta_path.remove, finder)
    sys.meta_path.insert(0, finder)


def _warn_of_failures(warn: Callable[[str], None], failures: Mapping[str, str]) -> None:
    from neusight.stubs.stub_ops import used_functions

    for package, functions in used_functions().items():
        why = f"cannot be imported ({failures[package]})" if package in failures else ""
        warn(
            f"{package} {why or 'is not installed'}; its functions are forecast by stubs: "
            f"{', '.join(functions)}"
        )


def _forget_modules() -> None:
    for name, module in list(sys.modules.items()):
        if getattr(getattr(module, "__spec__", None), "origin", None) == _ORIGIN:
            del sys.modules[name]


class _StubFinder(metadata.DistributionFinder):
    """Finds a package of the catalogue where no other finder does, and their distributions."""

    def __init__(self) -> None:
        #: Why packages that are installed cannot be imported.
        self.failures: dict[str, str] = {}
        self._is_searching = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The stub of that name; the real package, guarded, where it is installed."""
        package, _, inside = fullname.partition(".")
        if package not in CATALOGUE or self._is_searching:
            return None
        if inside:
            is_ours = _is_stub(sys.modules.get(package))
            found = is_ours and fullname in _modules_of(package)
            return _spec_of(fullname) if found else None
        real = self._real(fullname, path, target)
        if real is not None:
            return self._guarded(real)
        if not _may_find(package):
            return None
        settle = getattr(_home_of(package), "settle", None)
        if settle is not None:  # what must be done before the stub can be found
            settle()
        return _spec_of(fullname)

    def _real(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        """The spec that other finders return."""
        self._is_searching = True
        try:
            for finder in sys.meta_path:
                find = getattr(finder, "find_spec", None)
                spec = None if find is None or finder is self else find(fullname, path, target)
                if spec is not None and spec.loader is not None:
                    return spec  # type: ignore[no-any-return]
        finally:
            self._is_searching = False
        return None

    def _guarded(self, spec: ModuleSpec) -> ModuleSpec:
        """The real package, with the stub in its place where it cannot be imported."""
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            try:
                execute(module)
            except _CANNOT_BE_IMPORTED as error:
                self.failures[spec.name] = f"{type(error).__name__}: {error}".split("\n")[0]
                _replace(module)

        loader.exec_module = exec_module
        return spec

    def find_distributions(
        self, context: metadata.DistributionFinder.Context | None = None
    ) -> Iterable[metadata.Distribution]:
        wanted = None if context is None else context.name
        for package, stub in CATALOGUE.items():
            is_requested = wanted is None or _plain(wanted) in (_plain(stub.distribution), package)
            if (
                is_requested
                and not self._is_searching
                and _may_find(package)
                and self._is_absent(package)
            ):
                yield _Distribution(package, stub.distribution, stub.version)

    def _is_absent(self, package: str) -> bool:
        loaded = sys.modules.get(package)
        return _is_stub(loaded) if loaded else self._real(package, None, None) is None


def _plain(name: str) -> str:
    return name.lower().replace("-", "_").replace(".", "_")


def _is_stub(module: ModuleType | None) -> bool:
    return getattr(getattr(module, "__spec__", None), "origin", None) == _ORIGIN


def _may_find(package: str) -> bool:
    """Whether the importing code may find the stub: any code once the program has imported it; else
    neither the listed libraries, nor code that can do without the package and would import of it
    what the stub lacks."""
    stub = CATALOGUE[package]
    if stub.must_be_asked_for or _is_stub(sys.modules.get(package)):
        return True
    frame, between = _caller()
    if frame is None:
        return True
    library = _name_of(frame).partition(".")[0]
    if library in stub.seekers:
        return True
    if library in TAKE_WHAT_IS_THERE:
        return False
    is_absent = is_optional(frame, between) and lacks_what_is_imported(
        package, frame, _modules_of(package)
    )
    return not is_absent


#: Modules between an import statement and a finder.
_OF_IMPORTS = (
    "importlib",
    "_frozen_importlib",
    "_frozen_importlib_external",
    "pkgutil",
    "neusight",
)


def _caller() -> tuple[FrameType | None, list[str]]:
    """The code that imports, and the modules between it and the finder."""
    between: list[str] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _name_of(frame).partition(".")[0] in _OF_IMPORTS:
        between.append(_name_of(frame))
        frame = frame.f_back
    return frame, between


def _name_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _home_of(package: str) -> Any:
    return import_module(f"neusight.stubs.packages.{CATALOGUE[package].home}")


def _modules_of(package: str) -> Mapping[str, Mapping[str, Any]]:
    modules: Mapping[str, Mapping[str, Any]] = _home_of(package).MODULES
    return modules


def _spec_of(fullname: str) -> ModuleSpec:
    return ModuleSpec(fullname, _Loader(), origin=_ORIGIN, is_package=True)


class _Loader(Loader):
    """Makes a module of the stubs of that name."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        _fill(module)


def _fill(module: ModuleType) -> None:
    package = module.__name__.partition(".")[0]
    modules = _modules_of(package)
    held = modules[module.__name__]
    public = [name for name in held if not name.startswith("_")]
    vars(module).update(held, __version__=CATALOGUE[package].version, __all__=public)
    for name in modules if module.__name__ == package else ():
        if name.startswith(f"{package}."):
            import_module(name)


def _replace(module: ModuleType) -> None:
    """Makes the stub out of a package that was imported in part."""
    name = module.__name__
    for other in [key for key in sys.modules if key.startswith(f"{name}.")]:
        del sys.modules[other]
    spec = _spec_of(name)
    module.__spec__, module.__loader__, module.__path__ = spec, spec.loader, []
    _fill(module)


class _Distribution(metadata.Distribution):
    """The metadata of a package that is not installed."""

    def __init__(self, package: str, name: str, version: str) -> None:
        self._package = package
        self._headers = Message()
        self._headers["Metadata-Version"] = "2.1"
        self._headers["Name"] = name
        self._headers["Version"] = version

    def read_text(self, filename: str) -> str | None:
        return {
            "METADATA": self._headers.as_string(),
            "top_level.txt": f"{self._package}\n",
        }.get(filename)

    def locate_file(self, path: Any) -> Any:
        """Always raises: it has no files."""
        raise FileNotFoundError(f"{path} of {self._package}, which is not installed")
