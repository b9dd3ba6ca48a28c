"""Processes that a program starts beside itself."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import types

import torch

import neusight


def told(forecast: neusight.Forecast) -> list[str]:
    return [text.partition(",")[0] for text in forecast.warnings if "not forecast" in text]


def test_a_child_that_may_use_a_gpu_is_named_once() -> None:
    with neusight.forecast_on("H100") as forecast:
        torch.ones(8, device="cuda").relu_()
        for _ in range(2):
            subprocess.run([sys.executable, "-c", "pass"], check=True)
        child = multiprocessing.get_context("fork").Process(target=told)
        child._target = lambda: None  # type: ignore[attr-defined]
        child.start()
        child.join()

    names = told(forecast)
    assert len(names) == 2 and names[0].startswith("python")
    assert any("test_processes.py:" in text for text in forecast.warnings)


def test_other_programs_and_workers_of_loaders_are_not() -> None:
    rows = torch.utils.data.TensorDataset(torch.ones(8, 2))
    with neusight.forecast_on("H100") as forecast:
        torch.ones(8, device="cuda").relu_()
        subprocess.run(["true"], check=True)
        assert len(list(torch.utils.data.DataLoader(rows, 4, num_workers=1))) == 2

    assert told(forecast) == []


def test_what_torch_starts_for_itself_is_not() -> None:
    worker = types.ModuleType("torch._inductor.a_worker_of_a_test")
    code = "import subprocess\ndef start(program): subprocess.run([program, '-c', 'pass'])"
    exec(code, worker.__dict__)
    with neusight.forecast_on("H100") as forecast:
        torch.ones(8, device="cuda").relu_()
        worker.start(sys.executable)

    assert told(forecast) == []
