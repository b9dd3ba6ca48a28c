"""Tensors of a forecast in safetensors' files; tests/end_to_end/test_user_files.py has the rest."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import neusight


def test_tensors_of_a_forecast_are_saved_as_large_as_they_are(tmp_path: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    path = tmp_path / "model.safetensors"

    with neusight.forecast_on("H100"):
        model = nn.Linear(1024, 1024, dtype=torch.bfloat16).cuda()
        save_file({**model.state_dict(), "steps": torch.tensor([1, 2])}, path, {"by": "me"})
        size, room = path.stat().st_size, path.stat().st_blocks * 512
        with safe_open(path, framework="pt") as file:
            metadata, shape = file.metadata(), tuple(file.get_slice("weight").get_shape())
        loaded = load_file(path, device="cuda")
        steps = loaded["steps"].tolist()
        model.load_state_dict({name: loaded[name] for name in ("weight", "bias")})

    assert size > 2 * 1024 * 1024 > 64 * 1024 > room
    assert (metadata, shape, steps) == ({"by": "me"}, (1024, 1024), [1, 2])
    assert loaded["weight"].dtype is torch.bfloat16
