"""The modules that Inductor writes: text that says all of its kernels, loaded from memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from torch._guards import CompileContext

from neusight.fake_cuda.compiling.fused_kernel import FusedKernel, described, kernel_of
from neusight.fake_cuda.compiling.launching import KernelLauncher
from neusight.fake_cuda.compiling.origins import module_of
from neusight.fake_cuda.patching import Patches
from neusight.recording.recording import COMPILED_CODE

if TYPE_CHECKING:
    from neusight.recording.recorder import Recorder
    from neusight.recording.tensor import ForecastMode

__all__ = ["Wrapper", "Wrappers", "install_wrappers", "read_wrapper"]

#: What a wrapper calls before each kernel, with the module that the kernel belongs to.
_ENTER = "neusight_enter_module"

#: How the last line of a wrapper's text begins, which says what Inductor knew of it.
_SAYS = "# neusight "


class Wrapper(NamedTuple):
    """What is known of a module that Inductor wrote: of `COMPILED_CODE` what it is, its
    kernels, and what compiling it asked of the GPU, with the answers."""

    code: str
    kernels: Mapping[str, FusedKernel]
    questions: Mapping[str, str]

    def line(self) -> str:
        """The line of text that says it.

        >>> Wrapper("CompiledFunction", {}, {}).line()
        '# neusight {"code": "CompiledFunction", "kernels": [], "questions": {}}'
        """
        kernels = [kernel._asdict() for kernel in self.kernels.values()]
        said = {"code": self.code, "kernels": kernels, "questions": dict(self.questions)}
        return _SAYS + json.dumps(said)


def read_wrapper(text: str) -> Wrapper:
    """What the last line of a wrapper's text says; ValueError or KeyError if it does not."""
    _, _, line = text.rpartition(f"\n{_SAYS}")
    said = json.loads(line)
    kernels = [kernel_of(fields) for fields in said["kernels"]]
    named = {kernel.name: kernel for kernel in kernels}
    return Wrapper(said["code"], named, said["questions"])


class Wrappers:
    """Texts of wrappers by their keys; what is put there can be loaded. `questions` are those that
    were asked while a graph is compiled, until its wrapper is written."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.questions: dict[str, str] = {}

    def hearing(
        self, mode: ForecastMode, asked: Callable[[str, str], None]
    ) -> Callable[[str, str], None]:
        """`asked`, of which what is asked inside neusight is kept: while a graph is compiled."""

        def heard(question: str, answer: str) -> None:
            if mode.is_inside:
                self.questions[question] = answer
            asked(question, answer)

        return heard


def install_wrappers(
    patches: Patches, recorder: Recorder, wrappers: Wrappers, asked: Callable[[str, str], None]
) -> None:
    """Each kernel is described while it is written, and becomes a launcher where its wrapper is
    loaded; what compiling it asked of the GPU is asked then, too."""
    _install_writing(patches, wrappers)
    _install_loading(patches, recorder, wrappers, asked)


def _install_writing(patches: Patches, wrappers: Wrappers) -> None:
    from torch._inductor.codecache import PyCodeCache, code_hash
    from torch._inductor.codegen.triton import TritonScheduling
    from torch._inductor.scheduler import Scheduler
    from torch._inductor.virtualized import V

    define: Callable[..., str] = TritonScheduling.define_kernel
    enter_context: Callable[..., None] = Scheduler.enter_context
    written: dict[str, FusedKernel] = {}

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
        wrapper = Wrapper(_code_of(V.graph), kernels, dict(wrappers.questions))
        wrappers.questions.clear()
        text = f"{source_code}\n{wrapper.line()}"
        key = code_hash(text, extra)
        wrappers.texts[key] = text
        return key, ""  # no file: Inductor then reads none back

    patches.set(TritonScheduling, "define_kernel", define_kernel)
    patches.set(Scheduler, "enter_context", enter)
    patches.set(PyCodeCache, "write", classmethod(write))


def _install_loading(
    patches: Patches, recorder: Recorder, wrappers: Wrappers, asked: Callable[[str, str], None]
) -> None:
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.codecache import PyCodeCache

    kernels: dict[str, FusedKernel] = {}  # of the wrapper that is being loaded

    def triton(self: Any, name: str, source: str, device_str: str = "cuda") -> KernelLauncher:
        return KernelLauncher(recorder, kernels.get(name) or FusedKernel(name, "pointwise"))

    def load(
        cls: Any, /, key: str, path: str, linemap: Any = None, attrs: Any = None, **kwargs: Any
    ) -> ModuleType:
        text = wrappers.texts[key]
        wrapper = read_wrapper(text)
        for question, answer in wrapper.questions.items():
            asked(question, answer)
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
