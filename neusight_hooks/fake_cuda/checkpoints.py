"""Checkpoints of tensors without data: written as small as they are, and loaded back."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from typing import Any

import torch

from neusight.fake_cuda.import_hooks import when_imported
from neusight.fake_cuda.patching import Patches
from neusight.recording.tensor import ForecastTensor


def install_checkpoints(patches: Patches) -> None:
    """Makes torch.load and safetensors work on forecast tensors."""
    _install_loading(patches)
    when_imported(patches, "safetensors.torch", lambda module: _patch_safetensors(patches, module))


def _install_loading(patches: Patches) -> None:
    """torch.load to a GPU: read to the CPU, then copied as to a GPU."""
    homes: dict[int, torch.device] = {}  # of what is being read, where the script wants storages

    def move(storage: Any, device: Any = None, *args: Any, **kwargs: Any) -> Any:
        """UntypedStorage.to and .cuda; what is not read just now gets a storage of a tensor."""
        home = torch.device("cuda" if device is None else device)
        if home.type != "cuda":
            return original_move(storage, device=home)
        if is_reading:
            homes[storage._cdata] = home
            return storage
        return torch.empty(storage.size(), dtype=torch.uint8, device=home).untyped_storage()

    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        homes.clear()

        def to_cpu(storage: Any, location: str) -> Any:
            if callable(map_location):
                return map_location(storage, location)
            home = torch.device(_home_of(location, map_location))
            if home.type == "cuda":
                homes[storage._cdata] = home
                return storage
            return None if map_location is None else original_restore(storage, str(home))

        def to_home(tensor: torch.Tensor) -> torch.Tensor:
            home = homes.get(tensor.untyped_storage()._cdata)
            return tensor if home is None else tensor.to(home)

        original_restore: Any = torch.serialization.default_restore_location
        is_reading.append(True)
        try:
            loaded = original(f, to_cpu, *args, **kwargs)
        finally:
            is_reading.clear()
        if not homes:
            return loaded
        return torch.utils._pytree.tree_map_only(
            (torch.Tensor, torch.nn.Module), lambda found: _moved(found, to_home), loaded
        )

    is_reading: list[bool] = []
    storages: Any = torch.storage.UntypedStorage
    original_move = storages.to
    for name in ("to", "cuda"):
        patches.set(storages, name, lambda self, *args, **kwargs: move(self, *args, **kwargs))
    original = patches.replace_code(torch.serialization, "load", load)

    def rebuild_parameter(data: torch.Tensor, *args: Any) -> Any:
        """A parameter is where its data goes; made on the CPU it would lose them first."""
        home = homes.get(data.untyped_storage()._cdata) if is_reading else None
        return original_rebuild(data if home is None else data.to(home), *args)

    original_rebuild = patches.replace_code(torch._utils, "_rebuild_parameter", rebuild_parameter)


def _moved(found: Any, to_home: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    return to_home(found) if isinstance(found, torch.Tensor) else found._apply(to_home)


def _home_of(location: str, map_location: Any) -> Any:
    """Where the script wants what was saved at `location`."""
    if map_location is None:
        return location
    if isinstance(map_location, dict):
        return map_location.get(location, location)
    return map_location


# -- safetensors ---------------------------------------------------------------------------------

#: Names of dtypes in a safetensors header (its format's documentation).
_DTYPE_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.complex64: "C64",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8",
    torch.bool: "BOOL",
}  # fmt: skip

#: A safetensors header is padded to whole words of this many bytes.
_HEADER_ALIGNMENT = 8


def _patch_safetensors(patches: Patches, module: Any) -> None:
    def save_file(tensors: Mapping[str, torch.Tensor], filename: Any, metadata: Any = None) -> None:
        if any(isinstance(tensor, ForecastTensor) for tensor in tensors.values()):
            _write_without_data(tensors, filename, metadata)
        else:
            original_save(tensors, filename, metadata)

    def load_file(filename: Any, device: Any = "cpu", **kwargs: Any) -> Any:
        loaded = original_load(filename, "cpu", **kwargs)
        if torch.device(device).type == "cpu":
            return loaded
        return {name: tensor.to(device) for name, tensor in loaded.items()}

    original_save = patches.replace_code(module, "save_file", save_file)
    original_load = patches.replace_code(module, "load_file", load_file)


def _write_without_data(
    tensors: Mapping[str, torch.Tensor], filename: Any, metadata: Mapping[str, str] | None
) -> None:
    """A file of the right size that takes no space on the disk: a header, and zeros never written.

    Tensors that have data keep it.
    """
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _HEADER_ALIGNMENT)
    with open(filename, "wb") as file:  # noqa: PTH123  (may be bytes)
        file.write(struct.pack("<Q", len(text)) + text)
        body = file.tell()
        file.truncate(body + end)
        for name, tensor in tensors.items():
            if tensor.device.type == "cpu":
                file.seek(body + header[name]["data_offsets"][0])
                file.write(bytes(tensor.detach().contiguous().view(torch.uint8).numpy()))
