"""What code imports of a package, and whether it goes on without."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from neusight.stubs.requirements import is_optional, lacks_what_is_imported

MODULES = {"stub": {"linear": 1}, "stub.part": {}, "stub.words": {"__getattr__": 1}}

FRAME = "import sys\nhere = sys._getframe()\n"


def lacks(tmp_path: Path, text: str) -> bool:
    path = tmp_path / "asking.py"
    path.write_text(FRAME + text)
    names = {"__name__": "asking_of_no_package"}
    exec(compile(FRAME, str(path), "exec"), names)
    return lacks_what_is_imported("stub", names["here"], MODULES)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "import stub.part",
        "from stub import linear, part, __version__",
        "from stub.words import whatever",
        "import stubborn.part",
        "from .stub import tensor",
        "def later():\n    import stub.tensor",
        "if TYPE_CHECKING:\n    import stub.tensor",
        "try:\n    import stub.tensor\nexcept ImportError:\n    import stub.part",
    ],
)
def test_a_stub_suffices(tmp_path: Path, text: str) -> None:
    assert not lacks(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        "import stub.tensor",
        "from stub import tensor",
        "from stub.tensor import *",
        "if HAVE_STUB:\n    import stub.tensor",
        "class Layer:\n    import stub.tensor",
        "try:\n    import stub.tensor\nexcept ImportError:\n    stub = None",
    ],
)
def test_a_stub_lacks_something(tmp_path: Path, text: str) -> None:
    assert lacks(tmp_path, text)


def test_text_that_no_file_holds_lacks_nothing() -> None:
    names = {"__name__": "asking_of_no_package"}
    exec(FRAME, names)

    assert not lacks_what_is_imported("stub", names["here"], MODULES)  # type: ignore[arg-type]


def test_an_import_is_optional_where_its_failure_is_handled() -> None:
    try:
        handled = is_optional(sys._getframe(), [])
    except (KeyError, ImportError):
        raise
    try:
        other = is_optional(sys._getframe(), [])
    except KeyError:
        raise

    assert handled
    assert not other
    assert not is_optional(sys._getframe(), ["importlib"])
    assert is_optional(sys._getframe(), ["importlib._bootstrap", "importlib.util"])
