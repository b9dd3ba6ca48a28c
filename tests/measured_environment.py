"""The machine that measurements in tests come from."""

from __future__ import annotations

from neusight.predictors.measuring.folder import Environment

ENVIRONMENT = Environment(
    gpu="NVIDIA H100 80GB HBM3",
    compute_capability="9.0",
    num_sms=132,
    memory_bytes=85018279936,
    driver="570.1",
    torch="2.6.0",
    cuda="12.9",
    python="3.12.1",
    date="2026-11-21",
    neusight_version="0",
    host="a CPU",
)
