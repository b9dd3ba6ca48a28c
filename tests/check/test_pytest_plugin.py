"""The pytest plugin, by tests that use it: forecasts, baselines, budgets, the summary."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import torch

import neusight
from neusight.integrations.check.observation import observe

pytest_plugins = ["pytester"]

PLUGIN = "neusight.integrations.check.pytest_plugin"
#: Loads the plugin where the installed package does not announce it yet.
LOADED = (
    () if any(found.value == PLUGIN for found in entry_points(group="pytest11")) else ("-p", PLUGIN)
)
#: Plugins that take seconds at the end of each inner run: one collects garbage five times, with
#: all of torch loaded, one imports itself again.
WITHOUT = [
    word
    for name in ("cacheprovider", "unraisableexception", "hypothesispytest", "anyio")
    for word in ("-p", f"no:{name}")
]
MODEL = """
import torch
from torch import nn

WIDTH = 256

def train(steps=3):
    model = nn.Linear(WIDTH, WIDTH).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(64, WIDTH, device="cuda")).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
REGRESSION = """
from model import train

def test_step(forecast_regression):
    forecast_regression("H100", train)
"""


@pytest.fixture(scope="module", autouse=True)
def all_is_imported() -> None:
    """An inner run forgets what it was the first to import, and torch cannot be imported twice."""
    for module in ("observation", "outputs.github", "outputs.markdown", "result", "settings"):
        importlib.import_module(f"neusight.integrations.check.{module}")
    with neusight.forecast_on("H100", with_stack=True) as forecast:
        layer = torch.nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(layer.parameters())
        layer(torch.ones(8, 8, device="cuda")).sum().backward()
        optimizer.step()
    observe(forecast)


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project with a model; `run.runpytest(...)` runs its tests with the plugin."""
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    monkeypatch.delitem(sys.modules, "model", raising=False)
    pytester.makepyfile(model=MODEL)
    pytester.syspathinsert()
    return pytester


def result_of(run: pytest.Pytester, *arguments: str, **outcomes: int) -> str:
    result = run.runpytest_inprocess(*WITHOUT, *LOADED, *arguments)
    result.assert_outcomes(**outcomes)
    return str(result.stdout.str())


# -- the fixture forecast


def test_a_function_is_forecast(run: pytest.Pytester) -> None:
    run.makepyfile(
        """
        from model import train

        def test_step(forecast):
            found = forecast("H100", train, steps=4)
            assert found.gpu.name == "H100-SXM5-80GB"
            assert sum(step["count"] for step in found.steps if step["kind"] == "train") == 4
            assert 0 < found.step_latency_us.median < 10_000
        """
    )

    printed = result_of(run, passed=1)

    assert "neusight forecasts" in printed
    assert "test_step: H100-SXM5-80GB, " in printed


def test_a_block_is_forecast_with_options(run: pytest.Pytester) -> None:
    run.makepyfile(
        """
        from model import train

        def test_step(forecast):
            with forecast("L40S", predictor="roofline") as found:
                train()
            assert found.predictor_name == "roofline"
            stacks = [e.stack for e in found.recording.steps[0].entries if hasattr(e, "stack")]
            assert {stack[-1].partition(":")[0] for stack in stacks} == {
                "test_a_block_is_forecast_with_options.py"
            }
        """
    )

    result_of(run, passed=1)


def test_what_is_no_function_is_refused(run: pytest.Pytester) -> None:
    run.makepyfile(
        """
        def test_step(forecast):
            forecast("H100", 3)

        def test_regression(forecast_regression):
            forecast_regression("H100")
        """
    )

    printed = result_of(run, failed=2)

    assert "3 cannot be called" in printed
    assert "takes a forecast, or a GPU and a function to forecast" in printed


def test_a_failing_block_is_no_forecast(run: pytest.Pytester) -> None:
    run.makepyfile(
        """
        import torch

        def broken():
            torch.ones(3, device="cuda") @ torch.ones(4, device="cuda")

        def test_step(forecast):
            forecast("H100", broken)
        """
    )

    printed = result_of(run, failed=1)

    assert "neusight forecasts" not in printed


# -- the fixture forecast_regression


def test_a_missing_baseline_fails_and_says_how_to_write_it(run: pytest.Pytester) -> None:
    path = run.makepyfile(REGRESSION)

    printed = result_of(run, failed=1)

    assert "is not there. Write it: pytest --neusight-update" in printed
    assert not (path.parent / path.stem).exists()


def test_a_baseline_is_written_beside_the_test_and_holds(run: pytest.Pytester) -> None:
    path = run.makepyfile(REGRESSION)

    result_of(run, "--neusight-update", passed=1)
    printed = result_of(run, passed=1)

    assert (path.parent / path.stem / "test_step.json").is_file()
    assert "regression" not in printed.lower().replace("regression.py", "")


def test_a_regression_fails_and_names_the_module_and_the_line(run: pytest.Pytester) -> None:
    run.makepyfile(REGRESSION)
    result_of(run, "--neusight-update", passed=1)
    slower = MODEL.replace(".mean().backward()", ".mean().backward(); model.bias.sum().item()")

    run.makepyfile(other=slower, test_other=REGRESSION.replace("from model", "from other"))
    Path("test_other").mkdir()
    Path("test_a_regression_fails_and_names_the_module_and_the_line/test_step.json").rename(
        "test_other/test_step.json"
    )
    printed = result_of(run, "test_other.py", failed=1)

    assert "RegressionError: worse than the baseline test_other/test_step.json" in printed
    assert "new synchronization (item, 1 a step)" in printed
    assert "other.py:" in printed
    assert "pytest_plugin.py" not in printed


def test_a_baseline_of_another_tool_or_of_other_settings_is_reported(run: pytest.Pytester) -> None:
    path = run.makepyfile(REGRESSION)
    result_of(run, "--neusight-update", passed=1)
    baseline = path.parent / path.stem / "test_step.json"
    text = baseline.read_text()

    older = re.sub(r'"step_latency_us": .*,', '"step_latency_us": 1,', text)
    baseline.write_text(re.sub(r'"neusight": "[^"]*"', '"neusight": "0.0.1"', older))
    assert "test_step: the tool changed (neusight 0.0.1 → " in result_of(run, passed=1)

    baseline.write_text(text.replace('"host": "plain"', '"host": "cloud"'))
    assert "was made with {'host': 'cloud'" in result_of(run, failed=1)


def test_one_test_may_have_several_baselines(run: pytest.Pytester) -> None:
    path = run.makepyfile(
        """
        from model import train

        def test_step(forecast_regression, forecast):
            forecast_regression("H100", train)
            forecast_regression(forecast("L40S", train))
            forecast_regression("H100", train, 5, name="longer")
        """
    )

    result_of(run, "--neusight-update", passed=1)
    result_of(run, passed=1)

    text = (path.parent / path.stem / "test_step.json").read_text()
    for name in ("H100-SXM5-80GB", "L40S", "longer on H100-SXM5-80GB"):
        assert f'\n  "{name}": {{' in text


def test_parameters_and_classes_have_baselines_of_their_own(run: pytest.Pytester) -> None:
    path = run.makepyfile(
        """
        import pytest
        from model import train

        class TestTrain:
            @pytest.mark.parametrize("steps", [3, 4], ids=["a/b", "c d"])
            def test_step(self, forecast_regression, steps):
                forecast_regression("H100", train, steps)
        """
    )

    result_of(run, "--neusight-update", passed=2)

    names = sorted(item.name for item in (path.parent / path.stem).iterdir())
    assert names == ["TestTrain.test_step_a_b_.json", "TestTrain.test_step_c_d_.json"]


def test_the_projects_tolerances_count(run: pytest.Pytester) -> None:
    run.makepyfile(REGRESSION)
    result_of(run, "--neusight-update", passed=1)
    run.makepyfile(model=MODEL.replace("WIDTH = 256", "WIDTH = 264"))
    sys.modules.pop("model", None)
    run.makepyprojecttoml(
        """
        [tool.neusight.tolerance]
        step_latency = "50 %"
        gpu_busy = "50 %"
        peak_memory = "1 GiB"
        flops = "20 %"
        """
    )

    result_of(run, passed=1)


def test_a_damaged_baseline_is_reported(run: pytest.Pytester) -> None:
    path = run.makepyfile(REGRESSION)
    (path.parent / path.stem).mkdir()
    (path.parent / path.stem / "test_step.json").write_text("{")

    assert "BaselineError" in result_of(run, failed=1)
    assert "BaselineError" in result_of(run, "--neusight-update", failed=1)
    assert (path.parent / path.stem / "test_step.json").read_text() == "{"


# -- budgets


BUDGETS = """
import pytest
from model import train

@pytest.mark.latency_budget(gpu="H100", ms=MS)
@pytest.mark.memory_budget(gpu="A100", gib=GIB)
def test_step(FIXTURE):
    BODY
"""


def budgets(ms: str, gib: str, *, fixture: str = "", body: str = "train()") -> str:
    text = BUDGETS.replace("MS", ms).replace("GIB", gib)
    return text.replace("FIXTURE", fixture).replace("BODY", body)


def test_a_test_within_its_budgets_passes(run: pytest.Pytester) -> None:
    run.makepyfile(budgets("10", "1"))

    assert "H100-SXM5-80GB, " in result_of(run, passed=1)


def test_a_test_over_its_budgets_fails_with_the_largest_parts(run: pytest.Pytester) -> None:
    run.makepyfile(budgets("0.001", "0.0001"))

    printed = result_of(run, failed=1)

    assert "over the budget of 1 µs" in printed
    assert "over the budget of 104.86 KiB" in printed
    assert "Linear" in printed


def test_an_operator_has_a_budget_of_its_own(run: pytest.Pytester) -> None:
    run.makepyfile(
        """
        import pytest
        from model import train

        @pytest.mark.latency_budget(gpu="H100", ms=100, operator="aten::linear")
        def test_within(): train()

        @pytest.mark.latency_budget(gpu="H100", ms=0.001, operator="aten::linear")
        def test_over(): train()

        @pytest.mark.latency_budget(gpu="H100", ms=100, operator="aten::conv2d")
        def test_absent(): train()
        """
    )

    printed = result_of(run, passed=1, failed=2)

    assert "µs in aten::linear, " in printed
    assert "aten::conv2d runs no kernel in a step, but has a budget" in printed


def test_budgets_judge_the_forecasts_of_the_fixture(run: pytest.Pytester) -> None:
    body = 'forecast("H100", train), forecast("A100", train)'
    run.makepyfile(budgets("0.001", "1", fixture="forecast", body=body))

    assert "over the budget of 1 µs" in result_of(run, failed=1)

    run.makepyfile(budgets("10", "1", fixture="forecast", body=body))
    result_of(run, passed=1)


def test_a_budget_for_a_gpu_without_a_forecast_fails(run: pytest.Pytester) -> None:
    run.makepyfile(budgets("10", "1", fixture="forecast", body='forecast("H100", train)'))

    assert "the test made no forecast on A100" in result_of(run, failed=1)


def test_a_program_that_asks_for_its_gpu_is_run_on_each(run: pytest.Pytester) -> None:
    body = "import torch; train(); print('runs on', torch.cuda.get_device_name())"
    run.makepyfile(budgets("10", "0.0001", body=body))

    printed = result_of(run, failed=1)

    assert "runs on NVIDIA H100" in printed
    assert "runs on NVIDIA A100" in printed


GENERATES = """
import pytest, torch
from torch import nn

@pytest.mark.ttft_budget(gpu="H100", ms=TTFT)
@pytest.mark.tpot_budget(gpu="H100", ms=TPOT)
@torch.no_grad()
def test_it_generates():
    model = nn.Sequential(nn.Embedding(100, 64), nn.Linear(64, 100)).cuda()
    ids = torch.zeros(2, 512, dtype=torch.long, device="cuda")
    for _ in range(TOKENS):
        ids = model(ids)[:, -1:].argmax(-1)
"""


def generates(ttft: str, tpot: str, *, tokens: str = "8") -> str:
    return GENERATES.replace("TTFT", ttft).replace("TPOT", tpot).replace("TOKENS", tokens)


def test_the_first_token_and_each_more_have_budgets(run: pytest.Pytester) -> None:
    run.makepyfile(generates("10", "10"))

    result_of(run, passed=1)


@pytest.mark.parametrize(
    ("ttft", "tpot", "stated"),
    [
        ("0.001", "10", "to the first token, "),
        ("10", "0.001", "a token, "),
    ],
)
def test_a_token_over_its_budget_fails(
    ttft: str, tpot: str, stated: str, run: pytest.Pytester
) -> None:
    run.makepyfile(generates(ttft, tpot))

    printed = result_of(run, failed=1)
    assert stated in printed
    assert "over the budget of 1 µs" in printed


def test_a_budget_of_tokens_wants_a_model_that_generates(run: pytest.Pytester) -> None:
    run.makepyfile(generates("10", "10", tokens="1"))

    assert "tpot_budget is for a model that generates, and none does" in result_of(run, failed=1)


def test_a_budget_without_cuda_work_fails(run: pytest.Pytester) -> None:
    run.makepyfile(budgets("10", "1", body="pass"))

    assert "a budget needs CUDA work" in result_of(run, failed=1)


@pytest.mark.parametrize(
    ("marker", "amount"),
    [
        ("latency_budget(12)", "ms=12"),
        ('latency_budget(gpu="H100")', "ms=12"),
        ('latency_budget(gpu="H100", ms="12")', "ms=12"),
        ('latency_budget(gpu="H100", ms=-1)', "ms=12"),
        ('latency_budget(gpu="H100", seconds=1)', "ms=12"),
        ('latency_budget(gpu="H100", ms=1, operator=3)', "ms=12"),
        ('memory_budget(gpu="H100", gib=3, operator="aten::linear")', "gib=40"),
        ("memory_budget(gib=3)", "gib=40"),
        ('ttft_budget(gpu="H100", gib=3)', "ms=200"),
        ("tpot_budget(ms=3)", "ms=20"),
    ],
)
def test_a_budget_that_says_nothing_is_refused(
    marker: str, amount: str, run: pytest.Pytester
) -> None:
    run.makepyfile(f"import pytest\n\n@pytest.mark.{marker}\ndef test_step(): pass\n")

    name = marker.partition("(")[0]
    assert f'write it as {name}(gpu="H100", {amount}).' in result_of(run, errors=1)


def test_a_budget_on_a_unittest_is_refused(run: pytest.Pytester) -> None:
    run.makepyfile(
        """
        import unittest
        import pytest

        class Test(unittest.TestCase):
            @pytest.mark.latency_budget(gpu="H100", ms=1)
            def test_step(self): pass
        """
    )

    assert "works on test functions" in result_of(run, errors=1)


# -- around the tests


def test_other_tests_import_neither_torch_nor_forecasts(run: pytest.Pytester) -> None:
    run.makepyfile(
        """
        import sys

        def test_nothing():
            assert "torch" not in sys.modules
            assert "neusight.forecast" not in sys.modules
            assert "numpy" not in sys.modules
        """
    )
    command = [sys.executable, "-m", "pytest", "-q", *WITHOUT, *LOADED]

    done = subprocess.run(command, capture_output=True, text=True, cwd=run.path, check=False)

    assert "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_workers_of_xdist_report_the_same(run: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    run.makepyfile(REGRESSION + REGRESSION.replace("test_step", "test_other"))
    result_of(run, "--neusight-update", passed=2)
    command = [sys.executable, "-m", "pytest", "-n", "1", *WITHOUT, *LOADED]

    done = subprocess.run(command, capture_output=True, text=True, cwd=run.path, check=False)

    assert "2 passed" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count(": H100-SXM5-80GB, ") == 2


def test_in_github_actions_findings_are_annotated_and_summed_up(
    run: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = run.makepyfile(REGRESSION)
    result_of(run, "--neusight-update", passed=1)
    baseline = path.parent / path.stem / "test_step.json"
    text = baseline.read_text()
    latency = next(line for line in text.splitlines() if "step_latency_us" in line)
    baseline.write_text(text.replace(latency, '    "step_latency_us": 1,'))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(run.path / "summary.md"))

    printed = result_of(run, failed=1)

    assert "\n::error title=neusight%3A " in printed
    assert "test_step` | `H100-SXM5-80GB, " in (run.path / "summary.md").read_text()
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(run.path))
    unwritten = run.runpytest_inprocess(*WITHOUT, *LOADED).stderr.str()
    assert f"neusight: {run.path} cannot be written: Is a directory" in unwritten


# -- how a failure is shown ----------------------------------------------------------------------


def test_a_failure_is_shown_by_the_lines_of_the_test_alone(
    run: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NEUSIGHT_DEBUG", raising=False)
    run.makepyfile(
        """
        import pytest, torch
        from model import train

        def test_unknown(forecast):
            forecast("H10", train)

        @pytest.mark.latency_budget(gpu="H10", ms=1)
        def test_unknown_in_a_marker():
            train()

        @pytest.mark.latency_budget(gpu="H100", ms=0.001)
        def test_slow():
            train()

        @pytest.mark.memory_budget(gpu="H100", gib=0.001)
        def test_large(forecast):
            forecast("H100", train)

        @pytest.mark.latency_budget(gpu="H100", ms=1)
        def test_mistake():
            torch.ones(3, 4, device="cuda") @ torch.ones(5, 6, device="cuda")

        def test_no_baseline(forecast_regression):
            forecast_regression("H100", train)
        """
    )

    printed = result_of(run, "--tb=long", failed=6)

    for source in ("pytest_plugin.py", "forecast.py", "recorder.py", "gpu.py", "def gpu(",
                   "pytest_pyfunc_call", "__torch_dispatch__"):  # fmt: skip
        assert source not in printed
    lines = printed.splitlines()
    assert '>       forecast("H10", train)' in lines
    [unknown] = [line for line in lines if ".py:7: Unknown GPU 'H10'. Did you mean" in line
                 and not line.startswith("FAILED")]  # fmt: skip
    assert unknown.startswith("test_a_failure_is_shown")
    assert any(".py:11: H100-SXM5-80GB: " in line and "over the budget" in line for line in lines)
    assert any(line.endswith("  Linear, model.py:10") for line in lines)
    assert any(line.startswith("  the peak is at aten::") for line in lines)
    assert "E       RuntimeError: mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6)" in lines
    assert '>       forecast_regression("H100", train)' in lines


def test_debugging_shows_the_lines_of_neusight_too(
    run: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEUSIGHT_DEBUG", "1")
    run.makepyfile("def test_unknown(forecast):\n    forecast('H10', print)\n")

    assert "gpu.py:" in result_of(run, failed=1)
