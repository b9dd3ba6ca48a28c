"""Libraries that write and read files from C or Rust, by name: they meet the overlay too."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from neusight.fake_cuda.import_hooks import when_imported
from neusight.fake_cuda.overlay.overlay import Overlay
from neusight.fake_cuda.patching import Patches

__all__ = ["install_writers"]


def install_writers(patches: Patches, overlay: Overlay) -> None:
    """What these libraries would write over a file of the user's goes to a private copy."""
    for name, patch in _BY_MODULE.items():
        when_imported(patches, name, functools.partial(_apply, patch, patches, overlay))


def _apply(
    patch: Callable[[Patches, Overlay, Any], None], patches: Patches, overlay: Overlay, module: Any
) -> None:
    patch(patches, overlay, module)


def _is_path(value: object) -> bool:
    return isinstance(value, (str, bytes, os.PathLike))


def _replace_kept(patches: Patches, name: str, original: object, new: object) -> None:
    """Exchanges what modules keep under the name under which it was made."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})
        if names.get(name) is original:
            patches.set(module, name, new)


def _writing(overlay: Overlay, original: Callable[..., Any], position: int) -> Callable[..., Any]:
    """`original`, whose argument at `position` is a path to write."""

    @functools.wraps(original)
    def write(*args: Any, **kwargs: Any) -> Any:
        if not overlay.is_open or len(args) <= position or not _is_path(args[position]):
            return original(*args, **kwargs)
        place, written = overlay.writer_place(args[position])
        result = original(*args[:position], place, *args[position + 1 :], **kwargs)
        written()
        return result

    return write


def _reading(overlay: Overlay, original: Callable[..., Any], position: int) -> Callable[..., Any]:
    """`original`, whose argument at `position` is a path to read."""

    @functools.wraps(original)
    def read(*args: Any, **kwargs: Any) -> Any:
        if overlay.is_open and len(args) > position and _is_path(args[position]):
            where = overlay.found(args[position])
            args = (*args[:position], where, *args[position + 1 :])
        return original(*args, **kwargs)

    return read


# -- torch ---------------------------------------------------------------------------------------


def _patch_torch(patches: Patches, overlay: Overlay, torch: Any) -> None:
    core = torch._C
    patches.set(core, "PyTorchFileWriter", _file_writer(overlay, core.PyTorchFileWriter))
    patches.set(core, "PyTorchFileReader", _file_reader(overlay, core.PyTorchFileReader))
    for name in ("save", "_save_for_mobile"):
        patches.set(core.ScriptModule, name, _writing(overlay, getattr(core.ScriptModule, name), 1))
    patches.set(core, "import_ir_module", _reading(overlay, core.import_ir_module, 1))
    storage = torch.UntypedStorage
    patches.set(storage, "from_file", staticmethod(_mapping(overlay, storage.from_file)))
    patches.set(torch, "from_file", _mapping(overlay, torch.from_file))


def _mapping(overlay: Overlay, original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, which maps the file at its first argument into memory."""

    def map_file(filename: Any, shared: Any = False, *args: Any, **kwargs: Any) -> Any:
        if overlay.is_open and _is_path(filename):
            where = overlay.private_place if shared else overlay.found
            filename = where(filename)
        return original(os.fspath(filename), shared, *args, **kwargs)

    return map_file


def _file_writer(overlay: Overlay, original: Any) -> Any:
    class PyTorchFileWriter(original):  # type: ignore[misc]
        def __init__(self, where: Any, *args: Any, **kwargs: Any) -> None:
            self._written: Callable[[], None] = lambda: None
            if overlay.is_open and _is_path(where):
                where, self._written = overlay.writer_place(where)
            super().__init__(where, *args, **kwargs)

        def write_end_of_file(self) -> None:
            super().write_end_of_file()
            self._written()

    return PyTorchFileWriter


def _file_reader(overlay: Overlay, original: Any) -> Any:
    class PyTorchFileReader(original):  # type: ignore[misc]
        def __init__(self, where: Any, *args: Any, **kwargs: Any) -> None:
            if overlay.is_open and _is_path(where):
                where = os.fsdecode(overlay.found(where))
            super().__init__(where, *args, **kwargs)

    return PyTorchFileReader


# -- safetensors ---------------------------------------------------------------------------------


def _patch_safetensors(patches: Patches, overlay: Overlay, module: Any) -> None:
    """Their functions in Rust; the tensors of a forecast are written in checkpoints.py."""
    serialize, opened = module.serialize_file, module.safe_open
    _replace_kept(patches, "serialize_file", serialize, _writing(overlay, serialize, 1))
    _replace_kept(patches, "safe_open", opened, _reading(overlay, opened, 0))


# -- sqlite --------------------------------------------------------------------------------------

#: What SQLite keeps beside a database that was not closed well, or is open elsewhere.
_BESIDE_A_DATABASE = ("-wal", "-journal")


def _patch_sqlite(patches: Patches, overlay: Overlay, module: Any) -> None:
    def connect(database: Any, *args: Any, **kwargs: Any) -> Any:
        if not overlay.is_open or not _is_path(database):
            return original(database, *args, **kwargs)
        text = os.fsdecode(database)
        is_uri = bool(kwargs.get("uri", args[6] if len(args) > 6 else False))
        if text in ("", ":memory:") or (is_uri and (":memory:" in text or "mode=memory" in text)):
            return original(database, *args, **kwargs)
        if not (is_uri and text.startswith("file:")):
            return original(_database_place(overlay, text), *args, **kwargs)
        path, mark, query = text.removeprefix("file:").partition("?")
        place = _database_place(overlay, unquote(path))
        return original(f"file:{place}{mark}{query}", *args, **kwargs)

    original = module.connect
    connect = functools.wraps(original)(connect)
    _replace_kept(patches, "connect", original, connect)


def _database_place(overlay: Overlay, path: str) -> str:
    if not overlay.is_folder_of(path):
        return path  # SQLite says so itself
    for ending in _BESIDE_A_DATABASE:
        if overlay.exists(path + ending):
            overlay.private_place(path + ending)
    return overlay.private_place(path)


# -- Arrow ---------------------------------------------------------------------------------------


def _patch_arrow(patches: Patches, overlay: Overlay, module: Any) -> None:
    original = module.OSFile

    def open_file(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if not overlay.is_open or not _is_path(path):
            return original(path, mode, *args, **kwargs)
        if mode in ("r", "rb"):
            return original(os.fsdecode(overlay.found(path)), mode, *args, **kwargs)
        binary = mode if "b" in mode else f"{mode}b"
        return module.PythonFile(open(path, binary), mode=mode.replace("b", ""))

    patches.set(module, "OSFile", open_file)


def _patch_parquet(patches: Patches, overlay: Overlay, module: Any) -> None:
    writer = module.ParquetWriter
    original, resolve = writer.__init__, module._resolve_filesystem_and_path

    @functools.wraps(original)
    def __init__(self: Any, where: Any, *args: Any, **kwargs: Any) -> None:
        named = overlay.is_open and _is_path(where) and _is_on_disk(_filesystem(args, kwargs))
        opened = open(os.fspath(where), "wb") if named else None  # noqa: SIM115
        original(self, opened or where, *args, **kwargs)
        if opened is not None:
            self.file_handle = opened  # closed with the writer

    @functools.wraps(resolve)
    def found(where: Any, filesystem: Any = None, *args: Any, **kwargs: Any) -> Any:
        if overlay.is_open and _is_path(where) and _is_on_disk(filesystem):
            where = overlay.found(where)
        return resolve(where, filesystem, *args, **kwargs)

    patches.set(writer, "__init__", __init__)
    patches.set(module, "_resolve_filesystem_and_path", found)


def _filesystem(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # ParquetWriter(where, schema, filesystem=None, …)
    return args[1] if len(args) > 1 else kwargs.get("filesystem")


def _is_on_disk(filesystem: Any) -> bool:
    return filesystem is None or type(filesystem).__name__ == "LocalFileSystem"


def _patch_arrow_function(
    name: str, position: int, patches: Patches, overlay: Overlay, module: Any
) -> None:
    """A function of Arrow that writes one file; it takes an open one as well."""
    original = getattr(module, name)

    @functools.wraps(original)
    def write(*args: Any, **kwargs: Any) -> Any:
        if not overlay.is_open or len(args) <= position or not _is_path(args[position]):
            return original(*args, **kwargs)
        with open(os.fspath(args[position]), "wb") as file:
            return original(*args[:position], file, *args[position + 1 :], **kwargs)

    patches.set(module, name, write)


_BY_MODULE: dict[str, Callable[[Patches, Overlay, Any], None]] = {
    "torch": _patch_torch,
    "safetensors": _patch_safetensors,
    "sqlite3": _patch_sqlite,
    "pyarrow": _patch_arrow,
    "pyarrow.parquet.core": _patch_parquet,
    "pyarrow.feather": functools.partial(_patch_arrow_function, "write_feather", 1),
    "pyarrow.csv": functools.partial(_patch_arrow_function, "write_csv", 1),
}
