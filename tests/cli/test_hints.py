"""A command line that means something else is answered with what to type."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from neusight.integrations.cli.hints import no_cuda_hint
from neusight.integrations.cli.main import main
from neusight.integrations.program.program import Program

#: What was typed, and the command that the hint says to type instead.
TABLE = [
    ("run small.py --gpu H100", "run --gpu H100 small.py"),
    ("run small.py --lr 1 --gpu=H100 --x", "run --gpu=H100 small.py --lr 1 --x"),
    ("--gpu H100 run small.py", "run --gpu H100 small.py"),
    ("--quiet run --gpu H100 small.py", "run --quiet --gpu H100 small.py"),
    ("run small.py", "run --gpu H100 small.py"),
    ("run --trace runs small.py --lr 1", "run --gpu H100 --trace runs small.py --lr 1"),
    ("run -m pkg.train", "run --gpu H100 -m pkg.train"),
    ("run", "run --gpu H100 train.py"),
    ("run --gpu H100", "run --gpu H100 train.py"),
    ("run --gpu H100 -m", "run --gpu H100 -m package.train"),
    ("run --gpu H100 --", "run --gpu H100 train.py"),
    ("small.py", "run --gpu H100 small.py"),
    ("small.py --lr 1", "run --gpu H100 small.py --lr 1"),
    ("--gpu T4 small.py", "run --gpu T4 small.py"),
    ("-m pkg.train --lr 1", "run --gpu H100 -m pkg.train --lr 1"),
    ("run --gpu H100 --html small.py", "run --gpu H100 --html report.html small.py"),
    ("run --gpu H100 --json small.py", "run --gpu H100 --json out.json small.py"),
    ("run --gpu H100 --trace small.py", "run --gpu H100 --trace runs small.py"),
    ("run --gpu small.py", "run --gpu H100 small.py"),
    ("run --gpus H100 small.py", "run --gpu H100 small.py"),
    ("run --gpu H100 --stric small.py", "run --gpu H100 --strict"),
    ("check --gpu H100 --updat", "check --gpu H100 --update"),
    ("compare --jsn o.json a b", "compare --json o.json a b"),
    ("rnu --gpu H100 small.py", "run --gpu H100 small.py"),
    ("chek", "check"),
    ("run --gpu H100 folder", "run --gpu H100 folder/train.py"),
    ("run --gpu H100 lib", "run --gpu H100 lib/model.py"),
    ("run --gpu H100 program --x", "run --gpu H100 program/__main__.py --x"),
    ("run --gpu H100 folder/book.ipynb", "run --gpu H100 folder/book.py"),
    ("run --gpu H100 start.sh", "run --gpu H100 small.py --lr 3"),
    ("run --gpu H100 job", "run --gpu H100 small.py"),
    ("run --gpu H100 odd.sh", "run --gpu H100 train.py"),
    ("run --gpu H100 python small.py --x", "run --gpu H100 small.py --x"),
    ("run --gpu H100 python -m pkg.train", "run --gpu H100 -m pkg.train"),
    ("run --gpu H100 smal.py --x", "run --gpu H100 small.py --x"),
    ("run --gpu H100 pkg.train", "run --gpu H100 -m pkg.train"),
    ("check --gpu H100 smal.py", "check --gpu H100 small.py"),
    ("check --gpu H100 folder", "check --gpu H100 folder/train.py"),
    ("check --gpu H100 small.py --update", "check --gpu H100 --update small.py"),
    (
        "check --gpu T4 small.py --x 1 --tolerance ttft=1% --update",
        "check --gpu T4 --tolerance ttft=1% --update small.py --x 1",
    ),
    (
        "check --gpu T4 small.py --tolerance ttft=1% --x 1 --y 2",
        "check --gpu T4 --tolerance ttft=1% small.py --x 1 --y 2",
    ),
    (
        "check --gpu T4 small.py --tolerance=ttft=1% --x 1",
        "check --gpu T4 --tolerance=ttft=1% small.py --x 1",
    ),
    ("run --quiet small.py --gpu H100 --x 1", "run --quiet --gpu H100 small.py --x 1"),
]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script that must not run, and what is mistaken for one."""
    for folder in ("folder", "program", "pkg", "lib"):
        (tmp_path / folder).mkdir()
    for name in ("small.py", "folder/train.py", "folder/data.py", "program/__main__.py",
                 "pkg/train.py", "lib/__init__.py", "lib/model.py"):  # fmt: skip
        (tmp_path / name).write_text("raise SystemExit('it ran')\n")
    (tmp_path / "folder" / "book.ipynb").write_text(json.dumps({"cells": []}))
    (tmp_path / "start.sh").write_text("set -e\npython -u small.py --lr 3 \\\n  --x 1\n")
    (tmp_path / "job").write_text("#!/usr/bin/env bash\nsrun python small.py\n")
    (tmp_path / "odd.sh").write_text('python small.py --name "two\nlines"\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("typed", "instead"), TABLE)
def test_a_hint_says_what_to_type(
    typed: str, instead: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(shlex.split(typed)) == 2

    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("neusight: ")
    assert f"neusight {instead}" in printed.err
    assert "it ran" not in printed.err


@pytest.mark.parametrize(("size", "script"), [(65_536, "small.py"), (65_537, "train.py")])
def test_a_shell_script_is_read_as_far_as_64_kib(
    size: int, script: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = "\npython small.py"
    (project / "long.sh").write_text("#" * (size - len(start)) + start)

    assert main(["run", "--gpu", "H100", "long.sh"]) == 2
    assert f"neusight run --gpu H100 {script}" in capsys.readouterr().err


@pytest.mark.parametrize("instead", sorted({instead for _, instead in TABLE}))
def test_what_a_hint_says_is_taken_without_another(
    instead: str, project: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    from neusight.integrations.cli.commands import check as check_command
    from neusight.integrations.cli.commands import compare as compare_command
    from neusight.integrations.cli.commands import run as run_command

    (project / "package").mkdir()
    (project / "train.py").touch()
    (project / "folder" / "book.py").touch()
    for module in (run_command, check_command, compare_command):
        monkeypatch.setattr(module, "run", lambda *_: 0)
    words = shlex.split(instead)
    if words[-1] == "--strict":  # an option that the command goes on after
        words.append("small.py")

    assert main(words) == 0, capsys.readouterr().err


def test_after_two_dashes_every_option_is_the_scripts(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from neusight.integrations.cli.commands import check as check_command

    monkeypatch.setattr(check_command, "run", lambda options, program: len(program.arguments))

    assert main(["check", "--gpu", "H100", "--", "small.py", "--update"]) == 1


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("run --quiet", "give the script to run: neusight run --quiet train.py"),
        ("run -x --gpu H100 small.py", "run has no option '-x'."),
        ("run --quiet -x --gpu H100 small.py", "run has no option '-x'."),
        ("run --gpu=H100 -x small.py", "run has no option '-x'."),
        ("run --gpu H100 -x small.py", "run has no option '-x'."),
        ("run --gpu H100 --quiet --json out.json -x small.py", "run has no option '-x'."),
        ("run --gpu H100 --max-memory", "run --gpu H100 --max-memory train.py"),
    ],
)
def test_what_is_missing_or_unknown_is_named(
    typed: str, said: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(shlex.split(typed)) == 2

    assert said in capsys.readouterr().err


def test_a_module_that_is_nowhere_is_reported(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--gpu", "H100", "-m", "absent.train"]) == 2

    assert "there is no module 'absent'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("parser.add_argument('--device', default='cpu')", "train.py --x 1 --device cuda"),
        ('parser.add_argument("--cuda", action="store_true")', "train.py --x 1 --cuda"),
        ("print('hello')", "train.py --x 1"),
    ],
)
def test_a_script_that_puts_nothing_on_the_gpu_is_shown_how(
    text: str, instead: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)

    hint = no_cuda_hint(Program(str(script), ("--x", "1")), ["run", "--gpu", "H100"])

    assert f"neusight run --gpu H100 {tmp_path}/{instead}" in hint
    assert ("model.cuda()" in hint) == ("hello" in text)


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_needs_no_script(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", option])

    assert ended.value.code == 0
    assert "--gpu" in capsys.readouterr().out


def test_a_word_like_no_command_names_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["frobnicate"]) == 2

    assert "`neusight --help` lists the commands" in capsys.readouterr().err


def test_options_of_the_script_stay_its_own(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from neusight.integrations.cli.commands import run as run_command

    seen: list[Program] = []

    def run(options: object, program: Program) -> int:
        seen.append(program)
        return 0

    monkeypatch.setattr(run_command, "run", run)

    assert main(["run", "--gpu", "T4", "small.py", "--gpu", "3", "--html", "x"]) == 0
    assert seen[0].arguments == ("--gpu", "3", "--html", "x")


@pytest.mark.parametrize("word", ["--data tables", "--data=tables"])
def test_what_a_command_takes_without_an_option_is_no_misspelt_option(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", *word.split(), "--out", "w"]) == 2

    stated = capsys.readouterr().err
    assert stated == "neusight: fit takes DATA without --data: neusight fit tables --out w\n"
