"""What the driver reports about a GPU; sensors are those of an idle one."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neusight.predictors.gpu import GPU

#: The first drivers that run these releases of CUDA, by the CUDA toolkit's release notes, table
#: "CUDA Toolkit and Corresponding Driver Versions" (Linux x86_64).
_DRIVERS = {"12": "560.35.05", "13": "580.65.06"}
#: The release of CUDA that a driver is said to support where torch names none.
_DEFAULT_CUDA = "13.0"

#: Degrees Celsius, watts and MHz of an idle GPU: no datasheet has them.
_IDLE_DEGREES = 30
_IDLE_SHARE_OF_POWER = 0.1


@dataclass(frozen=True)
class GPUReadings:
    """What is asked of the GPUs of a machine, all alike. Memory in bytes, clocks in MHz, power in
    watts, bandwidth in 1e9 bytes per second; `pid` is the process that uses the first."""

    name: str
    count: int
    driver: str
    cuda: str
    compute_capability: tuple[int, int]
    architecture: str
    memory_bytes: int
    used_bytes: int
    power_limit_w: float
    clock_mhz: float
    pid: int

    @classmethod
    def of(cls, gpu: GPU, count: int, cuda: str | None, used_bytes: int, pid: int) -> GPUReadings:
        """The readings of `count` such GPUs, for a torch built with that release of CUDA."""
        cuda = cuda or _DEFAULT_CUDA
        return cls(
            name=gpu.driver_name,
            count=count,
            driver=_DRIVERS.get(cuda.partition(".")[0], _DRIVERS["13"]),
            cuda=cuda,
            compute_capability=gpu.compute_capability,
            architecture=gpu.architecture,
            memory_bytes=gpu.memory_bytes,
            used_bytes=used_bytes,
            power_limit_w=gpu.tdp_w,
            clock_mhz=gpu.max_clock_mhz or gpu.boost_clock_mhz,
            pid=pid,
        )

    @property
    def idle_degrees(self) -> int:
        return _IDLE_DEGREES

    @property
    def idle_power_w(self) -> float:
        return self.power_limit_w * _IDLE_SHARE_OF_POWER

    def uuid(self, index: int) -> str:
        """As the driver writes it.

        >>> GPUReadings("X", 1, "", "", (9, 0), "", 0, 0, 0, 0, 0).uuid(1)
        'GPU-00000000-0000-0000-0000-000000000001'
        """
        return f"GPU-00000000-0000-0000-0000-{index:012d}"

    def bus_id(self, index: int) -> str:
        return f"00000000:{index + 1:02X}:00.0"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> GPUReadings:
        values = json.loads(text)
        values["compute_capability"] = tuple(values["compute_capability"])
        return cls(**values)
