"""What stands for a function written in C looks as that does."""

from __future__ import annotations

import builtins
import gc
import inspect
import io
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from neusight.fake_cuda.overlay.builtin_functions import as_builtin
from neusight.session import forecast_on


def test_functions_on_files_have_the_class_of_other_builtins(tmp_path: Path) -> None:
    before = inspect.signature(open), open.__name__, open.__module__, open.__doc__

    with forecast_on("H100"):
        torch.ones(1, device="cuda")

        class Files:
            opened: Any = open
            allowed: Any = os.access

        assert {type(open), type(os.stat)} == {type(print)}
        assert (inspect.signature(open), open.__name__, open.__module__, open.__doc__) == before
        with Files().opened(tmp_path / "a", "w") as file:
            file.write("text")
        assert Files().allowed(tmp_path / "a", os.R_OK)
        assert open is io.open is builtins.open

    assert not (tmp_path / "a").exists()


def test_a_builtin_made_of_a_function_passes_arguments_results_and_errors_on() -> None:
    def keep(*args: object, **kwargs: object) -> object:
        if not args:
            raise LookupError("nothing")
        return args, kwargs

    made = as_builtin(len, keep)
    gc.collect()

    assert made(1, two=2) == ((1,), {"two": 2})
    assert str(inspect.signature(made)) == "(obj, /)"
    with pytest.raises(LookupError, match="nothing"):
        made()
