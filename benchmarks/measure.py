"""`neusight measure` from a bare clone, with nothing installed but torch (2.6 or later) and numpy.

    python benchmarks/measure.py --out benchmarks/measured/h100 --minutes 8

It takes the same options; `--help` lists them. Nothing of the GPU is changed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]

#: One import tree in three folders, as setup.cfg maps them for an installation.
FOLDERS = {
    "neusight": ROOT / "neusight_hooks",
    "neusight.predictors": ROOT / "predictors",
    "neusight.integrations": ROOT / "integrations",
}


class SourceTree(MetaPathFinder):
    """Finds the three packages in this clone, whatever is installed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        folder = FOLDERS.get(name)
        if folder is None:
            return None
        return spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )


def main() -> int:
    """The command."""
    sys.meta_path.insert(0, SourceTree())
    from neusight.exit_codes import ExitCode
    from neusight.integrations.cli.commands.measurements import measure as measure_command
    from neusight.predictors.errors import NeusightError

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    measure_command.add_arguments(parser)
    try:
        return measure_command.run(
            parser.parse_args(), start=(sys.executable, str(Path(__file__).resolve()))
        )
    except NeusightError as error:
        print(f"neusight: {error}", file=sys.stderr)
        return ExitCode.WRONG_USE


if __name__ == "__main__":
    raise SystemExit(main())
