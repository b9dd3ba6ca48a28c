"""The C library that pynvml loads (libnvidia-ml.so.1), in Python."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from neusight.fake_cuda.nvml.readings import GPUReadings

# The library's nvmlReturn_t.
_SUCCESS, _INVALID_ARGUMENT, _NOT_SUPPORTED, _NOT_FOUND, _INSUFFICIENT_SIZE = 0, 2, 3, 6, 7

#: nvmlDeviceArchitecture_t by the architectures of the packaged GPUs.
_ARCHITECTURES = {
    "Kepler": 2,
    "Maxwell": 3,
    "Pascal": 4,
    "Volta": 5,
    "Turing": 6,
    "Ampere": 7,
    "Ada": 8,
    "Hopper": 9,
    "Blackwell": 10,
    "Blackwell Ultra": 10,
}
_UNKNOWN_ARCHITECTURE = 0xFFFFFFFF

#: Ends of the names of functions with a later form.
_FUNCTION_VERSIONS = ("_v2", "_v3")


class NVML:
    """The library's functions by name; AttributeError for what it does not have. Functions that the
    forecast cannot answer return NVML_ERROR_NOT_SUPPORTED, as the driver's do."""

    def __init__(self, read: Callable[[], GPUReadings]) -> None:
        self._read = read

    def __getattr__(self, name: str) -> Callable[..., int]:
        if not name.startswith("nvml"):
            raise AttributeError(name)
        plain = name
        for version in _FUNCTION_VERSIONS:
            plain = plain.removesuffix(version)
        found: Callable[..., int] | None = getattr(type(self), f"_{plain}", None)
        if found is not None:
            return lambda *args: found(self, *args)
        texts, numbers = _TEXTS.get(plain), _NUMBERS.get(plain)
        if texts is not None:
            return lambda *args: self._answer_text(texts, *args)
        if numbers is not None:
            return lambda *args: self._answer_number(numbers, *args)
        return lambda *args: _NOT_SUPPORTED

    def _answer_text(self, text: Callable[[GPUReadings, int], str], *args: Any) -> int:
        device = _index(args[0]) if len(args) > 2 else 0
        args[-2].value = text(self._read(), device).encode()
        return _SUCCESS

    def _answer_number(self, number: Callable[[GPUReadings, int], int], *args: Any) -> int:
        device = _index(args[0]) if len(args) > 1 else 0
        args[-1]._obj.value = number(self._read(), device)
        return _SUCCESS

    # -- without a device -------------------------------------------------------------------------

    def _succeed(self, *arguments: Any) -> int:
        return _SUCCESS

    _nvmlInit = _nvmlInitWithFlags = _nvmlShutdown = _succeed

    def _nvmlErrorString(self, code: Any) -> bytes:
        return f"error {getattr(code, 'value', code)}".encode()

    # -- handles ----------------------------------------------------------------------------------

    def _nvmlDeviceGetHandleByIndex(self, index: Any, handle: Any) -> int:
        place = getattr(index, "value", index)
        if not 0 <= place < self._read().count:
            return _INVALID_ARGUMENT
        ctypes.memmove(handle, ctypes.byref(ctypes.c_void_p(place + 1)), _POINTER_BYTES)
        return _SUCCESS

    def _nvmlDeviceGetHandleByUUID(self, uuid: Any, handle: Any) -> int:
        return self._found(lambda found, index: found.uuid(index), uuid, handle)

    def _nvmlDeviceGetHandleByPciBusId(self, bus_id: Any, handle: Any) -> int:
        return self._found(lambda found, index: found.bus_id(index), bus_id, handle)

    def _found(self, name: Callable[[GPUReadings, int], str], wanted: Any, handle: Any) -> int:
        found = self._read()
        text = getattr(wanted, "value", wanted)
        text = text.decode() if isinstance(text, bytes) else text
        for index in range(found.count):
            if text.lower() in (name(found, index).lower(), name(found, index)[4:].lower()):
                return self._nvmlDeviceGetHandleByIndex(index, handle)
        return _NOT_FOUND

    # -- structures -------------------------------------------------------------------------------

    def _nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        found = self._read()
        used = found.used_bytes if _index(handle) == 0 else 0
        memory._obj.total, memory._obj.used = found.memory_bytes, used
        memory._obj.free = found.memory_bytes - used
        return _SUCCESS

    def _nvmlDeviceGetUtilizationRates(self, handle: Any, rates: Any) -> int:
        rates._obj.gpu = rates._obj.memory = 0
        return _SUCCESS

    def _nvmlDeviceGetPciInfo(self, handle: Any, info: Any) -> int:
        bus_id = self._read().bus_id(_index(handle)).encode()
        held = info._obj
        held.busId = held.busIdLegacy = bus_id
        held.domain, held.bus, held.device = 0, _index(handle) + 1, 0
        return _SUCCESS

    def _nvmlDeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> int:
        major._obj.value, minor._obj.value = self._read().compute_capability
        return _SUCCESS

    def _nvmlDeviceGetPowerManagementLimitConstraints(
        self, handle: Any, lowest: Any, highest: Any
    ) -> int:
        lowest._obj.value = highest._obj.value = round(self._read().power_limit_w * 1000)
        return _SUCCESS

    def _nvmlDeviceGetTemperature(self, handle: Any, sensor: Any, degrees: Any = None) -> int:
        if degrees is None:  # the structure of nvmlDeviceGetTemperatureV
            sensor._obj.temperature = self._read().idle_degrees
        else:
            degrees._obj.value = self._read().idle_degrees
        return _SUCCESS

    _nvmlDeviceGetTemperatureV = _nvmlDeviceGetTemperature

    def _nvmlDeviceGetClockInfo(self, handle: Any, kind: Any, clock: Any) -> int:
        if getattr(kind, "value", kind) == _MEMORY_CLOCK:
            return _NOT_SUPPORTED
        clock._obj.value = round(self._read().clock_mhz)
        return _SUCCESS

    _nvmlDeviceGetMaxClockInfo = _nvmlDeviceGetClockInfo

    def _nvmlDeviceGetComputeRunningProcesses(self, handle: Any, count: Any, found: Any) -> int:
        read = self._read()
        if _index(handle) or not read.used_bytes:
            count._obj.value = 0
            return _SUCCESS
        if found is None or count._obj.value < 1:
            count._obj.value = 1
            return _INSUFFICIENT_SIZE
        count._obj.value = 1
        found[0].pid, found[0].usedGpuMemory = read.pid, read.used_bytes
        return _SUCCESS

    def _nvmlDeviceGetGraphicsRunningProcesses(self, handle: Any, count: Any, found: Any) -> int:
        count._obj.value = 0
        return _SUCCESS


_POINTER_BYTES = ctypes.sizeof(ctypes.c_void_p)

#: NVML_CLOCK_MEM of nvmlClockType_t.
_MEMORY_CLOCK = 2


def _index(handle: Any) -> int:
    """Which GPU a handle is of: handles are pointers to addresses 1, 2, ..."""
    address = ctypes.cast(handle, ctypes.c_void_p).value
    return (address or 1) - 1


#: Functions that fill a buffer with a text, the size of the buffer last.
_TEXTS: dict[str, Callable[[GPUReadings, int], str]] = {
    "nvmlSystemGetDriverVersion": lambda found, index: found.driver,
    "nvmlSystemGetNVMLVersion": lambda found, index: f"{found.cuda}.{found.driver}",
    "nvmlDeviceGetName": lambda found, index: found.name,
    "nvmlDeviceGetUUID": lambda found, index: found.uuid(index),
}


def _cuda_number(found: GPUReadings, index: int) -> int:
    major, _, minor = found.cuda.partition(".")
    return int(major) * 1000 + int(minor or 0) * 10


def _power_limit(found: GPUReadings, index: int) -> int:
    return round(found.power_limit_w * 1000)


#: Functions that fill a number.
_NUMBERS: dict[str, Callable[[GPUReadings, int], int]] = {
    "nvmlSystemGetCudaDriverVersion": _cuda_number,
    "nvmlDeviceGetCount": lambda found, index: found.count,
    "nvmlDeviceGetIndex": lambda found, index: index,
    "nvmlDeviceGetMinorNumber": lambda found, index: index,
    "nvmlDeviceGetArchitecture": lambda found, index: _ARCHITECTURES.get(
        found.architecture, _UNKNOWN_ARCHITECTURE
    ),
    "nvmlDeviceGetPowerUsage": lambda found, index: round(found.idle_power_w * 1000),
    "nvmlDeviceGetEnforcedPowerLimit": _power_limit,
    "nvmlDeviceGetPowerManagementLimit": _power_limit,
    "nvmlDeviceGetPowerManagementDefaultLimit": _power_limit,
    "nvmlDeviceGetPerformanceState": lambda found, index: 0,
    "nvmlDeviceGetPersistenceMode": lambda found, index: 1,
    "nvmlDeviceGetComputeMode": lambda found, index: 0,
    "nvmlDeviceGetDisplayActive": lambda found, index: 0,
    "nvmlDeviceGetDisplayMode": lambda found, index: 0,
    "nvmlDeviceGetTotalEnergyConsumption": lambda found, index: 0,
}
