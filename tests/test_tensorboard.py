"""TensorBoard's own profiler plugin shows a forecast: every view, with the timeline's values."""

from __future__ import annotations

import gzip
import json
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import neusight
from neusight.predictors.errors import TraceError

RUN = "forecast"


def train() -> None:
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(5):
        model(torch.randn(64, 256, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture(scope="module")
def forecast(tmp_path_factory: pytest.TempPathFactory) -> neusight.Forecast:
    folder = tmp_path_factory.mktemp("logs")
    handler = neusight.trace_handler(folder / RUN, worker_name="host_0")
    with neusight.forecast_on("H100", on_trace_ready=handler) as forecast:
        train()
    return forecast


@pytest.fixture(scope="module")
def client(forecast: neusight.Forecast) -> Iterator[Any]:
    """The plugin's HTTP endpoints, loaded as TensorBoard loads them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the plugin and its libraries are old
        from tensorboard.plugins import base_plugin
        from torch_tb_profiler.plugin import TorchProfilerPlugin
        from werkzeug.test import Client

        from neusight.integrations import tensorboard_repair

        tensorboard_repair.repair()
        assert forecast.trace_path is not None
        logdir = str(Path(forecast.trace_path).parents[1])
        plugin = TorchProfilerPlugin(base_plugin.TBContext(logdir=logdir))
        deadline = time.monotonic() + 60
        while plugin.is_loading or not plugin._runs:
            assert time.monotonic() < deadline, "the plugin did not load the trace"
            time.sleep(0.05)
        routes = plugin.get_plugin_apps()

        def get(route: str, **arguments: str) -> Any:
            response = Client(routes[route]).get(route, query_string=arguments)
            assert response.status_code == 200, (route, response.status_code)
            data = response.data
            if data[:2] == b"\x1f\x8b":
                data = gzip.decompress(data)
            return json.loads(data)

        yield get


def of_run(view: str) -> dict[str, str]:
    return {"run": RUN, "worker": "host_0", "span": "1", "view": view}


@pytest.mark.filterwarnings("ignore")
def test_the_views_are_there(client: Any) -> None:
    assert client("/runs")["runs"] == [RUN]
    assert client("/views", run=RUN) == [
        "Overview", "Operator", "Kernel", "Trace", "Memory", "Module",
    ]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
def test_the_overview_has_the_steps_and_the_gpu(client: Any, forecast: neusight.Forecast) -> None:
    overview = client("/overview", **of_run("Overview"))

    steps = [row[0] for row in overview["steps"]["rows"]]
    assert len(steps) == len(set(steps)) == 5
    assert "H100" in json.dumps(overview["gpu_metrics"])


@pytest.mark.filterwarnings("ignore")
def test_operators_have_the_device_time_of_their_kernels(
    client: Any, forecast: neusight.Forecast
) -> None:
    rows = client("/operation/table", group_by="Operation", **of_run("Operator"))["data"]

    by_name = {row["name"]: row for row in rows}
    device_us = by_name["aten::addmm"]["device_self_duration"]
    kernels = [
        span
        for span in forecast.timeline.kernels
        if (call := forecast.timeline.host[span.op].call) is not None
        and call.signature.op == "aten::addmm"
    ]
    written = by_name["aten::addmm"]["calls"]
    mean_us = sum(span.duration_ns for span in kernels) / len(kernels) / 1000
    assert device_us == pytest.approx(mean_us * written, rel=0.2)


@pytest.mark.filterwarnings("ignore")
def test_kernels_belong_to_their_operators(client: Any) -> None:
    table = client("/kernel/table", group_by="KernelNameAndOpName", **of_run("GPU Kernel"))

    owners = {row[1] for row in table["data"]["rows"]}
    assert {"aten::addmm", "aten::mm", "aten::gelu"} <= owners
    assert "CallTreeRoot" not in owners


@pytest.mark.filterwarnings("ignore")
def test_modules_have_forward_and_backward(client: Any) -> None:
    modules = client("/module", **of_run("Module"))

    (outermost,) = modules["data"]
    assert outermost["name"] == "Sequential_0"
    assert outermost["occurences"] == 5
    inner = {row["name"]: row for row in outermost["children"]}
    assert set(inner) == {"Linear_0", "GELU_0", "Linear_1"}
    assert all(row["device_duration"] > 0 for row in inner.values())


@pytest.mark.filterwarnings("ignore")
def test_memory_is_followed_on_the_gpu(client: Any, forecast: neusight.Forecast) -> None:
    curve = client("/memory_curve", **of_run("Memory"))

    assert curve["metadata"]["default_device"] == "GPU0"
    assert curve["metadata"]["memory_metric"] == "MB"
    peak_mb = max(allocated for _, allocated, _ in curve["rows"]["GPU0"])
    assert peak_mb == pytest.approx(forecast.peak_memory_bytes / 2**20, rel=0.01)


@pytest.mark.filterwarnings("ignore")
def test_every_other_endpoint_answers(client: Any) -> None:
    client("/operation", group_by="Operation", **of_run("Operator"))
    client("/kernel", **of_run("GPU Kernel"))
    client("/kernel/tc_pie", **of_run("GPU Kernel"))
    client("/trace", **of_run("Trace"))
    client("/memory", **of_run("Memory"))
    client("/memory_events", **of_run("Memory"))
    client("/tree", **of_run("Module"))


def test_the_repair_maps_categories_and_leaves_the_rest() -> None:
    from neusight.integrations.tensorboard_repair import mapped_events

    events = [
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel"},
        {"ph": "s", "cat": "fwdbwd", "name": "fwdbwd"},
        {"ph": "X", "cat": "user_annotation", "name": "Optimizer.step#SGD.step"},
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3"},
        {"ph": "X", "cat": "gpu_user_annotation", "name": "ProfilerStep#3"},
        {"ph": "M", "name": "process_name"},
    ]

    mapped = mapped_events(events)

    assert [event.get("cat") for event in mapped] == [
        "runtime", "forward_backward", "cpu_op", "user_annotation", None,
    ]  # fmt: skip
    assert events[0]["cat"] == "cuda_runtime"


def test_a_folder_that_cannot_be_written_is_a_trace_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with neusight.forecast_on("H100") as forecast:
        train()

    with pytest.raises(TraceError, match="cannot be written"):
        neusight.trace_handler(tmp_path / "file")(forecast)
