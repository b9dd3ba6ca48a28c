"""The command line: its contract with an unmodified script."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from neusight.exit_codes import ExitCode
from neusight.integrations.cli.commands import compare, doctor
from neusight.integrations.cli.main import _parser, _parsers_of, _split, main
from neusight.integrations.program.program import Program
from neusight.predictors.errors import OptionError, SlowMachineError, UnsupportedTorchError
from warm_python import run_python

TRAIN = """
import sys, time, torch
from torch import nn
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(256, 256).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    torch.cuda.synchronize()
    start = time.perf_counter()
    model(torch.randn(64, 256, device=device)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.synchronize()
    print("step", step, f"{(time.perf_counter() - start) * 1e6:.1f} us")
"""


def neusight(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_python("-m", "neusight", *arguments, cwd=cwd)


def script(folder: Path, text: str, name: str = "train.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_all_that_follows_the_script_is_the_scripts() -> None:
    own, program = _split(["run", "--gpu", "H100", "--strict", "train.py", "--gpu", "3", "-m", "x"])

    assert own == ["run", "--gpu", "H100", "--strict"]
    assert program == Program("train.py", ("--gpu", "3", "-m", "x"))


def test_the_help_of_an_option_states_its_default() -> None:
    """A number in brackets at the end."""
    stated, actual = {}, {}
    for command, parser in _parsers_of(_parser()).items():
        for action in parser._actions:
            number = re.search(r"\(([0-9.]+)\)$", action.help or "")
            if number is not None and isinstance(action.default, int | float):
                name = command, action.option_strings[0]
                stated[name], actual[name] = float(number[1]), action.default

    assert actual == stated
    assert len(stated) > 20


def test_the_numbers_that_options_are_by_default() -> None:
    """0 and inf, which limit nothing, aside."""
    numbers = [
        f"{command} {action.option_strings[0]} {action.default}"
        for command, parser in _parsers_of(_parser()).items()
        for action in parser._actions
        if str(action.default).isdecimal() or isinstance(action.default, float)
        if action.default not in (0, False, math.inf)
    ]

    assert numbers == [
        "run --steps 5", "run --max-ops 5000000", "run --wait 60.0",
        "plan --wait 60.0", "plan --steps 1", "plan --max-ops 5000000", "plan --sequence 4096",
        "plan --storage-gbps 2.0", "check --wait 60.0",
        "serve --tp 1", "serve --pp 1", "serve --replicas 1",
        "serve --lora-rank 16", "serve --requests 500",
        "serve --burstiness 1.0", "serve --turns 1", "serve --max-num-seqs 256",
        "serve --max-num-batched-tokens 2048", "serve --gpu-memory-utilization 0.9",
        "serve --block-size 16", "serve --acceptance 0.7", "serve --attainment 0.9",
        "fit --width 128", "measure --minutes 8.0",
    ]  # fmt: skip


def test_a_module_is_run_with_its_own_arguments() -> None:
    for last in ("--max-memory", "--gpu", "--quiet"):
        assert _split(["run", "--gpu", "H100", last]) == (["run", "--gpu", "H100", last], None)
    own, program = _split(["run", "--gpu=H100", "--steps", "3", "-m", "pkg.train", "--steps", "9"])

    assert own == ["run", "--gpu=H100", "--steps", "3"]
    assert program == Program("pkg.train", ("--steps", "9"), is_module=True)


def test_a_script_is_forecast_end_to_end(tmp_path: Path) -> None:
    script(tmp_path, TRAIN)

    done = neusight(
        "run", "--gpu", "H100", "--trace", "runs", "--json", "out.json", "train.py", cwd=tmp_path
    )

    assert done.returncode == 0, done.stderr
    assert "H100-SXM5-80GB: fits" in done.stdout
    assert "per training step" in done.stdout
    assert "coverage" in done.stdout
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["unmapped"] == []
    assert document["trace"] in done.stdout
    assert Path(tmp_path, document["trace"]).exists()


def test_the_scripts_own_clock_shows_the_forecast(tmp_path: Path) -> None:
    script(tmp_path, TRAIN)

    done = neusight("run", "--gpu", "H100", "--json", "o.json", "train.py", cwd=tmp_path)

    document = json.loads((tmp_path / "o.json").read_text())
    shown = [float(line.split()[2]) for line in done.stdout.splitlines() if line.startswith("step")]
    assert shown[2] == pytest.approx(document["step_latency_us"]["median"], rel=0.1)


def test_the_script_ends_after_five_steady_steps(tmp_path: Path) -> None:
    script(tmp_path, TRAIN)

    five = neusight("run", "--gpu", "H100", "train.py", cwd=tmp_path)
    two = neusight("run", "--gpu", "H100", "--steps", "2", "train.py", cwd=tmp_path)
    everything = neusight("run", "--gpu", "H100", "--steps", "all", "train.py", cwd=tmp_path)

    assert five.stdout.count(" us\n") == 5
    assert two.stdout.count(" us\n") == 2
    assert "ended after 2 steady steps" in two.stdout
    assert everything.stdout.count(" us\n") == 20
    assert "ended after" not in everything.stdout


def test_the_script_sees_what_python_would_show_it(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "helper.py").write_text("VALUE = 42\n")
    script(
        folder,
        "import os, sys, torch, helper\n"
        "torch.ones(1, device='cuda')\n"
        "print(sys.argv, __name__, __file__, os.getcwd() == sys.argv[2], helper.VALUE, "
        "sys.path[0])\n",
    )

    done = neusight("run", "--gpu", "H100", "project/train.py", "--lr", str(tmp_path), cwd=tmp_path)

    first = done.stdout.splitlines()[0]
    words = ["project/train.py", "--lr", str(tmp_path)]
    assert first.startswith(f"{words} __main__ {folder / 'train.py'}")
    assert first.endswith(f"True 42 {folder}")


def test_a_module_sees_its_package(tmp_path: Path) -> None:
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "names.py").write_text("NAME = 'inside'\n")
    script(
        package,
        "import sys, torch\nfrom pkg.names import NAME\n"
        "torch.ones(1, device='cuda')\nprint(NAME, __name__, __package__, sys.argv[1:])\n",
    )

    done = neusight("run", "--gpu", "H100", "-m", "pkg.train", "--x", cwd=tmp_path)

    assert done.stdout.splitlines()[0] == "inside __main__ pkg ['--x']"


# -- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["run", "--gpu", "H10", "train.py"], 2, "Did you mean 'H100'"),
        (["run", "--gpu", "H100"], 2, "give the script to run"),
        (["run", "--gpu", "H100", "missing.py"], 2, "there is no script 'missing.py'"),
        (["run", "--gpu", "H100", "--steps", "0", "train.py"], 2, "above 0, or all"),
        (["run", "--gpu", "H100", "--predictor", "oracle", "train.py"], 2, "oracle"),
        (["run", "--gpu", "H100", "--measured", "d", "train.py"], 2, "say --explain too"),
        (["run", "--gpu", "H100", "--sweep", "a=1", "--trace", "d", "train.py"], 2,
         "--sweep writes no --trace"),
        (["run", "--gpu", "H100", "--network-gbps", "50", "train.py"], 2,
         "--network-gbps means nothing without --world-size"),
        (["run", "--gpu", "H100", "--world-size", "8", "--rank", "7..3", "train.py"], 2,
         "holds no rank: a range is like 0..7"),
        (["plan", "--gpu", "H100"], 2, "give the script to run"),
        (["plan", "--gpu", "H100", "--model", "m.json", "train.py"], 2, "or --model, not both"),
        (["plan", "--gpu", "H100", "--mtbf", "9", "train.py"], 2, "and --mtbf are for --model"),
        (["evaluate"], 2, "Name the folder of measured kernels with --data DIR"),
        (["evaluate", "--suite", "paper"], 2, "scores others' measurements, which neusight does"),
        (["calibrate", "train.py", "--topology", "ndv5", "--out", "o.json"], 2,
         "--topology is for outputs of nccl-tests; none of these files is one"),
        (["gpus", "H10"], 2, "Did you mean"),
        (["gpus", "--", "H10"], 2, "Did you mean"),
        ([], 2, ""),
    ],
)  # fmt: skip
def test_wrong_use_says_what_to_do(
    arguments: list[str], code: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    script(tmp_path, "print('hello')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    assert main(arguments) == code
    assert words in capsys.readouterr().err


def test_a_script_that_raises_is_summarised_and_fails(tmp_path: Path) -> None:
    script(tmp_path, TRAIN.replace("for step in range(20)", "for step in range(3)") + "\n1 / 0\n")

    done = neusight("run", "--gpu", "H100", "train.py", cwd=tmp_path)

    assert done.returncode == 3
    assert "until then: 3 training" in done.stdout
    assert "ZeroDivisionError" in done.stderr
    assert 'train.py", line' in done.stderr
    assert "runner.py" not in done.stderr


@pytest.mark.parametrize(("code", "expected"), [("0", 0), ("3", 3), ("'bad data'", 3)])
def test_a_script_that_exits_keeps_its_meaning(code: str, expected: int, tmp_path: Path) -> None:
    script(tmp_path, f"import sys, torch\ntorch.ones(1, device='cuda')\nsys.exit({code})\n")

    assert neusight("run", "--gpu", "H100", "train.py", cwd=tmp_path).returncode == expected


def test_a_script_with_a_syntax_error_fails_with_its_line(tmp_path: Path) -> None:
    script(tmp_path, "import torch\nfor\n")

    done = neusight("run", "--gpu", "H100", "train.py", cwd=tmp_path)

    assert done.returncode == 3
    assert "line 2" in done.stderr


def test_what_a_stand_in_lacks_is_named_with_its_line(tmp_path: Path) -> None:
    script(tmp_path, "import torch\nfrom flash_attn import a_function_of_tomorrow\n")

    done = neusight("run", "--gpu", "H100", "train.py", cwd=tmp_path)

    assert done.returncode == 3
    asked = "train.py:2 uses more of flash_attn than its stub has (as of 2.8.3)"
    assert asked in done.stderr
    assert "cannot import name 'a_function_of_tomorrow' from 'flash_attn'." in done.stderr


def test_a_model_too_large_for_the_gpu_gets_a_verdict(tmp_path: Path) -> None:
    script(
        tmp_path,
        "import torch\nfrom torch import nn\nmodel = nn.Linear(60_000, 60_000).cuda()\n"
        "for _ in range(2):\n"
        "    model(torch.randn(60_000, 60_000, device='cuda')).mean().backward()\n",
    )

    done = neusight("run", "--gpu", "T4", "train.py", cwd=tmp_path)

    assert done.returncode == 0
    assert "does not fit" in done.stdout
    assert "out of memory in step 0 at aten::" in done.stdout


def test_gpus_lists_all_and_shows_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpus"]) == 0
    listed = capsys.readouterr().out
    assert "H100-SXM5-80GB" in listed

    assert main(["gpus", "h100_sxm"]) == 0
    shown = capsys.readouterr().out
    assert "bandwidth_gbps" in shown
    rows = {line.split()[0]: line.split() for line in shown.splitlines() if line}
    peak, burst, sustained = map(float, rows["bf16"][1:4])
    assert peak > burst > sustained > 0.5 * peak
    assert rows["fp32"][4:] == []

    assert main(["gpus", "h200"]) == 0
    rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line}
    assert rows["fp32"][4:] == ["by", "the", "power", "limit"]


def test_several_gpus_are_one_table_with_costs(tmp_path: Path) -> None:
    script(tmp_path, TRAIN)

    done = neusight(
        "run", "--gpu", "H100", "--gpu", "A100", "--price", "H100=2.49", "--samples", "64",
        "--json", "out.json", "train.py", cwd=tmp_path,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    [header] = [line for line in done.stdout.splitlines() if line.startswith("GPU ")]
    assert header.endswith("samples/s  price/h  1000 steps  1M samples")
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["side_by_side"][0]["cost_per_million_samples"] > 0
    assert document["side_by_side"][1]["cost_per_million_samples"] is None
    assert document["forecasts"][0]["batch_known_by"] == "as stated"
    assert document["forecasts"][0]["batch_source"] == "stated"


def test_quiet_prints_the_verdict_alone(tmp_path: Path) -> None:
    script(tmp_path, TRAIN.replace("    print(", "    (lambda *_: None)("))

    done = neusight("run", "--gpu", "H100", "--gpu", "T4", "--quiet", "train.py", cwd=tmp_path)

    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == ["H100-SXM5-80GB", "T4"]
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--price", "H100=cheap"], "--price got 'H100=cheap'"),
        (["--price", "H10=2"], "Did you mean 'H100'"),
        (["--price", "T4=2"], "--price names T4, which is not among the GPUs asked for"),
        (["--tokens", "0"], "--tokens is 0"),
        (["--gpu", "H10"], "Did you mean 'H100'"),
    ],
)
def test_wrong_options_are_reported_before_the_script_runs(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    script(tmp_path, "print('it ran')\n")
    monkeypatch.chdir(tmp_path)

    assert main(["run", "--gpu", "H100", *arguments, "train.py"]) == 2

    printed = capsys.readouterr()
    assert words in printed.err
    assert "it ran" not in printed.out


def test_output_into_a_closed_pipe_exits_as_it_would_have() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "neusight", "gpus"]

    with os.fdopen(write, "w") as closed:
        shown = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True)

    assert (shown.returncode, shown.stderr) == (0, "")


# -- what went wrong, and whose fault it is ------------------------------------------------------


def test_an_error_of_neusight_is_exit_code_four_in_few_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(options: object) -> int:
        return {"a": 1}["b"]

    monkeypatch.delenv("NEUSIGHT_DEBUG", raising=False)
    monkeypatch.setattr(doctor, "run", fails)

    assert main(["doctor"]) == 4
    short = capsys.readouterr().err
    assert main(["doctor", "--debug"]) == 4
    full = capsys.readouterr().err

    assert short.startswith("neusight: neusight itself failed: KeyError: 'b' (test_main.py:")
    assert "--debug" in short
    assert "Traceback" not in short
    assert "Traceback" in full
    assert "NEUSIGHT_DEBUG" not in os.environ


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OptionError("no such thing"), ExitCode.WRONG_USE),
        (UnsupportedTorchError("no proven way"), ExitCode.NEUSIGHT_FAILED),
        (SlowMachineError("too slow"), ExitCode.NEUSIGHT_FAILED),
        (FileNotFoundError(2, "No such file or directory", "real.json"), ExitCode.WRONG_USE),
        (PermissionError(13, "Permission denied", "/elsewhere"), ExitCode.NEUSIGHT_FAILED),
        (OSError(28, "No space left on device"), ExitCode.NEUSIGHT_FAILED),
        (RecursionError("too deep"), ExitCode.NEUSIGHT_FAILED),
        (MemoryError(), ExitCode.NEUSIGHT_FAILED),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
    ],
)
def test_the_exit_code_states_whose_fault_it_was(
    error: BaseException, code: ExitCode,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def fails(options: object, program: object) -> int:
        raise error

    monkeypatch.delenv("NEUSIGHT_DEBUG", raising=False)
    monkeypatch.setattr(compare, "run", fails)

    assert main(["compare", "forecast.json", "real.json"]) == code
    stated = capsys.readouterr().err
    assert stated.startswith("neusight: ")
    assert "Traceback" not in stated


@pytest.mark.parametrize(
    "arguments",
    [
        ["compare", "absent.json", "real.json"],
        ["validate", "absent"],
        ["calibrate", "absent", "--gpu", "H100", "--out", "o.json"],
        ["evaluate", "--data", "absent"],
        ["fit", "absent", "--out", "weights"],
        ["gpus", "./absent.json"],
        ["check", "--gpu", "H100", "--baseline", "absent.json", "train.py"],
        ["run", "--gpu", "H100", "--calibration", "absent.json", "train.py"],
    ],
)
def test_a_missing_file_is_wrong_use_in_a_sentence(
    arguments: list[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    script(tmp_path, "print('hello')\n")
    monkeypatch.chdir(tmp_path)

    assert main(arguments) == ExitCode.WRONG_USE

    stated = capsys.readouterr().err
    assert "absent" in stated
    assert "Traceback" not in stated


def test_a_terminal_that_knows_ascii_only_gets_the_whole_screen(tmp_path: Path) -> None:
    script(tmp_path, "import torch\nprint('µ')\ntorch.ones(9, device='cuda') + 1\n")

    done = subprocess.run(
        [sys.executable, "-m", "neusight", "run", "--gpu", "H100", "train.py"],
        cwd=tmp_path, env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True, text=True,
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("u\n")
    assert " us of GPU time" in done.stdout
    assert "in CI" in done.stdout


def test_a_verdict_that_nobody_reads_to_the_end_is_still_the_exit_code(tmp_path: Path) -> None:
    script(tmp_path, "import torch\ntorch.ones(40_000, 40_000, 10, device='cuda')\n")
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "neusight", "run", "--gpu", "T4", "--max-memory", "train.py"]

    with os.fdopen(write, "w") as closed:
        done = subprocess.run(
            command, cwd=tmp_path, stdout=closed, stderr=subprocess.PIPE, text=True
        )

    assert (done.returncode, done.stderr) == (ExitCode.JUDGED, "")
