"""Every arrow points down: predictors, then hooks, then integrations; and names are as agreed."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from places import ROOT, TESTS

FLOORS = {
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
    "neusight.integrations.layouts.training",
    "neusight.integrations.suites.programs",
    "neusight.ops.launched",
    "neusight.device_queries",
    "neusight.recording.attribution",
    "neusight.recording.dispatch",
    "neusight.recording.handlers",
    "neusight.recording.hooks",
    "neusight.recording.inputs",
    "neusight.recording.recorder",
    "neusight.recording.repeats",
    "neusight.recording.signature",
    "neusight.recording.steps",
    "neusight.recording.storages",
    "neusight.recording.tensor",
    "neusight.recording.values",
    "neusight.stubs.cuda_sources",
    "neusight.stubs.hub_kernels",
    "neusight.stubs.stub_ops",
    "neusight.stubs.packages",
    "neusight.stubs.shared",
)
#: Rooms, and modules that stand outside them, lowest first: each imports only what comes before it.
#: A package is a folder with all that lies in it. HOW_IT_WORKS.md says what each holds.
ORDER = (
    "neusight._version",
    "neusight.predictors.errors",
    "neusight.predictors.terminal_text",
    "neusight.predictors.formatting",
    "neusight.predictors.files",
    "neusight.predictors.kernel",
    "neusight.predictors.clusters",
    "neusight.predictors.gpu",
    "neusight.predictors.physics",
    "neusight.predictors.learned",
    "neusight.predictors.predictor",
    "neusight.predictors.registry",
    "neusight.predictors.roofline",
    "neusight.predictors.published",
    "neusight.predictors.tiled",
    "neusight.predictors.measuring",
    "neusight.predictors.training",
    "neusight.exit_codes",
    "neusight.compatibility.releases",
    "neusight.compatibility",
    "neusight.recording.recording",
    "neusight.recording.call_stack",
    "neusight.recording.saving",
    "neusight.recording.signature",
    "neusight.recording.tape",
    "neusight.recording.tensor",
    "neusight.recording.attribution",
    "neusight.recording.storages",
    "neusight.recording.inputs",
    "neusight.recording.dispatch",
    "neusight.recording.steps",
    "neusight.recording.values",
    "neusight.recording.repeats",
    "neusight.recording.hooks",
    "neusight.recording.recorder",
    "neusight.recording.handlers",
    "neusight.failure",
    "neusight.interrupts",
    "neusight.ops",
    "neusight.timeline",
    "neusight.timeline.ranks",
    "neusight.memory",
    "neusight.inference",
    "neusight.output",
    "neusight.fake_cuda",
    "neusight.stubs",
    "neusight.device_queries",
    "neusight.advice",
    "neusight.forecast",
    "neusight.session",
    "neusight.serving",
    "neusight.child_process",
    "neusight.startup",
    "neusight.integrations.report",
    "neusight.integrations.program",
    "neusight.integrations.frameworks",
    "neusight.integrations.profiles",
    "neusight.integrations.suites",
    "neusight.integrations.check",
    "neusight.integrations.layouts",
    "neusight.integrations.serving",
    "neusight.integrations.cli",
)
#: Modules without a test file of their own, by themselves or by their package: the test that runs
#: them together with their neighbours.
TESTED_WITH = {
    "neusight._version": "test_packaging.py",
    "neusight.advice.rewriting": "advice/test_checkpoints.py",
    "neusight.fake_cuda.profiling.results": "fake_cuda/profiling/test_profilers.py",
    "neusight.child_process": "cli/test_started_programs.py",
    "neusight.device_queries": "test_forecast.py",
    "neusight.exit_codes": "cli/test_main.py",
    "neusight.fake_cuda.compiling.graphs": "fake_cuda/compiling/graphs/test_trees.py",
    "neusight.fake_cuda.compiling.rules": "fake_cuda/compiling/test_compiler.py",
    "neusight.fake_cuda.distributed": "fake_cuda/distributed/test_process_groups.py",
    "neusight.fake_cuda.import_hooks": "fake_cuda/test_packages.py",
    "neusight.fake_cuda.nvml": "fake_cuda/nvml/test_nvml.py",
    "neusight.fake_cuda.processes": "fake_cuda/test_packages.py",
    "neusight.fake_cuda.session": "end_to_end/test_leave_no_trace.py",
    "neusight.fake_cuda.store.changes": "program/guard/test_view.py",
    "neusight.fake_cuda.triton_driver": "fake_cuda/test_user_kernels.py",
    "neusight.integrations.check": "check/test_judgement.py",
    "neusight.integrations.check.comparing": "cli/commands/test_compare.py",
    "neusight.integrations.cli": "cli/test_main.py",
    "neusight.integrations.frameworks.tensorboard_repair": "frameworks/test_tensorboard.py",
    "neusight.integrations.layouts": "layouts/test_search.py",
    "neusight.integrations.profiles.carrying": "profiles/carrying/test_carried.py",
    "neusight.integrations.profiles.comparison": "profiles/comparison/test_comparison.py",
    "neusight.integrations.profiles.reading": "profiles/reading/test_reading.py",
    "neusight.integrations.program": "program/test_recording.py",
    "neusight.integrations.program.errors": "cli/test_main.py",
    "neusight.integrations.program.guard.layers": "program/guard/test_view.py",
    "neusight.integrations.program.guard": "program/guard/test_supervisor.py",
    "neusight.integrations.program.ranks": "program/ranks/test_side_by_side.py",
    "neusight.integrations.report": "report/test_html.py",
    "neusight.integrations.serving": "cli/commands/test_serve.py",
    "neusight.integrations.suites": "suites/test_evaluation.py",
    "neusight.memory.allocator_settings": "memory/test_allocator.py",
    "neusight.ops.rows.rms_norm": "ops/rows/test_normalization.py",
    "neusight.output.names.native": "output/names/test_kernel.py",
    "neusight.output.trace": "output/test_trace.py",
    "neusight.predictors.errors": "predictors/test_registry.py",
    "neusight.predictors.learned.convolutions": "learned/test_features.py",
    "neusight.predictors.physics.communication": "physics/communication/test_collective.py",
    "neusight.predictors.physics.memory_bound.kinds": "physics/memory_bound/test_timing.py",
    "neusight.predictors.predictor": "predictors/test_registry.py",
    "neusight.predictors.published": "predictors/published/test_neusight.py",
    "neusight.predictors.training": "training/test_training.py",
    "neusight.recording.inputs": "recording/inputs/test_batch.py",
    "neusight.recording.repeats": "recording/repeats/test_calls.py",
    "neusight.serving": "cli/commands/test_serve.py",
    "neusight.startup": "cli/test_started_programs.py",
    "neusight.stubs.catalogue": "stubs/test_finder.py",
    "neusight.stubs.shared": "stubs/packages/test_flash_attention.py",
    "neusight.timeline": "timeline/test_scheduler.py",
    "neusight.timeline.operators": "timeline/operators/test_tree.py",
}
#: Modules at the top of a folder, beside its packages and the list of its names.
MOST_MODULES = 10
#: Nine of ten functions of a package are at most this long, lines.
LONG_FUNCTION = 25
#: A class above this says why, in a comment at it that begins like `LONG_CLASS`.
LONG_CLASS_LINES = 300
LONG_CLASS = "# Over 300 lines: "
#: The lazy list of public names, and `python -m neusight`: thin, and they see all packages.
FRONT_DOORS = ("neusight", "neusight.__main__", "neusight.predictors", "neusight.recording")
#: The program's own `main`, and the command `run`, which is called as each command's `run` is.
NAMED_ALIKE = ("neusight.integrations.cli.main", "neusight.integrations.cli.commands.run")
VAGUE_NAMES = ("base", "common", "helpers", "misc", "utils")


class Source(NamedTuple):
    """One file of the house: its floor (a top-level folder), import name and path."""

    floor: str
    module: str
    path: Path

    @property
    def tree(self) -> ast.Module:
        return parsed(self.path)


@cache
def parsed(path: Path) -> ast.Module:
    """Its syntax tree; when a test asks, not when all tests are collected."""
    return ast.parse(path.read_text(encoding="utf-8"))


class Import(NamedTuple):
    """One imported module; `name` is what is taken from it ("" for the module itself)."""

    module: str
    name: str = ""
    level: int = 0


def sources() -> Iterator[Source]:
    for floor, package in FLOORS.items():
        for path in sorted((ROOT / floor).rglob("*.py")):
            parts = path.relative_to(ROOT / floor).with_suffix("").parts
            module = ".".join([package, *parts]).removesuffix(".__init__")
            yield Source(floor, module, path)


def imports(nodes: Iterator[ast.AST] | list[ast.stmt]) -> Iterator[Import]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield Import(node.module or "", alias.name, node.level)


def imports_outside_functions(body: list[ast.stmt], *, for_types: bool) -> Iterator[Import]:
    """Imports at the level of the module or a class; with `for_types` those for type checkers
    too, which do not run when the module does."""
    for node in body:
        if not for_types and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from imports_outside_functions(node.orelse, for_types=for_types)
            continue
        yield from imports([node])
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = [getattr(node, field, []) for field in ("body", "orelse", "finalbody")]
            inner += [handler.body for handler in getattr(node, "handlers", [])]
            for part in inner:
                yield from imports_outside_functions(part, for_types=for_types)


def target(found: Import, modules: set[str]) -> str:
    """The module that an import loads: `from a import b` loads a.b where that is a module."""
    submodule = f"{found.module}.{found.name}"
    return submodule if submodule in modules else found.module


def is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


SOURCES = list(sources())
MODULES = {source.module for source in SOURCES}


def each(
    *, floor: str = "", needs_torch: bool | None = None
) -> Callable[[Callable[[Source], None]], Callable[[], None]]:
    """Runs the test for each file (of that floor; of those that need torch, or do not), as one test
    that names all files that fail: thousands of tests would take longer than what they look at."""
    chosen = [
        source
        for source in SOURCES
        if floor in ("", source.floor) and needs_torch in (None, imports_torch(source.module))
    ]

    def decorated(test: Callable[[Source], None]) -> Callable[[], None]:
        def of_all() -> None:
            failed = []
            for source in chosen:
                try:
                    test(source)
                except AssertionError as error:
                    failed.append(f"{source.module}: {error}")
            assert not failed, "\n".join(failed)

        of_all.__name__, of_all.__doc__ = test.__name__, test.__doc__
        return of_all

    return decorated


def imports_torch(module: str) -> bool:
    return any(is_within(module, package) for package in NEEDS_TORCH)


@each(floor="predictors")
def test_predictors_import_nothing_of_ours_but_themselves(source: Source) -> None:
    ours = {target(found, MODULES) for found in imports(ast.walk(source.tree))}

    assert not [
        name
        for name in ours
        if is_within(name, "neusight") and not is_within(name, "neusight.predictors")
    ]


@each(floor="neusight_hooks")
def test_hooks_never_import_integrations(source: Source) -> None:
    loaded = {target(found, MODULES) for found in imports(ast.walk(source.tree))}

    upward = [name for name in loaded if is_within(name, "neusight.integrations")]
    assert upward == [] or source.module in FRONT_DOORS


def package_of(module: str) -> str:
    """The entry of `ORDER` that a module belongs to."""
    return max(
        (package for package in ORDER if is_within(module, package)), key=len, default=module
    )


def test_every_module_has_its_place_in_the_order() -> None:
    homes = {package_of(source.module) for source in SOURCES if not is_front_door(source.module)}

    assert homes == set(ORDER)


@each()
def test_a_package_imports_only_what_is_below_it(source: Source) -> None:
    if is_front_door(source.module):
        return
    place = ORDER.index(package_of(source.module))

    loaded = {target(found, MODULES) for found in imports(ast.walk(source.tree))} & MODULES
    packages = {package_of(module) for module in loaded if not is_front_door(module)}

    assert [package for package in packages if ORDER.index(package) > place] == []


def is_front_door(module: str) -> bool:
    return module in FRONT_DOORS or module in FLOORS.values()


@pytest.mark.parametrize("folder", sorted({source.path.parent for source in SOURCES}), ids=str)
def test_a_folder_holds_few_modules(folder: Path) -> None:
    modules = [path.name for path in folder.glob("*.py") if path.name != "__init__.py"]

    assert len(modules) <= MOST_MODULES


@pytest.mark.parametrize("folder", sorted({source.path.parent for source in SOURCES}), ids=str)
def test_nine_functions_in_ten_are_short(folder: Path) -> None:
    lengths = sorted(
        num_lines(node)
        for source in SOURCES
        if source.path.parent == folder
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )

    assert not lengths or lengths[int(0.9 * len(lengths))] <= LONG_FUNCTION


@each()
def test_a_long_class_says_why(source: Source) -> None:
    lines = source.path.read_text(encoding="utf-8").splitlines()

    for node in ast.walk(source.tree):
        if isinstance(node, ast.ClassDef) and num_lines(node) > LONG_CLASS_LINES:
            first = min([node.lineno, *(line.lineno for line in node.decorator_list)]) - 1
            above = first
            while lines[above - 1].startswith("#"):
                above -= 1
            assert lines[above].startswith(LONG_CLASS), f"{node.name}: {num_lines(node)} lines"


def num_lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def test_no_class_name_stands_twice() -> None:
    homes: dict[str, list[str]] = {}
    for source in SOURCES:
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(source.module)

    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


@each()
def test_no_function_is_named_as_its_module(source: Source) -> None:
    functions = {node.name for node in source.tree.body if isinstance(node, ast.FunctionDef)}

    assert source.module.rpartition(".")[2] not in functions or source.module in NAMED_ALIKE


def test_the_tests_mirror_the_packages() -> None:
    packages = {part for package in ORDER for part in package.split(".")} | {"end_to_end", "golden"}
    folders = [path for path in (ROOT / "tests").iterdir() if path.is_dir()]

    strangers = [
        path.name for path in folders if path.name not in packages and not path.name.startswith("_")
    ]

    assert strangers == []


def has_own_test(source: Source) -> bool:
    inside = source.path.relative_to(ROOT)
    own = Path(*inside.parts[1:-1], f"test_{inside.name}")
    return (TESTS / own).is_file() or (TESTS / inside.parts[0] / own).is_file()


def test_every_module_has_a_test_of_its_own_or_one_that_is_stated() -> None:
    files = [one for one in SOURCES if not one.path.name.startswith("__")]
    others = [one.module for one in files if not has_own_test(one)]

    assert [
        one for one in others if not any(is_within(one, package) for package in TESTED_WITH)
    ] == []
    for package, test in TESTED_WITH.items():
        assert (TESTS / test).is_file(), test
        assert any(is_within(module, package) for module in others), f"{package} needs no entry"


def test_imports_are_absolute_and_by_import_name() -> None:
    wrong = []
    for path in sorted(ROOT.glob("*/**/*.py")):
        folder = path.relative_to(ROOT).parts[0]
        if folder not in {*FLOORS, "tests", "examples", "benchmarks", "scripts"}:
            continue
        for found in imports(ast.walk(parsed(path))):
            if found.level or found.module.split(".")[0] in FLOORS:
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
    loaded = {
        found.module.split(".")[0]
        for found in imports_outside_functions(source.tree.body, for_types=False)
    }

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
            for found in imports_outside_functions(source.tree.body, for_types=True)
            if (name := target(found, MODULES)) in MODULES
            and name != source.module
            and not is_front_door(name)
        }
        for source in SOURCES
        if not is_front_door(source.module)
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


@each()
def test_sums_shown_to_users_take_no_argument_of_an_op_for_granted(source: Source) -> None:
    """Sparse and packed forms of an op have other arguments; `optional_tensor` and `get` do."""
    shown = ("neusight.output", "neusight.advice", "neusight.integrations")
    taken = [
        ast.unparse(node)
        for node in ast.walk(source.tree)
        if source.module.startswith(shown) and takes_for_granted(node)
    ]

    assert taken == []


def takes_for_granted(node: ast.AST) -> bool:
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Attribute) and node.value.attr == "by_name"
    called = node.func if isinstance(node, ast.Call) else None
    return isinstance(called, ast.Attribute) and ast.unparse(called).endswith("signature.tensor")
