"""Checkpoints of tensors without data go to a temporary place, from which they load back."""

# Paths are strings here: pathlib asks os.stat, which asks us.
# ruff: noqa: PTH100, PTH103, PTH107, PTH110, PTH113, PTH119, PTH120, PTH202, PTH208

from __future__ import annotations

import builtins
import io
import os
import shutil
import tempfile
import weakref
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from neusight.fake_cuda.packages import when_imported
from neusight.fake_cuda.patching import Patches
from neusight.fake_cuda.tensor import ForecastTensor

if TYPE_CHECKING:
    from neusight.recorder import Recorder

__all__ = ["install_checkpoints"]


def install_checkpoints(patches: Patches, recorder: Recorder, *, allow_writes: bool) -> None:
    """Makes torch.save and torch.load work on forecast tensors and leaves the user's files alone.

    What torch.save, safetensors and transformers write goes elsewhere, as does what is written in
    binary over a file that was there before; reading and moving these paths follows. With
    `allow_writes` the script writes where it says.
    """
    store = _Store(recorder)
    _install_loading(patches, store)
    if allow_writes:
        return
    patches.on_restore(store.remove)
    recorder.on_pickled = store.forecast_pickled
    _install_saving(patches, store)
    _install_files(patches, store)
    when_imported(
        patches, "safetensors.torch", lambda module: _patch_safetensors(patches, module, store)
    )
    when_imported(
        patches,
        "transformers.modeling_utils",
        lambda module: _patch_transformers(patches, module, store),
    )


def _install_saving(patches: Patches, store: _Store) -> None:
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        return original(obj, store.elsewhere(f), *args, **kwargs)

    original = patches.answer(torch.serialization, "save", save)


def _install_loading(patches: Patches, store: _Store) -> None:
    """torch.load to a GPU: read to the CPU, then copied as to a GPU."""

    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        f = store.found(f)
        if callable(map_location):
            return original(f, map_location, *args, **kwargs)
        homes: dict[int, torch.device] = {}

        def to_cpu(storage: Any, location: str) -> Any:
            home = torch.device(_home_of(location, map_location))
            if home.type == "cuda":
                homes[storage._cdata] = home
                return storage
            return None if map_location is None else original_restore(storage, str(home))

        def to_home(tensor: torch.Tensor) -> torch.Tensor:
            home = homes.get(tensor.untyped_storage()._cdata)
            return tensor if home is None else tensor.to(home)

        original_restore: Any = torch.serialization.default_restore_location
        loaded = original(f, to_cpu, *args, **kwargs)
        if not homes:
            return loaded
        return torch.utils._pytree.tree_map_only(torch.Tensor, to_home, loaded)

    original = patches.answer(torch.serialization, "load", load)


def _home_of(location: str, map_location: Any) -> Any:
    """Where the script wants what was saved at `location`."""
    if map_location is None:
        return location
    if isinstance(map_location, dict):
        return map_location.get(location, location)
    return map_location


def _install_files(patches: Patches, store: _Store) -> None:
    """What scripts do with files: open them, move them into place, ask for them, remove them."""
    original_remove, original_open = os.remove, builtins.open

    def open_file(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        opened = original_open(store.place_to_open(file, mode), mode, *args, **kwargs)
        store.opened(file, mode, opened)
        return opened

    def moving(original: Callable[..., None]) -> Callable[..., None]:
        def move(src: Any, dst: Any, *args: Any, **kwargs: Any) -> None:
            if not store.rename(src, dst):
                original(src, dst, *args, **kwargs)

        return move

    def remove(path: Any, *, dir_fd: int | None = None) -> None:
        if dir_fd is not None or not store.forget(path):
            original_remove(path, dir_fd=dir_fd)

    for owner in (builtins, io):
        patches.set(owner, "open", open_file)
    patches.set(os, "replace", moving(os.replace))
    patches.set(os, "rename", moving(os.rename))

    def looking(original: Callable[..., Any]) -> Callable[..., Any]:
        def look(path: Any = ".", *args: Any, dir_fd: int | None = None, **kwargs: Any) -> Any:
            if dir_fd is not None:
                return original(path, *args, dir_fd=dir_fd, **kwargs)
            return original(store.found(path), *args, **kwargs)

        return look

    for name in ("access", "chmod", "listdir", "lstat", "scandir", "stat", "utime"):
        patches.set(os, name, looking(getattr(os, name)))
    patches.set(os, "remove", remove)
    patches.set(os, "unlink", remove)
    _install_copies(patches, store)


def _install_copies(patches: Patches, store: _Store) -> None:
    def copyfile(src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
        if not store.is_elsewhere(src):
            return original_copyfile(src, dst, *args, **kwargs)
        original_copyfile(store.found(src), store.elsewhere(dst))
        return dst

    def unless_elsewhere(name: str) -> None:
        def copy(src: Any, dst: Any, *args: Any, **kwargs: Any) -> None:
            if not store.is_elsewhere(dst):
                original(src, dst, *args, **kwargs)

        original = patches.answer(shutil, name, copy)

    original_copyfile = patches.answer(shutil, "copyfile", copyfile)
    unless_elsewhere("copystat")
    unless_elsewhere("copymode")


def _patch_safetensors(patches: Patches, module: Any, store: _Store) -> None:
    def save_file(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> None:
        torch.save(dict(tensors), filename)

    def load_file(filename: Any, device: Any = "cpu", *args: Any, **kwargs: Any) -> Any:
        if store.is_elsewhere(filename):
            return torch.load(filename, device)
        return original_load(filename, device, *args, **kwargs)

    patches.answer(module, "save_file", save_file)
    original_load = patches.answer(module, "load_file", load_file)


def _patch_transformers(patches: Patches, module: Any, store: _Store) -> None:
    """Its own save_pretrained takes tensors without data for tied ones."""
    model_class = module.PreTrainedModel
    original = model_class.save_pretrained

    def save_pretrained(self: Any, save_directory: Any, *args: Any, **kwargs: Any) -> Any:
        if not any(isinstance(p, ForecastTensor) for p in self.parameters()):
            return original(self, save_directory, *args, **kwargs)
        folder = store.folder_elsewhere(save_directory)
        self.config.save_pretrained(folder)
        if self.can_generate():
            self.generation_config.save_pretrained(folder)
        torch.save(self.state_dict(), Path(save_directory) / "pytorch_model.bin")
        return None

    patches.set(model_class, "save_pretrained", save_pretrained)


def _is_checkpoint(path: str) -> bool:
    """Whether torch.save wrote the file: a zip archive with a pickle in it."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/data.pkl") for name in archive.namelist())


class _Store:
    """Which paths of the script are kept elsewhere, and where."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._root: Path | None = None
        self._places: dict[str, Path] = {}
        self._folders: dict[str, Path] = {}
        # Files that the script made in binary: those into which tensors without data were pickled
        # are not left behind.
        self._made: dict[str, weakref.ref[Any]] = {}
        self._invented: set[str] = set()
        self._pickled_in_memory = False
        self._told = False

    def _new_place(self, target: Any) -> Path:
        if self._root is None:
            self._root = Path(tempfile.mkdtemp(prefix="neusight-"))
        self._tell(target)
        number = len(os.listdir(self._root))
        return self._root / f"{number}-{os.path.basename(target)}"

    def _tell(self, target: Any) -> None:
        if not self._told:
            self._told = True
            self._recorder.warn_once(
                "checkpoints were written to a temporary place, not over your files "
                f"(first: {target}); --allow-writes writes them where the script says"
            )

    def elsewhere(self, target: Any) -> Any:
        """Where to write instead of `target`; an open file stays what it is."""
        if not isinstance(target, (str, os.PathLike)):
            return target
        key = os.path.abspath(target)
        if self._is_ours(key):
            return target
        within = self._within_folder(key)
        if within is not None:
            os.makedirs(os.path.dirname(within), exist_ok=True)
            return within
        if key not in self._places:
            place = self._places[key] = self._new_place(target)
            place.touch()
        return self._places[key]

    def _is_ours(self, key: str) -> bool:
        return self._root is not None and key.startswith(f"{self._root}{os.sep}")

    def folder_elsewhere(self, target: Any) -> Path:
        """A folder to write into instead of `target`."""
        key = os.path.abspath(target)
        if key not in self._folders:
            folder = self._folders[key] = self._new_place(target)
            folder.mkdir()
        return self._folders[key]

    def _within_folder(self, key: str) -> Path | None:
        above = [f for f in self._folders if key == f or key.startswith(f + os.sep)]
        if not above:
            return None
        folder = max(above, key=len)
        return self._folders[folder] / key[len(folder) + 1 :]

    def found(self, source: Any) -> Any:
        """The place that was written instead of `source`, if it was."""
        if not isinstance(source, (str, os.PathLike)) or not (self._places or self._folders):
            return source
        key = os.path.abspath(source)
        place = self._places.get(key)
        if place is not None:
            return place
        within = self._within_folder(key)
        return within if within is not None and os.path.lexists(within) else source

    def is_elsewhere(self, path: Any) -> bool:
        """Whether something was written instead of `path`."""
        return self.found(path) is not path

    def place_to_open(self, file: Any, mode: str) -> Any:
        """The file to open: one that was there before is not written over in binary."""
        if not isinstance(file, (str, os.PathLike)):
            return file
        if "w" not in mode and "x" not in mode:
            return self.found(file)
        key = os.path.abspath(file)
        if self._within_folder(key) is not None:
            return self.elsewhere(file)
        if self._is_ours(key):
            return file
        # What tempfile made is there and empty: nothing is lost.
        is_own = key in self._made or not os.path.isfile(file) or os.path.getsize(file) == 0
        return file if is_own or "b" not in mode else self.elsewhere(file)

    def opened(self, file: Any, mode: str, opened: Any) -> None:
        """Remembers a new file."""
        if "b" in mode and ("w" in mode or "x" in mode) and isinstance(file, (str, os.PathLike)):
            key = os.path.abspath(file)
            if key not in self._places:
                self._made[key] = weakref.ref(opened)

    def forecast_pickled(self) -> None:
        """A tensor without data is being written into one of the files that are open now."""
        files = {key: reference() for key, reference in self._made.items()}
        into = {key for key, file in files.items() if file is not None and not file.closed}
        self._invented |= into
        self._pickled_in_memory |= not into

    def _is_invented(self, key: str) -> bool:
        """Whether tensors without data are in the file; if they were pickled into memory before,
        a checkpoint is taken to hold them."""
        return key in self._invented or (self._pickled_in_memory and _is_checkpoint(key))

    def rename(self, source: Any, target: Any) -> bool:
        """Moves what is kept elsewhere; False if nothing is."""
        if not isinstance(source, (str, os.PathLike)):
            return False
        key, target_key = os.path.abspath(source), os.path.abspath(target)
        if key in self._places:
            self._places[target_key] = self._places.pop(key)
            return True
        if key in self._folders:
            self._folders[target_key] = self._folders.pop(key)
            return True
        if key not in self._made:
            return False
        if not self._is_invented(key) and (target_key in self._made or not os.path.isfile(target)):
            self._made[target_key] = self._made.pop(key)
            return False
        place = self._places[target_key] = self._new_place(target)
        shutil.copyfile(source, place)
        os.remove(source)
        return True

    def forget(self, path: Any) -> bool:
        """Removes what was written instead of `path`; False if nothing was."""
        if not isinstance(path, (str, os.PathLike)):
            return False
        key = os.path.abspath(path)
        self._made.pop(key, None)
        self._invented.discard(key)
        return self._places.pop(key, None) is not None

    def remove(self) -> None:
        """Deletes the temporary place, and files that hold tensors without data."""
        self._places.clear()
        self._folders.clear()
        for key in self._made:
            if os.path.exists(key) and self._is_invented(key):
                self._tell(key)
                os.remove(key)
        if self._root is not None:
            shutil.rmtree(self._root, ignore_errors=True)
            self._root = None
