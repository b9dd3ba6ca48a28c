"""What programs ask the driver's management library, and nvidia-smi, of the target."""

from __future__ import annotations

import os
import shutil
import subprocess

import pynvml
import pytest
import torch

import neusight
from neusight.fake_cuda.nvml.readings import GPUReadings
from neusight.fake_cuda.nvml.smi import READINGS_VARIABLE, main
from neusight.session import NoCudaWorkWarning


def smi(*words: str) -> str:
    return subprocess.check_output(["nvidia-smi", *words], text=True)


def test_nvidia_smi_is_of_the_target() -> None:
    path = os.environ["PATH"]
    with pytest.warns(NoCudaWorkWarning), neusight.forecast_on("H100"):
        wanted = "--query-gpu=index,name,memory.total,compute_cap,fan.speed"
        plain = smi(wanted, "--format=csv,noheader,nounits")
        whole = smi(wanted, "--format=csv")
        listed = subprocess.check_output("nvidia-smi -L | wc -l", shell=True, text=True)
        table = smi()
        wrong = subprocess.run(
            ["nvidia-smi", "--query-gpu=colour", "--format=csv"], capture_output=True, text=True
        )

    assert plain == "0, NVIDIA H100 80GB HBM3, 81079, 9.0, [N/A]\n"
    assert whole.splitlines()[0] == "index, name, memory.total [MiB], compute_cap, fan.speed"
    assert whole.splitlines()[1] == "0, NVIDIA H100 80GB HBM3, 81079 MiB, 9.0, [N/A]"
    assert listed.strip() == "1"
    assert len({len(line) for line in table.splitlines()}) == 1
    assert "CUDA Version: 13" in table
    assert (wrong.returncode, wrong.stdout) == (
        2,
        'Field "colour" is not a valid field to query.\n\n',
    )
    assert os.environ["PATH"] == path
    assert "NEUSIGHT_GPUS" not in os.environ


def test_nvidia_smi_shows_the_memory_that_is_used_when_it_starts() -> None:
    query = ("--query-gpu=memory.used", "--format=csv,noheader,nounits")
    with neusight.forecast_on("A100"):
        before = int(smi(*query))
        x = torch.ones(2**28, device="cuda")
        after = int(smi(*query))
        reserved = torch.cuda.memory_reserved()
        processes = smi("--query-compute-apps=pid,used_memory", "--format=csv,noheader")
        del x

    assert before == 0
    assert after > reserved / 2**20 >= 1024
    assert processes == f"{os.getpid()}, {after} MiB\n"


def test_nvidia_smi_is_of_the_gpus_that_are_named_and_says_what_it_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    four = GPUReadings("X", 4, "580.65.06", "13.0", (9, 0), "Hopper", 2**36, 0, 700, 1980, 1)
    monkeypatch.delenv(READINGS_VARIABLE, raising=False)
    without = main([])
    monkeypatch.setenv(READINGS_VARIABLE, four.to_json())
    unknown = main(["dmon"])
    refused = capsys.readouterr().err.splitlines()
    listed = main(["-L", "-i", f"1,{four.uuid(3)}"])

    assert (without, unknown, listed) == (9, 2, 0)
    assert refused[0] == "nvidia-smi: no forecast is open"
    assert refused[1].startswith("nvidia-smi: dmon is not answered in a forecast; -L, -i, ")
    assert capsys.readouterr().out.splitlines() == [
        f"GPU {index}: X (UUID: {four.uuid(index)})" for index in (1, 3)
    ]


def test_amds_gpus_have_no_nvidia_smi() -> None:
    found = shutil.which("nvidia-smi")
    with pytest.warns(NoCudaWorkWarning), neusight.forecast_on("MI300X"):
        assert shutil.which("nvidia-smi") == found


def test_pynvml_is_answered() -> None:
    with neusight.forecast_on("H100"):
        x = torch.ones(2**28, device="cuda")
        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        memory = pynvml.nvmlDeviceGetMemoryInfo(device)
        used = pynvml.nvmlDeviceGetMemoryInfo(device, version=pynvml.nvmlMemory_v2).used
        (process,) = pynvml.nvmlDeviceGetComputeRunningProcesses(device)
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetFanSpeed(device)
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetClockInfo(device, pynvml.NVML_CLOCK_MEM)
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlDeviceGetHandleByIndex(1)
        with pytest.raises(pynvml.NVMLError_NotFound):
            pynvml.nvmlDeviceGetHandleByUUID("GPU-of-another-machine")

        assert pynvml.nvmlDeviceGetCount() == 1
        assert pynvml.nvmlDeviceGetName(device) == torch.cuda.get_device_name()
        assert pynvml.nvmlDeviceGetCudaComputeCapability(device) == (9, 0)
        assert pynvml.nvmlDeviceGetArchitecture(device) == pynvml.NVML_DEVICE_ARCH_HOPPER
        assert pynvml.nvmlDeviceGetEnforcedPowerLimit(device) == 700_000
        assert pynvml.nvmlDeviceGetUtilizationRates(device).gpu == 0
        uuid = pynvml.nvmlDeviceGetUUID(device)
        assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(uuid)) == 0
        bus = pynvml.nvmlDeviceGetPciInfo(device)
        assert (bus.busId, bus.bus, bus.device) == ("00000000:01:00.0", 1, 0)
        assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByPciBusId(bus.busId)) == 0
        assert pynvml.nvmlDeviceGetTemperature(device, pynvml.NVML_TEMPERATURE_GPU) == 30
        assert pynvml.nvmlDeviceGetPowerManagementLimitConstraints(device) == [700_000, 700_000]
        for clock in (pynvml.nvmlDeviceGetClockInfo, pynvml.nvmlDeviceGetMaxClockInfo):
            assert clock(device, pynvml.NVML_CLOCK_SM) == 1980
        assert pynvml.nvmlDeviceGetGraphicsRunningProcesses(device) == []
        assert pynvml.nvmlSystemGetCudaDriverVersion() == 13000
        assert memory.total == torch.cuda.get_device_properties(0).total_memory
        assert memory.used == used == memory.total - memory.free > x.nbytes
        assert (process.pid, process.usedGpuMemory) == (os.getpid(), used)
        pynvml.nvmlShutdown()

    with pytest.raises(pynvml.NVMLError):
        pynvml.nvmlInit()


@pytest.mark.parametrize("count", [1, 4])
def test_each_gpu_of_a_node_is_listed(count: int) -> None:
    with (
        pytest.warns(NoCudaWorkWarning),
        neusight.forecast_on("A100", world_size=count),
    ):
        assert len(smi("-L").splitlines()) == torch.cuda.device_count() == count
