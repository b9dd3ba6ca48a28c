"""What a GPU is: the datasheet, and the few constants that only measurement tells."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["GPU"]

Vendor = Literal["nvidia", "amd"]


@dataclass(frozen=True)
class GPU:
    """One GPU model. Peaks are dense (no sparsity), bandwidths in 1e9 bytes per second.

    `peak_tflops` maps a compute unit ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8") to
    1e12 FLOP/s; a missing key means that the GPU has no such unit. `link_gbps` is one direction
    of the GPU-to-GPU link. The measured constants: `gemm_utilization` is the share of peak that a
    large GEMM reaches in a short burst, `sustained_factor` what is left of it under sustained
    load, `bandwidth_utilization` the share of the DRAM bandwidth that streaming reaches,
    `floor_us` the shortest kernel. Where they are not measured they are a prior
    (`constants_origin == "prior"`).
    """

    name: str
    driver_name: str
    vendor: Vendor
    architecture: str
    compute_capability: tuple[int, int]
    num_sms: int
    boost_clock_mhz: float
    memory_bytes: int
    bandwidth_gbps: float
    l2_bytes: int
    shared_memory_per_sm_bytes: int
    shared_memory_per_block_optin_bytes: int
    registers_per_sm: int
    max_threads_per_sm: int
    warp_size: int
    tdp_w: float
    peak_tflops: dict[str, float]
    link_kind: str = ""
    link_gbps: float = 0.0
    pcie_gbps: float = 0.0
    aliases: tuple[str, ...] = ()
    cudnn_version: int = 92000
    gcn_arch_name: str = ""
    gemm_utilization: float = 0.75
    sustained_factor: float = 0.9
    bandwidth_utilization: float = 0.85
    floor_us: float = 2.5
    link_floor_us: float = 15.0
    constants_origin: str = "prior"
    context_bytes: int = 500 * 2**20
    sources: dict[str, str] = field(default_factory=dict)
    unverified: tuple[str, ...] = ()
