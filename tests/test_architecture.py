"""Every arrow points down: predictors, then hooks, then integrations; and names are as agreed."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from places import ROOT

ROOMS = {
    "predictors": "neusight.predictors",
    "neusight_hooks": "neusight",
    "integrations": "neusight.integrations",
}
#: What works with torch's own objects. All else loads without torch, and so `import neusight`,
#: the command line's help and pytest's start, which loads our plugin, stay quick.
NEEDS_TORCH = (
    "neusight.fake_cuda",
    "neusight.integrations.frameworks.lightning",
    "neusight.integrations.frameworks.transformers",
    "neusight.ops.launched",
    "neusight.questions",
    "neusight.recording.attribution",
    "neusight.recording.dispatch",
    "neusight.recording.handlers",
    "neusight.recording.hooks",
    "neusight.recording.recorder",
    "neusight.recording.signature",
    "neusight.recording.steps",
    "neusight.recording.storages",
    "neusight.recording.tensor",
    "neusight.recording.values",
)
#: The lazy list of public names, and `python -m neusight`: thin, and they see all rooms.
FRONT_DOORS = ("neusight", "neusight.__main__")
VAGUE_NAMES = ("base", "common", "helpers", "misc", "utils")


class Source(NamedTuple):
    """One file of the house: its folder, its import name, its syntax tree."""

    room: str
    module: str
    tree: ast.Module


class Import(NamedTuple):
    """One imported module; `name` is what is taken from it ("" for the module itself)."""

    module: str
    name: str = ""
    level: int = 0


def sources() -> Iterator[Source]:
    for room, package in ROOMS.items():
        for path in sorted((ROOT / room).rglob("*.py")):
            parts = path.relative_to(ROOT / room).with_suffix("").parts
            module = ".".join([package, *parts]).removesuffix(".__init__")
            yield Source(room, module, ast.parse(path.read_text(encoding="utf-8")))


def imports(nodes: Iterator[ast.AST] | list[ast.stmt]) -> Iterator[Import]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield Import(node.module or "", alias.name, node.level)


def imports_at_load(body: list[ast.stmt]) -> Iterator[Import]:
    """Imports that run when the module does: not those in functions or for type checkers only."""
    for node in body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from imports_at_load(node.orelse)
            continue
        yield from imports([node])
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for field in ("body", "orelse", "finalbody"):
                yield from imports_at_load(getattr(node, field, []))
            for handler in getattr(node, "handlers", []):
                yield from imports_at_load(handler.body)


def target(found: Import, modules: set[str]) -> str:
    """The module that an import loads: `from a import b` loads a.b where that is a module."""
    submodule = f"{found.module}.{found.name}"
    return submodule if submodule in modules else found.module


def is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


SOURCES = list(sources())
MODULES = {source.module for source in SOURCES}


def each(*, room: str = "", needs_torch: bool | None = None) -> pytest.MarkDecorator:
    """Runs the test for each file (of that room; of those that need torch, or do not)."""
    chosen = [
        source
        for source in SOURCES
        if room in ("", source.room) and needs_torch in (None, imports_torch(source.module))
    ]
    return pytest.mark.parametrize("source", chosen, ids=lambda source: source.module)


def imports_torch(module: str) -> bool:
    return any(is_within(module, package) for package in NEEDS_TORCH)


@each(room="predictors")
def test_predictors_import_nothing_of_ours_but_themselves(source: Source) -> None:
    ours = {target(found, MODULES) for found in imports(ast.walk(source.tree))}

    assert not [
        name
        for name in ours
        if is_within(name, "neusight") and not is_within(name, "neusight.predictors")
    ]


#: Rooms and top modules of predictors, from the ground up: each imports what stands on its own line
#: or above it here. `neusight.predictors` itself is the front door and sees all.
PREDICTOR_FLOORS = (
    ("errors", "printable", "words", "files", "kernel", "gpu"),
    ("physics",),
    ("predictor", "registry"),
    ("learned",),
    ("roofline", "tiled"),
    ("measuring",),
    ("training",),
)


def floor_of(module: str) -> int:
    part = module.removeprefix("neusight.predictors.").split(".")[0]
    [floor] = [number for number, parts in enumerate(PREDICTOR_FLOORS) if part in parts]
    return floor


@each(room="predictors")
def test_rooms_of_predictors_stand_on_those_below(source: Source) -> None:
    if source.module == "neusight.predictors":
        return
    loaded = {target(found, MODULES) for found in imports(ast.walk(source.tree))}
    ours = {name for name in loaded if is_within(name, "neusight.predictors")}

    assert [name for name in ours if floor_of(name) > floor_of(source.module)] == []


#: Rooms and modules of recording, from the ground up, as for predictors; on the last floor stands
#: what is built on the recorder.
RECORDING_FLOORS = (
    ("recording", "call_stack"),
    ("saving", "signature", "tape", "tensor"),
    ("attribution",),
    ("storages",),
    ("dispatch", "steps", "values"),
    ("hooks",),
    ("recorder",),
    ("handlers",),
)


def recording_floor_of(module: str) -> int:
    part = module.removeprefix("neusight.recording.").split(".")[0]
    [floor] = [number for number, parts in enumerate(RECORDING_FLOORS) if part in parts]
    return floor


@each(room="neusight_hooks")
def test_recording_stands_on_predictors_alone_and_its_modules_on_those_below(
    source: Source,
) -> None:
    if not source.module.startswith("neusight.recording."):
        return
    loaded = {target(found, MODULES) for found in imports(ast.walk(source.tree))}
    ours = {name for name in loaded if is_within(name, "neusight")}
    own = {name for name in ours if is_within(name, "neusight.recording")}

    others = [name for name in ours - own if not is_within(name, "neusight.predictors")]
    above = [name for name in own if recording_floor_of(name) > recording_floor_of(source.module)]
    assert (others, above) == ([], [])


@each(room="neusight_hooks")
def test_hooks_never_import_integrations(source: Source) -> None:
    loaded = {target(found, MODULES) for found in imports(ast.walk(source.tree))}

    upward = [name for name in loaded if is_within(name, "neusight.integrations")]
    assert upward == [] or source.module in FRONT_DOORS


def test_imports_are_absolute_and_by_import_name() -> None:
    wrong = []
    for path in sorted(ROOT.glob("*/**/*.py")):
        folder = path.relative_to(ROOT).parts[0]
        if folder not in {*ROOMS, "tests", "examples", "benchmarks", "scripts"}:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for found in imports(ast.walk(tree)):
            if found.level or found.module.split(".")[0] in ROOMS:
                wrong.append(f"{path.relative_to(ROOT)}: {found.module}")

    assert wrong == []


@each()
def test_private_names_stay_in_their_file(source: Source) -> None:
    taken = [
        f"{found.module}.{found.name}"
        for found in imports(ast.walk(source.tree))
        if is_within(found.module, "neusight")
        and found.name.startswith("_")
        and not found.name.endswith("__")
        and target(found, MODULES) == found.module
    ]

    assert taken == []


@each(needs_torch=False)
def test_torch_is_imported_only_where_it_is_needed(source: Source) -> None:
    loaded = {found.module.split(".")[0] for found in imports_at_load(source.tree.body)}

    assert "torch" not in loaded


def test_the_torch_free_modules_load_without_torch() -> None:
    free = sorted(
        module
        for module in MODULES
        if not imports_torch(module) and not module.endswith("__main__")
    )
    script = (
        "import importlib, sys\n"
        "sys.modules['torch'] = None\n"  # makes every import of it fail
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
    )

    ran = subprocess.run(
        [sys.executable, "-c", script, *free], capture_output=True, text=True, check=False
    )

    assert ran.returncode == 0, ran.stderr


def test_no_imports_run_in_circles() -> None:
    loads = {
        source.module: {
            name
            for found in imports_at_load(source.tree.body)
            if (name := target(found, MODULES)) in MODULES and name != source.module
        }
        for source in SOURCES
    }

    while leaves := {module for module, needed in loads.items() if not needed}:
        loads = {
            module: needed - leaves for module, needed in loads.items() if module not in leaves
        }

    assert loads == {}


@each()
def test_public_names_are_sorted_and_there(source: Source) -> None:
    lists = [
        ast.literal_eval(node.value)
        for node in source.tree.body
        if isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "__all__"
        and isinstance(node.value, ast.List | ast.Tuple)
    ]

    for names in lists:
        by_kind = sorted(names, key=constants_classes_functions)
        assert list(names) in (sorted(names), by_kind)
        assert len(set(names)) == len(names)


def constants_classes_functions(name: str) -> tuple[int, str]:
    """The order that ruff keeps (RUF022): constants, then classes, then the rest."""
    if name.isupper() and len(name) > 1:
        return (0, name)
    return (1 if name[:1].isupper() else 2, name)


def test_every_public_name_of_the_front_door_resolves() -> None:
    import neusight

    for name in getattr(neusight, "__all__", []):
        assert getattr(neusight, name) is not None


@each()
def test_every_file_opens_with_a_sentence_and_has_a_noun_for_a_name(source: Source) -> None:
    docstring = ast.get_docstring(source.tree) or ""

    assert docstring.split("\n\n")[0].rstrip().endswith((".", ":"))
    assert source.module.split(".")[-1] not in VAGUE_NAMES
