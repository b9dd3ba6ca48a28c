"""neusight check: exit codes, baselines that are written only where asked, one case or many."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from neusight.integrations.check.baseline import read_baseline
from neusight.integrations.cli.main import main
from neusight.predictors.kernel import Kernel
from neusight.predictors.measuring.calibrate import fit_calibration
from neusight.predictors.measuring.calibration import Measurement

TRAIN = """
import sys
import torch
from torch import nn

width = int(sys.argv[1]) if len(sys.argv) > 1 else 256
model = nn.Linear(width, width).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    model(torch.ones(64, width, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
ASKS = TRAIN.replace("model = ", "print(torch.cuda.get_device_capability())\nmodel = ")
Check = Callable[..., int]


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """`neusight check` in a project with train.py; the exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    Path("train.py").write_text(TRAIN)
    return lambda *arguments: main(["check", *arguments])


def edited(**figures: float) -> None:
    """Changes figures of the baseline's one case by hand."""
    document = json.loads(Path("neusight.json").read_text())
    [case] = document["cases"].values()
    case["metrics"].update(figures)
    Path("neusight.json").write_text(json.dumps(document))


def settings(text: str) -> None:
    Path("pyproject.toml").write_text(f"[tool.neusight]\n{text}")


# -- one case


def test_a_baseline_is_written_only_with_update_and_then_holds(
    check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = check("--gpu", "H100", "train.py")
    there = Path("neusight.json").exists()
    written = check("--gpu", "H100", "--update", "train.py")
    text = Path("neusight.json").read_bytes()
    passed = check("--gpu", "H100", "train.py")

    printed = capsys.readouterr()
    assert (missing, there, written, passed) == (2, False, 0, 0)
    assert "There is no baseline neusight.json. Write it with --update" in printed.err
    assert "train.py on H100-SXM5-80GB: ok, same as the baseline" in printed.out
    assert Path("neusight.json").read_bytes() == text


def test_a_regression_is_exit_code_1_with_lines_to_paste(
    check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    check("--gpu", "H100", "--update", "train.py")
    before = read_baseline(Path("neusight.json"))["train.py on H100-SXM5-80GB"].metrics
    edited(peak_memory_bytes=before["peak_memory_bytes"] - 2**20)
    text = Path("neusight.json").read_bytes()

    code = check("--gpu", "H100", "train.py")

    printed = capsys.readouterr().out
    assert code == 1
    assert f'    "peak_memory_bytes": {before["peak_memory_bytes"]},' in printed
    assert Path("neusight.json").read_bytes() == text


def test_the_lines_to_paste_make_it_pass(check: Check) -> None:
    check("--gpu", "H100", "--update", "train.py")
    before = read_baseline(Path("neusight.json"))["train.py on H100-SXM5-80GB"].metrics
    edited(step_latency_us=1)
    failed = check("--gpu", "H100", "train.py")
    edited(**before)

    assert (failed, check("--gpu", "H100", "train.py")) == (1, 0)


def test_tolerances_of_the_command_line_and_the_project_count(check: Check) -> None:
    check("--gpu", "H100", "--update", "train.py")
    before = read_baseline(Path("neusight.json"))["train.py on H100-SXM5-80GB"].metrics
    edited(peak_memory_bytes=before["peak_memory_bytes"] - 2**20)

    stated = check("--gpu", "H100", "--tolerance", "peak_memory=2 MiB", "train.py")
    settings('[tool.neusight.tolerance]\npeak_memory = "2 MiB"\n')
    of_project = check("--gpu", "H100", "train.py")
    stricter = check("--gpu", "H100", "--tolerance", "peak_memory=0", "train.py")

    assert (stated, of_project, stricter) == (0, 0, 1)


@pytest.mark.parametrize(
    "body", ["raise ValueError('no')", "raise SystemExit(4)", "import nothing_of_this_name"]
)
def test_a_script_that_fails_is_exit_code_3_and_changes_nothing(
    body: str, check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    check("--gpu", "H100", "--update", "train.py")
    text = Path("neusight.json").read_bytes()
    Path("train.py").write_text(f"{TRAIN.replace('range(20)', 'range(2)')}\n{body}\n")

    codes = check("--gpu", "H100", "train.py"), check("--gpu", "H100", "--update", "train.py")

    assert codes == (3, 3)
    assert Path("neusight.json").read_bytes() == text
    assert "train.py on H100-SXM5-80GB: FAILED" in capsys.readouterr().out


def test_a_script_without_cuda_work_is_wrong_use(
    check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("train.py").write_text("print('nothing')\n")

    assert check("--gpu", "H100", "--update", "train.py") == 2
    assert "nothing to check" in capsys.readouterr().err
    assert not Path("neusight.json").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpu", "H10", "train.py"], "Unknown GPU"),
        (["train.py"], "Say which GPU"),
        ([], "nothing to check"),
        (["--gpu", "H100", "gone.py"], "there is no script 'gone.py'"),
        (["--gpu", "H100", "--steps", "0", "train.py"], "--steps is '0'"),
        (["--gpu", "H100", "--predictor", "magic", "train.py"], "Unknown predictor 'magic'"),
        (["--gpu", "H100", "--tolerance", "flops", "train.py"], "--tolerance is 'flops'"),
        (["--gpu", "H100", "--tolerance", "flops=much", "train.py"], "flops is 'much'"),
        (["--gpu", "H100", "--case", "other"], "no case 'other'"),
    ],
)
def test_what_cannot_be_checked_is_exit_code_2(
    arguments: list[str], words: str, check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check("--update", *arguments) == 2
    assert words in capsys.readouterr().err


def test_a_host_of_the_project_that_nobody_knows_is_wrong_use(
    check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    settings('host = "slow"\n')

    assert check("--gpu", "H100", "--update", "train.py") == 2
    known = "plain, cloud, older, wsl, profiled"
    assert f"unknown host 'slow'; known: {known}" in capsys.readouterr().err


def test_a_damaged_baseline_is_left_as_it_is(
    check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("neusight.json").write_text("{")

    codes = check("--gpu", "H100", "train.py"), check("--gpu", "H100", "--update", "train.py")

    assert codes == (2, 2)
    assert Path("neusight.json").read_text() == "{"
    assert "is no JSON" in capsys.readouterr().err


def test_other_settings_than_the_baselines_are_wrong_use(
    check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    check("--gpu", "H100", "--update", "train.py")

    code = check("--gpu", "H100", "--predictor", "roofline", "train.py")

    assert code == 2
    assert "was made with predictor tiled, this check uses roofline" in capsys.readouterr().out


def test_every_form_of_the_report_is_written(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    Path("summary.md").write_text("before\n")
    check("--gpu", "H100", "--update", "train.py")

    code = check("--gpu", "H100", "--json", "a.json", "--junit", "a.xml", "--markdown", "a.md",
                 "--benchmark-json", "b.json", "train.py")  # fmt: skip

    assert code == 0
    assert json.loads(Path("a.json").read_text())["exit_code"] == 0
    assert Path("a.xml").read_text().startswith("<?xml")
    assert len(json.loads(Path("b.json").read_text())) == 9
    assert Path("a.md").read_text() in Path("summary.md").read_text()
    assert Path("summary.md").read_text().startswith("before\n")


def test_a_report_that_cannot_be_written_is_reported_and_fails(
    check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    check("--gpu", "H100", "--update", "train.py")

    assert check("--gpu", "H100", "--json", "train.py/a.json", "train.py") == 2
    assert "train.py/a.json cannot be written" in capsys.readouterr().err


def test_a_calibration_belongs_to_what_made_the_baseline(
    check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    fitted = fit_calibration([Measurement((Kernel.gemm(512, 512, 512),), 20.0)], "L4")
    for name, op_us in (("a.json", 9.0), ("b.json", 30.0)):
        replace(fitted, plain_host={"op_us": op_us}).save(name)
    check("--gpu", "L4", "--calibration", "a.json", "--update", "train.py")

    codes = check(), check("--calibration", "b.json"), check("--gpu", "L4", "train.py")

    printed = capsys.readouterr().out
    assert codes == (0, 0, 2)
    assert "ok, same as the baseline" in printed
    assert "the tool changed" in printed
    assert "made with calibration a.json, this check uses (not set)" in printed


# -- several GPUs, several cases


def test_several_gpus_are_several_cases(check: Check) -> None:
    written = check("--gpu", "H100", "--gpu", "L40S", "--update", "train.py")

    assert written == 0
    assert sorted(read_baseline(Path("neusight.json"))) == [
        "train.py on H100-SXM5-80GB",
        "train.py on L40S",
    ]
    assert check("--gpu", "L40S", "train.py") == 0


@pytest.mark.slow
def test_the_projects_cases_are_checked_each_in_a_process_of_its_own(
    check: Check, capfd: pytest.CaptureFixture[str]
) -> None:
    settings('gpu = "H100"\n[tool.neusight.cases]\nsmall = "train.py"\nlarge = "train.py 512"\n')
    written = max(check("--update", "--case", name) for name in ("small", "large"))
    settings('gpu = "H100"\n[tool.neusight.cases]\nrenamed = "train.py"\nlarge = "train.py 512"\n')
    Path("train.py").write_text(f"import atexit, os\nif len(os.sys.argv) > 1: os._exit(7)\n{TRAIN}")

    code = check()
    printed = capfd.readouterr().out

    assert (written, code) == (0, 3)
    assert "large on H100-SXM5-80GB: FAILED: it ended its process at once, with status 7" in printed
    assert "renamed on H100-SXM5-80GB: NO BASELINE" in printed
    assert "small on H100-SXM5-80GB: REMOVED" in printed
    assert "'renamed on H100-SXM5-80GB' does the same" in printed


def test_without_script_and_settings_the_baselines_own_commands_run(
    check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    check("--gpu", "H100", "--case", "wide", "--steps", "3", "--update", "train.py", "512")

    assert check() == 0
    assert check("--case", "wide on H100-SXM5-80GB") == 0
    assert capsys.readouterr().out.count("wide on H100-SXM5-80GB: ok, same") == 2


@pytest.mark.slow
def test_a_program_that_asks_for_its_gpu_is_recorded_on_each(check: Check) -> None:
    Path("train.py").write_text(ASKS)

    code = check("--gpu", "H100", "--gpu", "A100", "--update", "train.py")

    assert code == 0
    assert len(read_baseline(Path("neusight.json"))) == 2


# -- the same bytes whatever the machine


@pytest.mark.slow
def test_hash_seeds_threads_and_processors_do_not_change_a_byte(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    conditions: list[dict[str, Any]] = [
        {"PYTHONHASHSEED": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_CORETYPE": "Haswell"},
        {
            "PYTHONHASHSEED": "77",
            "OMP_NUM_THREADS": "4",
            "OPENBLAS_CORETYPE": "Prescott",
            "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3",
            "PYTHONWARNINGS": "ignore",
        },
    ]

    for number, condition in enumerate(conditions):
        command = ["check", "--gpu", "H100", "--update", "--baseline", f"{number}.json", "train.py"]
        subprocess.run(
            [sys.executable, "-m", "neusight", *command],
            cwd=tmp_path,
            env={**os.environ, **condition},
            check=True,
            capture_output=True,
        )

    assert (tmp_path / "0.json").read_bytes() == (tmp_path / "1.json").read_bytes()


RANKS = """
import torch, torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    loss = model(torch.ones(4, 64, device="cuda")).mean()
    loss.backward()
    if rank == 0 or step < 2:
        dist.all_reduce(loss.detach())
    optimizer.step()
"""


def test_a_collective_that_one_rank_never_comes_to_fails_with_its_line(
    check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("train.py").write_text(RANKS)
    settings('gpu = "H100"\n[tool.neusight.cases]\n'
             'both = { command = "train.py", world_size = 2, ranks = "0,1" }')  # fmt: skip

    code = check("--steps", "all", "--update", "--json", "report.json")

    reported = capsys.readouterr().out
    assert code == 3
    assert "HangError" in reported
    assert "rank 0 waits in all_reduce of 1 float32 at train.py:13" in reported
    assert "HangError" in Path("report.json").read_text()
