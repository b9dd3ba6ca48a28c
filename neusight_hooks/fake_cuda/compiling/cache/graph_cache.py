"""Graphs that were compiled before are loaded: torch's own two caches, on entries of ours.

torch keeps what AOTAutograd and Inductor made of a graph under a key of all that decided it, with
guards on its symbols. Two things are ours: keys also hold what only a forecast's code depends on,
and the wrappers' text says what its kernels touch (`wrappers.py`), so a graph that is loaded
launches what it launched when it was compiled.
"""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from neusight.compatibility.torch_internals import missing
from neusight.fake_cuda.compiling.cache.entries import Entries
from neusight.fake_cuda.compiling.cache.keys import (
    aliases,
    calls_only_torch,
    digest,
    facts_of,
    settings,
)
from neusight.fake_cuda.compiling.choices.tuning import TUNING
from neusight.fake_cuda.compiling.rules.settings import hold_settings
from neusight.fake_cuda.compiling.wrappers import Wrappers, read_wrapper
from neusight.fake_cuda.core import build_key
from neusight.fake_cuda.patching import Patches
from neusight.predictors.files import user_cache_folder
from neusight.predictors.gpu import GPU
from neusight.recording.tensor import ForecastTensor

#: With the value 0, graphs are compiled in each process and none is kept.
CACHE_VARIABLE = "NEUSIGHT_COMPILE_CACHE"

#: The others of torch's caches stay off (rules/settings.py).
_SETTINGS = {
    "torch._inductor.config": {"fx_graph_cache": True},
    "torch._functorch.config": {"enable_autograd_cache": True},
}

#: Loggers that would report graphs that cannot be kept, which needs no warning.
_LOGGERS = ("torch._inductor.codecache", "torch._functorch._aot_autograd.autograd_cache")


def cache_folder() -> Path | None:
    """Where graphs are kept, as the environment says it now; None where none are to be."""
    return None if os.environ.get(CACHE_VARIABLE) == "0" else user_cache_folder() / "compiled"


def install_graph_cache(
    patches: Patches,
    entries: Entries,
    wrappers: Wrappers,
    *,
    gpu: GPU,
    target: tuple[object, ...],
    holds: Callable[[Mapping[str, object]], bool],
) -> None:
    """From here on graphs that were compiled before for GPUs that answer `target`, as `gpu` does,
    are loaded, where `holds` says that what compiling them asked is answered as it was then."""
    if missing("compile cache"):
        return
    _install_settings(patches)
    _install_entries(patches, entries, holds)
    _install_texts(patches, wrappers)
    _install_keys(patches, wrappers, gpu, target)


def _install_settings(patches: Patches) -> None:
    hold_settings(patches, _SETTINGS)
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        patches.undo.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.ERROR)


def _install_entries(
    patches: Patches, entries: Entries, holds: Callable[[Mapping[str, object]], bool]
) -> None:
    from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache
    from torch._inductor.codecache import FxGraphCache, GuardedCache

    def candidates(
        cls: Any, local: bool, remote_cache: Any, key: str
    ) -> Iterator[tuple[Any, bytes, bool]]:
        for content in entries.read(key):
            try:
                with _disable_current_modes():
                    graph = pickle.loads(content)
            except Exception:  # a class of the program's, which is another one by now
                continue
            text = getattr(graph, "source_code", None)  # what AOTAutograd made has none
            if text is None or holds(read_wrapper(text).queries):
                yield graph, content, True

    patches.set(GuardedCache, "iterate_over_candidates", classmethod(candidates))
    patches.set(FxGraphCache, "_write_to_local_cache", staticmethod(entries.write))
    patches.set(AOTAutogradCache, "_write_to_local_cache", staticmethod(entries.write))


def _install_texts(patches: Patches, wrappers: Wrappers) -> None:
    """The text of a wrapper goes with its graph, in place of a file."""
    from torch._inductor.codecache import FxGraphCache
    from torch._inductor.output_code import CompiledFxGraph

    save: Callable[..., None] = FxGraphCache._save_graph

    def save_graph(key: str, compiled_graph: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(compiled_graph, CompiledFxGraph):
            return  # its ops run one by one
        constants = compiled_graph.constants or {}
        if any(isinstance(value, ForecastTensor) for value in constants.values()):
            return  # it holds no data that could be kept
        compiled_graph.source_code = wrappers.texts[compiled_graph.cache_key]
        save(key, compiled_graph, *args, **kwargs)

    def write_to_disk(self: Any) -> str:
        wrappers.texts[self.cache_key] = self.source_code
        return ""

    patches.set(FxGraphCache, "_save_graph", staticmethod(save_graph))
    patches.set(CompiledFxGraph, "write_to_disk", write_to_disk)


def _install_keys(
    patches: Patches, wrappers: Wrappers, gpu: GPU, target: tuple[object, ...]
) -> None:
    from torch._functorch._aot_autograd import autograd_cache
    from torch._inductor import codecache
    from torch._inductor import config as inductor_config

    key_of_graph: Callable[..., tuple[str, list[str]]] = codecache.compiled_fx_graph_hash
    key_of_frame: Callable[..., tuple[str, list[str]]] = autograd_cache.autograd_cache_key
    name_in_key: Callable[[str, Any], str] = (
        autograd_cache.AOTAutogradCachePickler._format_global_for_cache_key
    )

    def with_ours(found: tuple[str, list[str]], graph: Any, *more: object) -> tuple[str, list[str]]:
        # The notes on these name lines, and what a GPU could save.
        is_tuned = any(getattr(inductor_config, name) for name in TUNING)
        reported = (gpu,) if is_tuned else ()
        facts = facts_of(graph, with_lines=is_tuned or inductor_config.triton.cudagraphs)
        return found[0] + digest([target, *reported, settings(), *more, *facts]), found[1]

    def graph_key(graph: Any, *args: Any) -> tuple[str, list[str]]:
        return with_ours(key_of_graph(graph, *args), graph)

    def frame_key(graph: Any, inputs: Any, *args: Any) -> tuple[str, list[str]]:
        wrappers.begin()
        module = getattr(graph, "gm", graph)
        if not calls_only_torch(module):
            raise autograd_cache.BypassAOTAutogradCache("an op of the program's own")
        return with_ours(key_of_frame(graph, inputs, *args), module, aliases(inputs))

    def name_of(name: str, value: Any) -> str:
        return name_in_key(name, torch.Tensor if value is ForecastTensor else value)

    patches.set(codecache, "compiled_fx_graph_hash", graph_key)
    patches.set(autograd_cache, "autograd_cache_key", frame_key)
    patches.set(
        autograd_cache.AOTAutogradCachePickler,
        "_format_global_for_cache_key",
        staticmethod(name_of),
    )
    # Lines for a log; each hashes part of the graph once more.
    patches.set(codecache.FxGraphCachePickler, "debug_lines", lambda self, details: [])
    # torch's own hash all of its sources, and asks for a device.
    patches.set(codecache, "torch_key", lambda: build_key().encode())
    patches.set(codecache.CacheBase, "get_system", staticmethod(lambda: {"hash": "forecast"}))
