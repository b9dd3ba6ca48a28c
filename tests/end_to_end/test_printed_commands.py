"""Commands that documents, the first lines of examples and hints print run as they are printed.

Each way to call a command runs once: what shows its output in a document runs in
test_document_outputs.py, and what another command has all options of does not run again.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_documents import COMMANDS, MENTIONS

from places import ROOT

TRAIN = """
import argparse, torch
from torch import nn
parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--config")
parser.add_argument("--device")
arguments = parser.parse_args()
model = nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    model(torch.randn(arguments.batch, 64, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


#: What these need is nowhere here, or they run elsewhere.
NOT_RUN = {
    r"profile|measured\.pt\.trace|PROFILE|\bcarry\b": "a profile of a real GPU: tests/profiles",
    r"plan --model": "the configuration of a model: tests/layouts",
    r"all_reduce_perf": "what nccl-tests print on a cluster: tests/clusters",
    r"validate measured": "measured workloads: tests/profiles/test_validation.py",
    r"evaluate|\bfit\b": "measurements of others: tests/suites, tests/training",
    r"neusight doctor": "tests/cli/commands/test_doctor.py",
}
#: Arguments that make a script of the examples small, as a user would add them.
SMALL = {
    "examples/train_gpt2.py": "--batch 1 --seq 64",
    "examples/plan_parallelism.py": "--layers 2 --width 512 --vocabulary 1000 --seq 512 "
    "--global-batch 16",
    "examples/serve_llama.py": "--requests 10 --output 8",
    "examples/serve_own_model.py": "--requests 10 --output 8",
    "examples/train_ddp.py": "--layers 2 --width 256",
    "examples/train_fsdp.py": "--size tiny --seq 128",
    "examples/train_tp_pp.py": "--size tiny --seq 128",
}
#: Values of options, and smaller ones that take the same way.
SMALLER = {
    r"(--sweep [\w-]+=\w+,\w+),[\w,]+": r"\1",
    r"--world-size (?:16|64|512)\b": "--world-size 4",
    r"--nproc-per-node 8": "--nproc-per-node 2",
    r"--gpus-per-node 8": "--gpus-per-node 2",
    r"--tp 8": "--tp 2",
    r"--size 405b": "--size tiny",
}
#: Runs commands one after the other in one process, which loads torch once; prints what failed.
RUN_ALL = """
import contextlib, glob, io, json, shlex, sys
from neusight.integrations.cli.main import main

def run(words):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if words[:2] == ["python", "-c"]:
            exec(words[2], {})
            return printed.getvalue()
        code = main([match for word in words[1:] for match in sorted(glob.glob(word)) or [word]])
    if code:
        failed.append([code, shlex.join(words)])
    return printed.getvalue()

failed, hints = [], []
for words in json.loads(sys.argv[1]):
    for line in run(words).splitlines():
        _, is_hint, hint = line.partition("in CI ")
        if is_hint and words[-1] == "train.py":
            hints.append(shlex.split(hint.partition("(first with")[0]))
first = hints[0]
for words in ([*first[:2], "--update", *first[2:]], first):
    run(words)
sys.exit(f"failed: {failed}" if failed else 0)
"""


def of_the_examples() -> list[tuple[str, str]]:
    """Commands in the first lines of the scripts in examples/."""
    found = []
    for path in sorted((ROOT / "examples").glob("*.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        lines = text.replace("\\\n", " ").splitlines()
        found += [(path.name, line.strip()) for line in lines if line.startswith("neusight ")]
    return found


def of_outputs() -> list[str]:
    """Commands whose output a document shows, which scripts/docs runs."""
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "GUIDE.md")]
    return [found for text in texts for found in re.findall(r"<!-- output.*: (neus.*) -->", text)]


def of_contributing() -> list[tuple[str, str]]:
    """Lines of Python that CONTRIBUTING.md prints."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return [
        ("CONTRIBUTING.md", line) for line in re.findall(r"^ +(python -c .*)$", text, re.MULTILINE)
    ]


def options_of(words: list[str]) -> frozenset[str]:
    """The command, the script and the options of a command, without their values."""
    return frozenset(
        word for at, word in enumerate(words) if at < 2 or word.startswith("--") or ".py" in word
    )


def runnable() -> list[list[str]]:
    """The words of every command but those of `NOT_RUN` and those whose options another one has
    too, examples made small, and stopped by an op that no kernel is known for."""
    whole = [(name, text) for name, text in MENTIONS if name != "CHANGELOG.md" and ".py" in text]
    whole += [(name, text) for name, text in MENTIONS if re.search(r"\.json|measured/", text)]
    texts = dict.fromkeys(
        text for _, text in (*COMMANDS, *whole, *of_the_examples(), *of_contributing())
    )
    shown = {options_of(shlex.split(text)) for text in of_outputs()}
    found: dict[frozenset[str], list[str]] = {}
    for text in texts:
        words = shlex.split(text)
        options = options_of(words)
        if any(re.search(pattern, text) for pattern in NOT_RUN) or options in shown:
            continue
        found.setdefault(options if words[0] == "neusight" else frozenset([text]), words)
    covering = (*shown, *found)
    return [
        made_small(words)
        for options, words in found.items()
        if not any(options < other for other in covering)
    ]


def made_small(words: list[str]) -> list[str]:
    """The command with fewer values and ranks, and for a small example."""
    text = shlex.join(words)
    for pattern, smaller in SMALLER.items():
        text = re.sub(pattern, smaller, text)
    words = shlex.split(text)
    script = next((word for word in words if word in SMALL), "")
    if words[1] == "run" and script:
        words[2:2] = ["--strict", "--steps", "1"]
    return [*words, *shlex.split(SMALL.get(script, ""))]


def test_commands_of_every_place_are_found() -> None:
    names = {name for name, _ in (*COMMANDS, *MENTIONS, *of_the_examples(), *of_contributing())}

    assert {"README.md", "GUIDE.md", "TROUBLESHOOTING.md", "CONTRIBUTING.md"} <= names
    assert {"train_ddp.py", "train_fsdp.py", "new_gpu.py", "plan_parallelism.py"} <= names
    assert len(of_outputs()) >= 5
    assert len(runnable()) > 25


def lay_out(folder: Path) -> None:
    """What the commands expect in the working directory."""
    (folder / "train.py").write_text(TRAIN)
    (folder / "examples").symlink_to(ROOT / "examples")
    shutil.copy(ROOT / "predictors" / "topologies" / "p5.48xlarge.json", folder / "cluster.json")
    for words in (
        ("init", "-q", "-b", "main"),
        ("add", "train.py"),
        ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "First"),
    ):
        subprocess.run(["git", *words], cwd=folder, check=True)


@pytest.mark.slow
def test_every_printed_command_runs(tmp_path: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("git compares the revisions")
    lay_out(tmp_path)
    saved = [f"neusight run --gpu H100 --quiet --save {name}.json.gz train.py"
             for name in ("a", "b")]  # fmt: skip
    measured = [
        "neusight measure --rehearse H100 --quick --out measured/mygpu",
        "neusight calibrate measured/mygpu --out h100.json",
    ]
    commands = [*map(shlex.split, (*saved, *measured)), *runnable()]

    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL, json.dumps(commands)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr[-4000:]
    assert {"out.json", "report.html", "recording.json.gz", "both.html"} <= {
        path.name for path in tmp_path.iterdir()
    }
