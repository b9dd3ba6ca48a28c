"""Programs in a random order do in a guarded folder what they do in any; nothing below changes."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest
from guarded_files import GUARDS, guard_by, standing

from neusight.integrations.program.guard.guarded_process import in_guarded_process

PATHS = ("a", "b", "link", "hard", "d", "d/x", "d/e", "d/e/z", "n", "n/m", "to_d/x")
LINES = (
    "rm {0}", "rm -r {0}", "mv {0} {1}", "cp -r {0} {1}", "cp -a {0} {1}", "mkdir {0}",
    "mkdir -p {0}", "ln -s a {0}", "ln -sf d {0}", "echo + >> {0}", "echo w > {0}", "ln {0} {1}",
    "sed -i s/u/v/ {0}", "chmod 640 {0}", "chmod -R u+rwX,go-rwx {0}", "rmdir {0}", "touch {0}",
    "find {0} -type f | sort", "tar cf t.tar {0}; rm -rf {0}; tar xf t.tar; rm t.tar",
    "find {0} -type f -delete", "grep -r user {0} | sort", "cat {0}", "truncate -s 5 {0}",
    "install -m 600 a {0}", "cd {0} && ls && echo k > k", "find . -name x -exec rm {{}} +",
)  # fmt: skip
#: Shows all that is visible, as programs list and read it.
LOOK = (
    r"find . -printf '%p %y %m %l\n' | LC_ALL=C sort; ls -R; "
    "find . -type f -print | LC_ALL=C sort | xargs -r cat"
)


def furnish(folder: Path) -> None:
    (folder / "d" / "e").mkdir(parents=True)
    for name in ("a", "b", "d/x", "d/e/z"):
        (folder / name).write_text(f"the user's {name}")
    os.link(folder / "a", folder / "hard")
    (folder / "link").symlink_to("b")
    (folder / "to_d").symlink_to("d")


def outcomes(lines: list[str], folder: Path) -> list[str]:
    """What programs print, and what can be seen after each of them."""
    return [
        subprocess.run(
            ["bash", "-c", f"({line}) 2>&1; {LOOK}"], cwd=folder, capture_output=True, text=True
        ).stdout
        for line in lines
    ]


@pytest.mark.slow
@pytest.mark.parametrize("mode", GUARDS)
def test_it_is_as_without_a_guard(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if mode == "view" and os.geteuid() != 0:
        pytest.skip("a view in which hard links are two files")
    guard_by(mode, monkeypatch)
    monkeypatch.chdir(tmp_path)
    generator = random.Random(26)
    runs = {
        number: [
            generator.choice(LINES).format(generator.choice(PATHS), generator.choice(PATHS))
            for _ in range(4)
        ]
        for number in range(15)
    }
    for number in runs:
        for kind in ("real", "shown"):
            furnish(tmp_path / kind / str(number))
    before = standing(tmp_path / "shown")
    expected = {
        number: outcomes(lines, tmp_path / "real" / str(number)) for number, lines in runs.items()
    }

    seen = in_guarded_process(
        lambda store: {
            number: outcomes(lines, tmp_path / "shown" / str(number))
            for number, lines in runs.items()
        },
        ["script.py"],
    ).answer

    assert seen == expected, [runs[n] for n in runs if seen is None or seen[n] != expected[n]]
    assert standing(tmp_path / "shown") == before
