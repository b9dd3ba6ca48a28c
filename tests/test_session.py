"""The session: what a block, a decorator or a tool that runs programs opens and closes."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

import neusight
from neusight.forecast import Forecast, forecast_options
from neusight.predictors.errors import ForecastStateError
from neusight.predictors.tiled import Tiled
from neusight.session import (
    FILES_OPTION,
    NoCudaWorkWarning,
    Session,
    SessionOptions,
    _for_others,
    open_forecast,
)


def train(steps: int = 3) -> None:
    model = nn.Linear(64, 8).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        model(torch.randn(32, 64, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_what_a_block_yields_is_a_forecast_that_a_step_ends_in() -> None:
    with neusight.forecast_on("H100") as forecast:
        assert open_forecast() is forecast
        for _ in range(3):
            torch.ones(8, device="cuda")
            forecast.step()

    assert isinstance(forecast, Forecast)
    assert open_forecast() is None
    assert sum(row["count"] for row in forecast.steps) == 3


def test_a_session_records_with_options_that_were_made_once() -> None:
    options = SessionOptions(
        forecast_options("T4", predictor="roofline"), script="train.py 3", stated={"tokens": "12"}
    )

    with Session(options) as first:
        train()
    with Session(options) as second:
        train()

    assert first.recording == second.recording
    assert (first.gpu.name, first.predictor_name) == ("T4", "roofline")
    assert first.recording.script == "train.py 3"
    assert first.recording.options["tokens"] == "12"


def test_a_session_that_was_not_opened_has_done_nothing() -> None:
    session = Session(SessionOptions(forecast_options("T4")))

    assert (session.progress, session.doing, session.has_cuda_work) == ((0, 0), "", False)


def test_a_predictor_that_cannot_be_passed_on_is_not() -> None:
    class Own(Tiled):  # of no module, so that pickle does not find it
        pass

    options = SessionOptions(forecast_options("T4", predictor=Own()), stated={"tokens": "12"})

    theirs, folder = pickle.loads(_for_others(options, None))

    assert type(theirs.forecast.predictor) is Tiled
    assert (theirs.stated, folder) == ({"tokens": "12"}, None)


def test_a_session_keeps_what_ended_its_program() -> None:
    with pytest.raises(RuntimeError), Session(SessionOptions(forecast_options("T4"))) as forecast:
        train()
        raise RuntimeError("broken")

    assert forecast.failure == "RuntimeError: broken"


def test_an_open_forecast_shows_itself_as_recording() -> None:
    with neusight.forecast_on("H100") as forecast:
        shown = repr(forecast)
        train()

    assert shown == "<Forecast on H100-SXM5-80GB, recording>"
    assert repr(forecast).startswith("<Forecast on H100-SXM5-80GB: ")


def test_as_a_decorator_each_call_is_a_forecast() -> None:
    @neusight.forecast_on("H100")
    def work(rows: int) -> int:
        return int(torch.ones(rows, device="cuda").shape[0])

    assert work(7) == 7
    forecast = work.forecast  # type: ignore[attr-defined]
    assert [kernel.name for kernel, _ in forecast.kernels] == ["fill"]


def test_a_decorator_without_brackets_explains_itself() -> None:
    with pytest.raises(TypeError, match="decorates a function or opens a block"):
        neusight.forecast_on("H100")(3)  # type: ignore[arg-type]


def test_blocks_do_not_nest() -> None:
    with neusight.forecast_on("H100") as forecast:
        with pytest.raises(ForecastStateError, match="open already"), neusight.forecast_on("A100"):
            pass
        train(steps=1)

    assert forecast.recording.num_ops > 0


def test_an_open_forecast_refuses_to_be_read() -> None:
    with neusight.forecast_on("H100") as forecast:
        with pytest.raises(ForecastStateError, match="after the with statement"):
            forecast.summary()
        train(steps=1)
    with pytest.raises(ForecastStateError, match="inside its forecast_on block"):
        forecast.step()


def test_a_block_without_cuda_work_says_what_to_do() -> None:
    with (
        pytest.warns(NoCudaWorkWarning, match="no CUDA work was recorded"),
        neusight.forecast_on("H100") as forecast,
    ):
        torch.ones(3) + 1

    assert "nothing to forecast" in forecast.summary()
    assert forecast.to_json()["num_ops"] == 0


def test_a_block_that_fails_before_any_cuda_work_gives_no_other_reason() -> None:
    with pytest.raises(ImportError), neusight.forecast_on("H100") as forecast:
        import torch.not_there  # type: ignore[import-not-found]  # noqa: F401

    assert "no CUDA work" not in forecast.summary()


def test_a_block_mostly_on_the_cpu_says_so() -> None:
    with neusight.forecast_on("H100") as forecast:
        x = torch.ones(3)
        for _ in range(100):
            x = x + 1
        x.cuda()

    assert any("ran on the CPU" in text for text in forecast.warnings)


def test_what_was_recorded_before_an_exception_is_kept() -> None:
    with pytest.raises(RuntimeError, match="broken"), neusight.forecast_on("H100") as forecast:
        train()
        raise RuntimeError("broken")

    assert "failure   RuntimeError: broken" in forecast.summary()
    assert any(step["kind"] == "train" for step in forecast.steps)


def test_out_of_memory_raises_where_asked() -> None:
    with neusight.forecast_on("T4", on_out_of_memory="raise") as forecast:
        with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
            torch.empty(2**40, device="cuda")
        torch.empty(2**20, device="cuda")

    assert forecast.fits


def test_wrong_options_are_refused_at_the_door() -> None:
    with pytest.raises(ValueError, match="on_out_of_memory"):
        neusight.forecast_on("H100", on_out_of_memory="maybe")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown host"):
        neusight.forecast_on("H100", host="fast")
    with pytest.raises(ValueError, match="predictor"):
        neusight.forecast_on("H100", predictor="oracle")


def test_the_trace_handler_writes_where_tensorboard_looks(tmp_path: Path) -> None:
    handler = neusight.trace_handler(tmp_path / "runs", worker_name="laptop_1")
    with neusight.forecast_on("H100", on_trace_ready=handler) as forecast:
        train()

    assert [path.name for path in (tmp_path / "runs").glob("*.gz")] == [
        "laptop_1.1.pt.trace.json.gz"
    ]
    assert forecast.trace_path is not None


def test_a_recording_says_that_its_program_wrote_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with neusight.forecast_on("H100") as writing:
        torch.ones(8, device="cuda")
        Path("log.txt").write_text("a line")
    with neusight.forecast_on("H100") as reading:
        torch.ones(8, device="cuda")

    assert FILES_OPTION in writing.recording.options
    assert any("log.txt" in text for text in writing.warnings)
    assert FILES_OPTION not in reading.recording.options
