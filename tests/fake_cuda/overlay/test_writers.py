"""What libraries write from C or Rust by a path: private where a file stands, read back alike."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import neusight


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def torch_save(path: Path) -> Any:
    torch.save({"a": torch.arange(3)}, path)
    return torch.load(path)["a"].tolist()


def torch_save_memory_mapped(path: Path) -> Any:
    torch.save({"a": torch.arange(3)}, path)
    return torch.load(path, mmap=True)["a"].tolist()


def torch_jit(path: Path) -> Any:
    torch.jit.save(torch.jit.script(Doubled()), str(path))
    return torch.jit.load(str(path))(torch.ones(2)).tolist()


def torch_jit_method(path: Path) -> Any:
    torch.jit.script(Doubled()).save(str(path))
    return torch.jit.load(str(path))(torch.ones(2)).tolist()


def file_writer(path: Path) -> Any:
    writer = torch._C.PyTorchFileWriter(str(path))
    writer.write_record("data", b"bytes", 5)
    writer.write_end_of_file()
    return torch._C.PyTorchFileReader(str(path)).get_record("data")


def mapped_storage(path: Path) -> Any:
    storage = torch.UntypedStorage.from_file(str(path), True, 64)
    storage[0] = 7
    with open(path, "rb") as file:
        return file.read()[0]


def distributed_checkpoint(path: Path) -> Any:
    from torch.distributed.checkpoint.state_dict_loader import load
    from torch.distributed.checkpoint.state_dict_saver import save

    state = {"a": torch.arange(3)}
    folder = path.with_suffix(".dcp")
    save(state, checkpoint_id=str(folder), no_dist=True)
    state["a"] = torch.zeros(3, dtype=torch.int64)
    load(state, checkpoint_id=str(folder), no_dist=True)
    return state["a"].tolist()


def safetensors_torch(path: Path) -> Any:
    from safetensors.torch import load_file, save_file

    save_file({"a": torch.arange(3)}, path)
    return load_file(path)["a"].tolist()


def safetensors_numpy(path: Path) -> Any:
    from safetensors import safe_open
    from safetensors.numpy import load_file, save_file

    save_file({"a": np.arange(3)}, path)
    with safe_open(path, framework="np") as file:
        assert file.get_tensor("a").tolist() == [0, 1, 2]
    return load_file(path)["a"].tolist()


def exported(path: Path) -> Any:
    program = torch.export.export(Doubled(), (torch.ones(2),))
    torch.export.save(program, path.with_suffix(".pt2"))
    return torch.export.load(path.with_suffix(".pt2")).module()(torch.ones(2)).tolist()


def memory_map(path: Path) -> Any:
    array = np.memmap(path, dtype=np.uint8, mode="w+", shape=(3,))
    array[:] = 5
    array.flush()
    again = np.memmap(path, dtype=np.uint8, mode="r+", shape=(3,))
    again[0] = 6
    again.flush()
    return np.fromfile(path, dtype=np.uint8).tolist()


def array_to_file(path: Path) -> Any:
    np.arange(3, dtype=np.uint8).tofile(path)
    return np.fromfile(path, dtype=np.uint8).tolist()


WRITERS: list[Callable[[Path], Any]] = [
    torch_save, torch_save_memory_mapped, torch_jit, torch_jit_method, file_writer, mapped_storage,
    distributed_checkpoint, safetensors_torch, safetensors_numpy, exported, memory_map,
    array_to_file,
]  # fmt: skip


def standing(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        str(path): (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.filterwarnings(
    "ignore:torch.distributed is", "ignore:Detected an existing", "ignore:.*is deprecated"
)
@pytest.mark.parametrize("write", WRITERS)
def test_what_stands_is_kept_and_what_was_written_reads_back(
    write: Callable[[Path], Any], tmp_path: Path
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "new").mkdir()
    expected = write(tmp_path / "real" / "file")
    before = standing(tmp_path)

    with neusight.forecast_on("H100") as forecast:
        torch.ones(2, device="cuda").add_(1)
        over = write(tmp_path / "real" / "file")
        new = write(tmp_path / "new" / "file")

    assert (over, new) == (expected, expected)
    assert standing(tmp_path) == before
    assert os.listdir(tmp_path / "new") == []
    assert any("not over your files" in text for text in forecast.warnings)


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
