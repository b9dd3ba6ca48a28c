"""torch and safetensors, which write and read files from C++ and Rust: the overlay is asked."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from neusight.fake_cuda.import_hooks import when_imported
from neusight.fake_cuda.overlay.overlay import Overlay
from neusight.fake_cuda.patching import Patches


def install_writers(patches: Patches, overlay: Overlay) -> None:
    """What these libraries would write over a file of the user's goes to a private copy."""
    for name, patch in (("torch", _patch_torch), ("safetensors", _patch_safetensors)):
        when_imported(patches, name, functools.partial(patch, patches, overlay))


def _is_path(value: object) -> bool:
    return isinstance(value, (str, bytes, os.PathLike))


def _at_place(
    overlay: Overlay, original: Callable[..., Any], position: int, *, writes: bool
) -> Callable[..., Any]:
    """`original`, whose argument at `position` is a path, with the place where that lies."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not overlay.is_open or len(args) <= position or not _is_path(args[position]):
            return original(*args, **kwargs)
        place = (overlay.library_place if writes else overlay.found)(args[position])
        result = original(*args[:position], place, *args[position + 1 :], **kwargs)
        if writes:
            overlay.record_written(place)
        return result

    return call


# -- torch ---------------------------------------------------------------------------------------


def _patch_torch(patches: Patches, overlay: Overlay, torch: Any) -> None:
    core = torch._C
    for name, place_of in (
        ("PyTorchFileWriter", overlay.library_place),
        ("PyTorchFileReader", overlay.found),
    ):
        patches.set(core, name, _file_class(overlay, getattr(core, name), place_of))
    for name in ("save", "_save_for_mobile"):
        saving = _at_place(overlay, getattr(core.ScriptModule, name), 1, writes=True)
        patches.set(core.ScriptModule, name, saving)
    loading = _at_place(overlay, core.import_ir_module, 1, writes=False)
    patches.set(core, "import_ir_module", loading)
    storage = torch.UntypedStorage
    patches.set(storage, "from_file", staticmethod(_mapping(overlay, storage.from_file)))
    patches.set(torch, "from_file", _mapping(overlay, torch.from_file))


def _mapping(overlay: Overlay, original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, which maps the file at its first argument into memory."""

    def map_file(filename: Any, shared: Any = False, *args: Any, **kwargs: Any) -> Any:
        if overlay.is_open and _is_path(filename):
            if shared:
                filename = overlay.library_place(filename, empty=False)
            else:
                filename = overlay.found(filename)
        return original(os.fspath(filename), shared, *args, **kwargs)

    return map_file


def _file_class(overlay: Overlay, original: Any, place_of: Callable[..., Any]) -> Any:
    """A class of torch's core whose objects open a file: the one at the place of a path."""

    class File(original):  # type: ignore[misc]
        def __init__(self, where: Any, *args: Any, **kwargs: Any) -> None:
            if overlay.is_open and _is_path(where):
                where = os.fsdecode(place_of(where))
            super().__init__(where, *args, **kwargs)

    File.__name__ = File.__qualname__ = original.__name__
    return File


# -- safetensors ---------------------------------------------------------------------------------


def _patch_safetensors(patches: Patches, overlay: Overlay, module: Any) -> None:
    """Their functions in Rust; the tensors of a forecast are written in checkpoints.py."""
    for name, position, writes in (("serialize_file", 1, True), ("safe_open", 0, False)):
        original = getattr(module, name)
        replacement = _at_place(overlay, original, position, writes=writes)
        for holder in list(sys.modules.values()):
            if getattr(holder, "__dict__", {}).get(name) is original:
                patches.set(holder, name, replacement)
