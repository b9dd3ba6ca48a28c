"""The process that measures: it answers requests on its standard input, a line of JSON each.

A process of its own, so that what kills it (an illegal access on the GPU, no memory) costs one
probe. `Rehearsal` answers the same requests from a forecast, so that all is tried before a real
GPU is at hand.
"""

from __future__ import annotations

import atexit
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from neusight._version import __version__
from neusight.predictors.errors import DataError, NeusightError
from neusight.predictors.files import write_atomically
from neusight.predictors.kernel import Kernel
from neusight.predictors.measuring.folder import (
    REHEARSAL_PREFIX,
    Environment,
    Workload,
    sample_to_json,
)
from neusight.predictors.measuring.probes import Probe
from neusight.predictors.measuring.stopwatch import (
    Call,
    Conditions,
    CudaStopwatch,
    Profiling,
    Refusal,
    Stopwatch,
    TimedLaunch,
    measured_probes,
)

Reply: TypeAlias = "dict[str, Any]"

#: A GPU counts as busy above this utilization (percent), or this much memory in use.
_BUSY_PERCENT = 10
_BUSY_BYTES = 2 * 2**30
_SECOND_LOOK_S = 2.0
#: Steps of a workload in a rehearsal: a first one and steady ones.
_REHEARSED_STEPS = 4
#: How often clock and power are read, milliseconds.
_CONDITIONS_MS = 200


#: What measures: a real GPU, or a forecast of one.
Bench: TypeAlias = "RealBench | Rehearsal"


def main(rehearsed_gpu: str | None = None) -> int:
    """Answers requests until there are no more."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)  # what libraries print is no reply
        return serve(sys.stdin, out, rehearsed_gpu)


def serve(requests: TextIO, out: TextIO, rehearsed_gpu: str | None) -> int:
    """Writes the replies to each request, the last of which says "done"."""

    def say(reply: Reply) -> None:
        out.write(json.dumps(reply, allow_nan=False) + "\n")
        out.flush()

    try:
        bench: Bench = RealBench() if rehearsed_gpu is None else Rehearsal(rehearsed_gpu)
    except NeusightError as error:
        say({"error": str(error)})
        return 2
    for line in requests:
        for reply in answers(json.loads(line), bench, say):
            say(reply)
        say({"done": True})
    return 0


def answers(
    request: Mapping[str, Any], bench: Bench, say: Callable[[Reply], None]
) -> Iterator[Reply]:
    """The replies to a request: "environment", "probes" or "workload"."""
    kind = request["do"]
    if kind == "environment":
        yield {
            "environment": asdict(bench.environment()),
            "num_gpus": bench.num_gpus(),
            "busy": bench.busy(),
        }
    elif kind == "probes":
        with bench.stopwatch() as stopwatch:
            for found in measured_probes(
                [Probe.parse(text) for text in request["probes"]],
                stopwatch,
                _described,
                sustained=request["sustained"],
                begin=lambda probe: say({"begin": probe.text}),
            ):
                if isinstance(found, Refusal):
                    yield {"refused": asdict(found)}
                else:
                    yield {"sample": sample_to_json(found)}
    elif kind == "workload":
        yield from _workload(request, bench)
    else:
        raise DataError(f"{kind!r} is no request of `neusight measure`.")


def _workload(request: Mapping[str, Any], bench: Bench) -> Iterator[Reply]:
    name = request["name"]
    try:
        workload, trace = bench.workload(name, Path(request["script"]), request["arguments"])
    except Exception as error:  # no memory, an op that this torch does not have
        text = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {text[0][:300] if text else ''}"
        yield {"refused": {"subject": f"workload {name}", "reason": reason}}
        return
    if workload.trace:
        path = Path(request["folder"]) / workload.trace
        try:
            write_atomically(path, trace)
        except OSError as error:
            yield {"error": f"{path} cannot be written: {error.strerror}"}
            return
    yield {"workload": asdict(workload)}


# -- a real GPU --------------------------------------------------------------------------------


class RealBench:
    """The first GPU that torch sees; DataError where there is none."""

    def __init__(self) -> None:
        try:
            import torch
        except ImportError as error:
            raise DataError(
                "Measuring needs torch 2.6 or later, built for CUDA or ROCm, and numpy; here is"
                f" no torch ({error})."
            ) from error
        if not torch.cuda.is_available():
            build = torch.version.cuda or torch.version.hip
            why = (
                f"torch {torch.__version__} is built for {build} but sees no GPU (driver?"
                " CUDA_VISIBLE_DEVICES?)"
                if build
                else f"torch {torch.__version__} is a build for CPUs only"
            )
            raise DataError(
                f"There is no GPU to measure: {why}. `neusight measure --rehearse H100` goes"
                " through all of it on a forecast instead."
            )
        self._torch = torch
        self._busy = _busy()  # before our own context shows up
        self._stopwatch: CudaStopwatch | None = None

    def environment(self) -> Environment:
        torch = self._torch
        device = torch.cuda.get_device_properties(0)
        return _environment(
            gpu=device.name,
            compute_capability=f"{device.major}.{device.minor}",
            num_sms=device.multi_processor_count,
            memory_bytes=device.total_memory,
            driver=_smi("driver_version")[0] or "unknown",
            torch=torch.__version__,
            cuda=torch.version.cuda or f"ROCm {torch.version.hip}",
        )

    def num_gpus(self) -> int:
        return self._torch.cuda.device_count()

    def busy(self) -> str:
        return self._busy

    def stopwatch(self) -> AbstractContextManager[Stopwatch]:
        if self._stopwatch is None:
            self._stopwatch = CudaStopwatch(_conditions_reader())
        return nullcontext(self._stopwatch)

    def workload(self, name: str, script: Path, arguments: list[str]) -> tuple[Workload, bytes]:
        from neusight.integrations.profiles.workloads import measured_workload

        environment = asdict(self.environment())
        return measured_workload(name, script, arguments, environment=environment)


def _gpu_index() -> str:
    """The GPU that torch calls 0, as nvidia-smi knows it."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    return visible or "0"


def _smi(*queries: str) -> list[str]:
    """nvidia-smi's answers, empty texts where there are none. It only reads."""
    nothing = [""] * len(queries)
    if shutil.which("nvidia-smi") is None:
        return nothing
    command = ["nvidia-smi", "-i", _gpu_index(), f"--query-gpu={','.join(queries)}"]
    try:
        done = subprocess.run(
            [*command, "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return nothing
    found = [part.strip() for part in done.stdout.splitlines()[0].split(",")] if (
        done.returncode == 0 and done.stdout.strip()
    ) else []  # fmt: skip
    return found if len(found) == len(queries) else nothing


def _busy() -> str:
    """What uses the GPU, if it still does when looked at again: a run that has just ended lingers
    for a second in the utilization."""
    if _busy_now():
        time.sleep(_SECOND_LOOK_S)
    return _busy_now()


def _busy_now() -> str:
    percent, used_mib = (_number(text) for text in _smi("utilization.gpu", "memory.used"))
    if percent is not None and percent > _BUSY_PERCENT:
        return f"its utilization is {percent:.0f} %"
    if used_mib is not None and used_mib * 2**20 > _BUSY_BYTES:
        return f"{used_mib / 2**10:.1f} GiB of its memory are in use"
    return ""


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _conditions_reader() -> Callable[[], Conditions]:
    """What gives clock and power as they were a moment ago; read beside the measuring until this
    process ends."""
    last = [Conditions()]
    if shutil.which("nvidia-smi") is None:
        return lambda: last[0]
    command = ["nvidia-smi", "-i", _gpu_index(), "--query-gpu=clocks.sm,power.draw"]
    command += ["--format=csv,noheader,nounits", "-lms", str(_CONDITIONS_MS)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    atexit.register(process.terminate)

    def follow() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            clock, _, power = line.partition(",")
            last[0] = Conditions(_number(clock), _number(power))

    threading.Thread(target=follow, daemon=True).start()
    return lambda: last[0]


def _described(call: Call) -> tuple[Kernel, ...]:
    """The kernels that a call launches."""
    from neusight.ops.launched import kernels_launched_by

    kernels, _ = kernels_launched_by(call)
    return kernels


def _environment(**measured: Any) -> Environment:
    """The GPU and its software as stated, on this host today."""
    return Environment(
        **measured,
        python=platform.python_version(),
        date=date.today().isoformat(),
        neusight_version=__version__,
        host=_cpu_name(),
    )


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


# -- a forecast in its place -------------------------------------------------------------------


class Rehearsal:
    """Answers from a forecast of the GPU: what it gives are no measurements, and says so."""

    def __init__(self, name: str) -> None:
        from neusight.predictors.gpu import find_gpu

        self._gpu = find_gpu(name)

    def environment(self) -> Environment:
        import torch

        target = self._gpu
        return _environment(
            gpu=f"{REHEARSAL_PREFIX}{target.name}",
            compute_capability=".".join(map(str, target.compute_capability)),
            num_sms=target.num_sms,
            memory_bytes=target.memory_bytes,
            driver="none, a rehearsal",
            torch=torch.__version__,
            cuda="none",
        )

    def num_gpus(self) -> int:
        return 1

    def busy(self) -> str:
        return ""

    @contextmanager
    def stopwatch(self) -> Iterator[Stopwatch]:
        from neusight.session import forecast_on

        with forecast_on(self._gpu, predictor="roofline", on_out_of_memory="raise"):
            yield _ForecastStopwatch(self)

    def launches(self, call: Call) -> list[TimedLaunch]:
        """The kernels of a call with the times that are forecast for them."""
        return self.launches_of(_described(call))

    def launches_of(self, kernels: Sequence[Kernel]) -> list[TimedLaunch]:
        """Kernels with the times that are forecast for them."""
        from neusight.predictors.registry import predict

        estimates = predict(kernels, self._gpu, "tiled_burst")
        return [
            TimedLaunch(kernel.name, estimate.latency_us)
            for kernel, estimate in zip(kernels, estimates, strict=True)
        ]

    def workload(self, name: str, script: Path, arguments: list[str]) -> tuple[Workload, bytes]:
        import torch

        from neusight.integrations.profiles.workloads import (
            figures_of_trace,
            loaded,
            step_times,
            trimmed,
            zipped,
        )
        from neusight.session import forecast_on

        with loaded(script) as module, forecast_on(self._gpu) as forecast:
            settings = module.parser().parse_args(arguments)
            step = module.build(settings)
            for _ in range(_REHEARSED_STEPS):
                step()
                torch.cuda.synchronize()
        with tempfile.TemporaryDirectory(prefix="neusight-") as folder:
            path = Path(folder) / "trace.json"
            forecast.export_chrome_trace(path)
            trace = trimmed(json.loads(path.read_bytes()))
        latency = forecast.step_latency_us
        workload = Workload(
            workload=name,
            command=(script.name, *arguments),
            arguments=vars(settings),
            mode=settings.mode,
            environment=asdict(self.environment()),
            step_us=step_times([latency.median]),
            profiled_step_us=None,
            peak_allocated_bytes=forecast.peak_memory_bytes,
            peak_reserved_bytes=forecast.peak_reserved_bytes,
            trace=f"{name}.pt.trace.json.gz",
            **figures_of_trace(trace, step_us=latency.median),
        )
        return workload, zipped(trace)


class _ForecastStopwatch:
    """Takes the times that are forecast."""

    device = "cuda"
    most_runs = 1

    def __init__(self, bench: Rehearsal) -> None:
        self._bench = bench

    def events(self, call: Call, *, runs: int, cold: bool) -> list[float]:
        return [sum(launch.duration_us for launch in self._bench.launches(call))]

    @contextmanager
    def profiling(self) -> Iterator[Profiling]:
        yield _ForecastProfiling(self._bench)

    def cool(self) -> None:
        pass

    def heat(self, call: Call, seconds: float) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def conditions(self) -> Conditions:
        return Conditions()


class _ForecastProfiling:
    def __init__(self, bench: Rehearsal) -> None:
        self._bench = bench
        self._found: defaultdict[str, list[list[TimedLaunch]]] = defaultdict(list)

    @contextmanager
    def mark(self, label: str) -> Iterator[None]:
        from neusight.ops.launched import kernels_of_calls, listening

        with listening() as calls:
            yield
        self._found[label].append(self._bench.launches_of(kernels_of_calls(calls)[0]))

    def launches(self) -> Mapping[str, Sequence[Sequence[TimedLaunch]]]:
        return self._found
