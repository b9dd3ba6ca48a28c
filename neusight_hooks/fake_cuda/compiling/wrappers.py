"""The modules that Inductor writes: text that describes all kernels, loaded from memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import count
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

from torch._guards import CompileContext

from neusight.fake_cuda.compiling.fused_kernel import FusedKernel, described, kernel_of
from neusight.fake_cuda.compiling.launching import KernelLauncher
from neusight.fake_cuda.compiling.origins import module_of
from neusight.fake_cuda.patching import Patches
from neusight.fake_cuda.user_kernels import UserKernel
from neusight.recording.recorder import Recorder
from neusight.recording.recording import COMPILED_CODE
from neusight.recording.tensor import ForecastMode

#: What a wrapper calls before each kernel, with the module that the kernel belongs to.
_ENTER = "neusight_enter_module"

#: How the last line of a wrapper's text begins, which says what Inductor knew of it.
_SAYS = "# neusight "


class Wrapper(NamedTuple):
    """What is known of a module that Inductor wrote: of `COMPILED_CODE` what it is, its
    kernels, what compiling it asked of the GPU, with the answers, and what the summary warns of."""

    code: str
    kernels: Mapping[str, FusedKernel]
    queries: Mapping[str, object] = MappingProxyType({})
    warnings: tuple[str, ...] = ()

    def line(self) -> str:
        """The line of text that says it.

        >>> Wrapper("CompiledFunction", {}).line()
        '# neusight {"code": "CompiledFunction", "kernels": [], "questions": {}, "warnings": []}'
        """
        document = {
            "code": self.code,
            "kernels": [kernel._asdict() for kernel in self.kernels.values()],
            "questions": dict(self.queries),
            "warnings": self.warnings,
        }
        return _SAYS + json.dumps(document)


def read_wrapper(text: str) -> Wrapper:
    """What the last line of a wrapper's text says; ValueError or KeyError if it does not."""
    _, _, line = text.rpartition(f"\n{_SAYS}")
    document = json.loads(line)
    kernels = [kernel_of(fields) for fields in document["kernels"]]
    named = {kernel.name: kernel for kernel in kernels}
    return Wrapper(document["code"], named, document["questions"], tuple(document["warnings"]))


class Wrappers:
    """Texts of wrappers by their keys; what is put there can be loaded.

    It also collects what is asked of the GPU, and what the summary is to warn of, while a graph is
    compiled: the text says it, since nothing of that happens where the graph is loaded.
    """

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self._queries: dict[str, object] = {}
        self._warnings: list[str] = []

    def begin(self) -> None:
        """Starts to collect for another graph."""
        self._queries.clear()
        self._warnings.clear()

    def wrapper(self, code: str, kernels: Mapping[str, FusedKernel]) -> Wrapper:
        """The wrapper of what is compiled, with what was collected since it began."""
        tracked = Wrapper(code, kernels, dict(self._queries), tuple(self._warnings))
        self.begin()
        return tracked

    def recording_queries(
        self, mode: ForecastMode, on_query: Callable[[str, object], None]
    ) -> Callable[[str, object], None]:
        """`on_query`, of which what is asked inside neusight is kept: where a graph is
        compiled."""

        def tracked(device_query: str, answer: object) -> None:
            if mode.is_inside:
                self._queries[device_query] = answer
            on_query(device_query, answer)

        return tracked

    def record_warnings(self, patches: Patches, recorder: Recorder) -> None:
        warn_once = recorder.warn_once

        def tracked(text: str) -> None:
            if recorder.mode.is_inside:
                self._warnings.append(text)
            warn_once(text)

        patches.set(recorder, "warn_once", tracked)


def install_wrappers(
    patches: Patches,
    recorder: Recorder,
    wrappers: Wrappers,
    on_query: Callable[[str, object], None],
) -> None:
    """Each kernel is described while it is written, and becomes a launcher where its wrapper is
    loaded; what compiling it asked and warned of is asked and warned of then, too."""
    wrappers.record_warnings(patches, recorder)
    _install_writing(patches, recorder, wrappers)
    _install_loading(patches, recorder, wrappers, on_query)


def _install_writing(patches: Patches, recorder: Recorder, wrappers: Wrappers) -> None:
    from torch._inductor.codecache import PyCodeCache, code_hash
    from torch._inductor.codegen.triton import TritonScheduling
    from torch._inductor.compile_fx import _InProcessFxCompile
    from torch._inductor.scheduler import Scheduler
    from torch._inductor.virtualized import V

    define: Callable[..., str] = TritonScheduling.define_kernel
    enter_context: Callable[..., None] = Scheduler.enter_context
    compile_graph: Callable[..., Any] = _InProcessFxCompile.codegen_and_compile
    written: dict[str, FusedKernel] = {}
    numbers = count(1)

    def codegen_and_compile(
        self: Any, gm: Any, example_inputs: Any, inputs_to_check: Any, graph_kwargs: Any
    ) -> Any:
        if graph_kwargs.get("is_backward"):  # compiled by itself, perhaps after other graphs
            wrappers.begin()
        words = f"compiling graph {next(numbers)}, {len(gm.graph.nodes):,} nodes"
        with recorder.while_doing(words):
            return compile_graph(self, gm, example_inputs, inputs_to_check, graph_kwargs)

    def define_kernel(self: Any, src_code: str, node_schedule: Any, kernel: Any) -> str:
        name = define(self, src_code, node_schedule, kernel)
        written[name] = described(name, src_code, node_schedule or (), kernel)
        return name

    def enter(self: Any, node: Any) -> None:
        enter_context(self, node)
        wrapper: Any = V.graph.wrapper_code
        wrapper.writeline(f"{_ENTER}({module_of([node])!r})")

    def write(cls: Any, source_code: str, extra: str = "") -> tuple[str, str]:
        kernels = {name: kernel for name, kernel in written.items() if name in source_code}
        written.clear()
        text = f"{source_code}\n{wrappers.wrapper(_code_of(V.graph), kernels).line()}"
        key = code_hash(text, extra)
        wrappers.texts[key] = text
        return key, ""  # no file: Inductor then reads none back

    patches.set(_InProcessFxCompile, "codegen_and_compile", codegen_and_compile)
    patches.set(TritonScheduling, "define_kernel", define_kernel)
    patches.set(Scheduler, "enter_context", enter)
    patches.set(PyCodeCache, "write", classmethod(write))


def _install_loading(
    patches: Patches,
    recorder: Recorder,
    wrappers: Wrappers,
    on_query: Callable[[str, object], None],
) -> None:
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.codecache import PyCodeCache

    kernels: dict[str, FusedKernel] = {}  # of the wrapper that is being loaded

    def triton(
        self: Any, name: str, source: str, device_str: str = "cuda"
    ) -> KernelLauncher | UserKernel:
        if name in kernels:
            return KernelLauncher(recorder, kernels[name])
        return UserKernel(recorder, name, source)

    def load(
        cls: Any, /, key: str, path: str, linemap: Any = None, attrs: Any = None, **kwargs: Any
    ) -> ModuleType:
        text = wrappers.texts[key]
        wrapper = read_wrapper(text)
        for device_query, answer in wrapper.queries.items():
            on_query(device_query, answer)
        for warning in wrapper.warnings:
            recorder.warn_once(warning)
        kernels.clear()
        kernels.update(wrapper.kernels)
        module = ModuleType(f"neusight.compiled.{key}")
        module.__file__ = f"<compiled {key}>"
        vars(module)[_ENTER] = recorder.attribution.enter_compiled
        exec(compile(text, module.__file__, "exec"), vars(module))
        vars(module).update(attrs or {})
        module.call = _whole_call(recorder, module.call, wrapper.code)  # type: ignore[attr-defined]
        return module

    patches.set(AsyncCompile, "triton", triton)
    patches.set(AsyncCompile, "wait", lambda self, scope: None)
    patches.set(PyCodeCache, "load_by_key_path", classmethod(load))


def _code_of(graph: Any) -> str:
    """Of `COMPILED_CODE` what the graph is."""
    inference, forward, backward = COMPILED_CODE
    if getattr(graph, "is_backward", False):
        return backward
    return inference if getattr(graph, "is_inference", False) else forward


def _whole_call(recorder: Recorder, call: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The call of a wrapper, marked; after it no compiled module runs any more."""
    frame_id = str(CompileContext.current_compile_id() or "")

    def run(inputs: Any) -> Any:
        detail = f"{len(inputs)} {frame_id}".rstrip()
        recorder.tape.mark("compiled_begin", name, detail)
        try:
            return call(inputs)
        finally:
            recorder.attribution.enter_compiled("")
            recorder.tape.mark("compiled_end", name, detail)

    return run
