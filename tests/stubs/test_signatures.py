"""What stubs may be called with, and what is assumed where an argument is left out."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Iterator

import torch

import neusight
from neusight.stubs.catalogue import CATALOGUE
from places import GOLDEN_FILES

GOLDEN = GOLDEN_FILES / "stand_ins" / "signatures.txt"
#: Its interface is larger than what programs launch with it.
LEFT_OUT = ("triton",)


def signatures() -> Iterator[str]:
    """Of each function and class once, without the types of its arguments."""
    known: set[object] = set()
    homes = sorted({package.home for package in CATALOGUE.values()} - {*LEFT_OUT})
    for home in homes:
        modules = importlib.import_module(f"neusight.stubs.packages.{home}").MODULES
        for module, held in sorted(modules.items()):
            for name, value in sorted(held.items()):
                made = value.__init__ if inspect.isclass(value) else value
                if made in known or not inspect.isfunction(made):
                    continue
                known.add(made)
                if made.__module__.startswith("neusight"):
                    arguments = inspect.signature(made).parameters.values()
                    plain = [argument.replace(annotation=argument.empty) for argument in arguments]
                    yield f"{module}.{name}({', '.join(map(str, plain))})"


def test_arguments_and_defaults_are_those_of_the_packages() -> None:
    with neusight.forecast_on("H100"):
        torch.ones(1, device="cuda")
        text = "\n".join(signatures()) + "\n"
    if os.environ.get("NEUSIGHT_UPDATE_GOLDEN"):
        GOLDEN.write_text(text, encoding="utf-8")

    assert text == GOLDEN.read_text(encoding="utf-8")
