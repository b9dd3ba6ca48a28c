"""Packages that need CUDA are found in a forecast, where nobody else has them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest
import torch

import neusight


@contextmanager
def a_forecast() -> Iterator[neusight.Forecast]:
    """A forecast in which something runs."""
    with neusight.forecast_on("H100") as forecast:
        torch.ones(1, device="cuda")
        yield forecast


def test_a_package_is_found_only_inside_and_said_once() -> None:
    with a_forecast() as forecast:
        from flash_attn import flash_attn_func  # type: ignore[import-not-found]

        heads = [torch.ones(1, 64, 2, 64, device="cuda", dtype=torch.float16) for _ in range(3)]
        flash_attn_func(*heads)
        flash_attn_func(*heads)
    lines = [line for line in forecast.warnings if "flash_attn" in line]

    assert lines == [
        "flash_attn is not installed; its functions are forecast by stubs: flash_attn_func"
    ]
    assert "flash_attn" not in sys.modules
    assert importlib.util.find_spec("flash_attn") is None


def test_an_import_alone_is_not_worth_a_word() -> None:
    with a_forecast() as forecast:
        import flash_attn.bert_padding  # type: ignore[import-not-found]  # noqa: F401

    assert not [line for line in forecast.warnings if "flash_attn" in line]


def test_it_has_a_version_as_if_it_were_installed() -> None:
    with a_forecast():
        version = metadata.version("flash_attn")
        again = metadata.version("flash-attn")
        providers = metadata.packages_distributions()["flash_attn"]
        import flash_attn

        assert flash_attn.__version__ == version == again == "2.8.3"

    assert providers == ["flash-attn"]
    with pytest.raises(metadata.PackageNotFoundError):
        metadata.version("flash_attn")


def test_what_has_no_stand_in_is_missing_as_ever() -> None:
    with a_forecast():
        with pytest.raises(ModuleNotFoundError, match=r"flash_attn\.cute"):
            importlib.import_module("flash_attn.cute")
        with pytest.raises(ImportError, match="flash_attn_of_tomorrow"):
            from flash_attn import flash_attn_of_tomorrow  # noqa: F401


def test_a_package_that_is_there_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "flash_attn.py").write_text("flash_attn_func = 'real'")
    monkeypatch.syspath_prepend(tmp_path)

    with a_forecast():
        import flash_attn
    del sys.modules["flash_attn"]

    assert flash_attn.flash_attn_func == "real"


def test_one_that_is_there_but_breaks_without_cuda_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "flash_attn"
    package.mkdir()
    (package / "part.py").write_text("raise ImportError('libcudart.so.12: cannot open')")
    (package / "__init__.py").write_text("import flash_attn.part")
    monkeypatch.syspath_prepend(tmp_path)

    with a_forecast() as forecast:
        import flash_attn

        heads = [torch.ones(1, 64, 2, 64, device="cuda", dtype=torch.float16) for _ in range(3)]
        flash_attn.flash_attn_func(*heads)

    [line] = [line for line in forecast.warnings if "flash_attn" in line]
    assert "flash_attn cannot be imported (ImportError: libcudart.so.12: cannot open)" in line
    assert "flash_attn" not in sys.modules


def test_libraries_that_take_what_is_there_find_no_stand_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = ModuleType("timm.layers")
    exec("def has(name):\n  import importlib.util as u\n  return u.find_spec(name)", vars(library))

    with a_forecast():
        before = vars(library)["has"]("apex")
        import apex  # type: ignore[import-not-found]  # noqa: F401

        after = vars(library)["has"]("apex")

    assert before is None
    assert after is not None


def test_a_package_that_wants_more_than_the_stand_in_has_finds_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "library_with_fp8"
    library.mkdir()
    (library / "__init__.py").write_text(
        "import importlib.metadata, importlib.util\n"
        "try:\n"
        "    import transformer_engine\n"
        "    HAVE_TE = True\n"
        "except ImportError:\n"
        "    HAVE_TE = False\n"
        "IS_FOUND = importlib.util.find_spec('transformer_engine') is not None\n"
        "try:\n"
        "    VERSION = importlib.metadata.version('transformer-engine')\n"
        "except importlib.metadata.PackageNotFoundError:\n"
        "    VERSION = None\n"
        "if HAVE_TE:\n"
        "    from library_with_fp8 import tensors\n"
    )
    (library / "tensors.py").write_text("import transformer_engine.pytorch.tensor_of_tomorrow\n")
    monkeypatch.syspath_prepend(tmp_path)

    with a_forecast():
        found = importlib.import_module("library_with_fp8")
    del sys.modules["library_with_fp8"]

    assert (found.HAVE_TE, found.IS_FOUND, found.VERSION) == (False, False, None)


def test_a_package_that_wants_what_the_stand_in_has_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "library_with_linear.py").write_text(
        "try:\n"
        "    import transformer_engine.pytorch as te\n"
        "    from transformer_engine.common.recipe import Format\n"
        "    HAVE_TE = True\n"
        "except ImportError:\n"
        "    HAVE_TE = False\n"
        "def later():\n"
        "    import transformer_engine.pytorch.tensor_of_tomorrow\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    with a_forecast():
        found = importlib.import_module("library_with_linear")
    del sys.modules["library_with_linear"]

    assert found.HAVE_TE
