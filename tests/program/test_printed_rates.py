"""Rates that a program prints under the forecast's clock are compared with the forecast's own."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from neusight.integrations.program.options import ProgramOptions
from neusight.integrations.program.printed_rates import PrintedRates, rates_in
from neusight.integrations.program.program import Program
from neusight.integrations.program.recording import recorded
from neusight.output.batch import RATES_OPTION, rate_notes
from neusight.predictors.gpu import find_gpu
from neusight.recording.recording import Batch, Recording
from neusight.session import Session

_PROGRAM = """
import time, torch
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print("read 9 images, 7.5 images/s")
for step in range(8):
    begin = time.time()
    model(torch.zeros(16, 8, device="cuda")).mean().backward()
    optimizer.step()
    torch.cuda.synchronize()
    seconds = time.time() - begin
    print(f"step {step}: {COUNT / seconds:,.1f} samples/s, {1 / seconds:.2f}it/s")
"""


def notes(folder: Path, count: int) -> list[str]:
    script = folder / "train.py"
    script.write_text(_PROGRAM.replace("COUNT", str(count)))
    program, gpu, options = Program(str(script), ()), find_gpu("H100"), ProgramOptions(quiet=True)
    forecast = recorded(program, gpu, options).forecast(program, gpu, options)
    assert not any("printed" in text for text in forecast.on("A100").warnings)
    return [text for text in forecast.warnings if "printed" in text]


def test_a_rate_of_another_batch_is_reported_with_its_line(tmp_path: Path) -> None:
    [note] = notes(tmp_path, 64)

    assert note.startswith('the program printed "step ')
    assert "samples/s, where the forecast has " in note


def test_the_forecast_s_own_rate_is_not_reported(tmp_path: Path) -> None:
    assert notes(tmp_path, 16) == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("12,345.5 tok/s", {"tokens": 12345.5}),
        ("tokens/sec: 1234", {"tokens": 1234.0}),
        ("tokens per second 1.5k", {"tokens": 1500.0}),
        ("  SPS: 3456", {"samples": 3456.0}),
        ("100%|###| 10/10 [00:01<00:00,  9.81it/s]", {"steps": 9.81}),
        ("8.2 img/s and 1e3 examples/s", {"samples": 8.2}),
        ("1.2 s/it, 300 MB/s, 5 bits/s, v1.2it/str", {}),
        ("wrote 3 samples/short.txt", {}),
    ],
)
def test_rates_are_read_by_their_units(line: str, found: dict[str, float]) -> None:
    assert rates_in(line) == found


@pytest.mark.parametrize(
    ("shown", "is_kept"), [([2.0, 3.9, 5.7], False), ([9.5, 9.8], True), ([9.5], False)]
)
def test_steps_of_a_progress_bar_count_once_their_rate_has_settled(
    shown: list[float], is_kept: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    steady = SimpleNamespace(progress=(1000, 3))
    rates = PrintedRates(cast("Session", steady))

    with rates.reading():
        for rate in shown:
            print(f"\r5/20 [00:00<00:01, {rate}it/s]", end="")
        print()

    recording = rates.added_to(Recording((), "H100", "2.13.0"))
    assert (RATES_OPTION in recording.options) == is_kept
    assert "write" not in vars(sys.stdout)


class _Closed:
    """A stream that takes no attributes."""

    __slots__ = ()

    def write(self, text: str) -> int:
        return len(text)


def test_a_stream_keeps_the_write_that_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    own = io.StringIO()
    own.write = shown.append  # type: ignore[method-assign, assignment]
    monkeypatch.setattr(sys, "stdout", own)
    monkeypatch.setattr(sys, "stderr", _Closed())
    rates = PrintedRates(cast("Session", SimpleNamespace(progress=(1000, 3))))

    with rates.reading():
        print("300 tok/s")
        print("400 tok/s", file=sys.stderr)

    assert "".join(shown) == "300 tok/s\n"
    assert vars(own)["write"] == shown.append
    assert "300 tok/s" in rates.added_to(Recording((), "H100", "2.13.0")).options[RATES_OPTION]


def test_rates_of_all_ranks_are_the_forecast_s_too() -> None:
    options = {RATES_OPTION: '{"tokens": [8000.0, "8000 tok/s"]}'}
    batch = Batch(tokens=1000)

    assert not [*rate_notes(options, batch, batch.times(8), us=1e6)]
    assert [*rate_notes(options, batch, batch, us=1e6)]


@pytest.mark.parametrize("text", ["", "[]", '{"tokens": 3}', '{"tokens": ["x", "y"]}'])
def test_damaged_rates_are_none(text: str) -> None:
    assert not [*rate_notes({RATES_OPTION: text}, Batch(tokens=1), Batch(), us=1.0)]
