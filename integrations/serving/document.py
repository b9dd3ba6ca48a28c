"""The document of `neusight serve --json`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neusight.integrations.serving.screen import frontier_of
from neusight.integrations.serving.service import LoadPoint, Server

#: Raised when the form of the document changes.
SCHEMA_VERSION = 1

Highest = Sequence[tuple[Server, LoadPoint | None]]


def serving_document(points: Sequence[LoadPoint], highest: Highest) -> dict[str, Any]:
    """Every figure of every load, the highest rates, and what was served."""
    frontier = frontier_of(points)
    return {
        "schema_version": SCHEMA_VERSION,
        "points": [{**point.to_json(), "is_on_frontier": point in frontier} for point in points],
        "highest_rates": [_highest(server, point) for server, point in highest],
        "servers": [_server(one) for one in dict.fromkeys(point.server for point in points)],
    }


def _highest(server: Server, point: LoadPoint | None) -> dict[str, Any]:
    return {
        "gpu": server.deployment.gpu.name,
        "tp": server.deployment.ranks,
        "pp": server.deployment.stages,
        "replicas": server.deployment.replicas,
        "quantization": server.deployment.quantization or None,
        "rate": None if point is None else point.rate,
        "figures": None if point is None else point.to_json(),
    }


def _server(server: Server) -> dict[str, Any]:
    return {
        "deployment": server.deployment.label,
        "model": server.model.name,
        "engine": server.settings.engine.name,
        "weight_bytes": server.capacity.weight_bytes,
        "kv_bytes": server.capacity.kv_bytes,
        "kv_bytes_per_token": server.program.kv_bytes_per_token,
        "kv_tokens": server.capacity.num_tokens if server.program.kv_bytes_per_token else None,
        "state_bytes_per_sequence": server.program.state_bytes,
        "unmatched_kernels": list(server.program.unmatched),
        "unmatched_share": round(server.unmatched_share, 6),
    }
