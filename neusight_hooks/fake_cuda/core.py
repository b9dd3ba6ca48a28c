"""Torch's C++ core made to accept `cuda` tensors without data, on a CPU build or a CUDA build.

Two things are missing in a CPU build (and one of them in a CUDA build without a GPU): the device
guard, a table slot in libc10, and the answers of the CUDA hooks, a C++ object whose virtual table
is exchanged for a patched copy while a forecast is open. Slot numbers are read from the headers in
the installed wheel. A wrong slot would crash the process, so all of it is tried in a subprocess
first, once for each torch build (`self_check`).
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import operator
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from neusight._version import __version__
from neusight.compatibility.releases import refuse_platform, refuse_torch, remedy_for_torch
from neusight.predictors.errors import OptionError, SlowMachineError, UnsupportedTorchError
from neusight.predictors.files import json_value, read_bytes, user_cache_folder, write_atomically
from neusight.recording.dispatch.record_functions import CHECK_PROGRAM, is_known_header

#: Read before anything is patched: the facade answers torch.version.cuda for the target.
IS_CUDA_BUILD = torch.version.cuda is not None

#: Index of CUDA in c10::DeviceType, and the number of device types in 2.13 (c10/core/DeviceType.h).
_CUDA_DEVICE_TYPE = 1
_NUM_DEVICE_TYPES = 22

#: Slots of a stub device guard: more than c10/core/impl/DeviceGuardImplInterface.h has.
_GUARD_SLOTS = 64

#: Words before the first slot of an Itanium C++ ABI virtual table: offset to top, type information.
_VTABLE_HEADER = 2

#: cuDNN that the core claims on a CPU build: that of torch 2.13's CUDA wheels. It decides about
#: batch norm and the memory format of convolutions; attention is chosen in attention_choice.py.
_CUDNN_VERSION = 92000

#: What each hook answers. A CUDA build has true hooks already and needs one answer only: patching
#: more there does harm (a wrong cuDNN version changes which attention is chosen).
_CPU_BUILD_ANSWERS: dict[str, int | float] = {
    "hasCUDA": 1,
    "isBuilt": 1,
    "isAvailable": 1,
    "deviceCount": 1,
    "getNumGPUs": 1,
    "hasPrimaryContext": 1,
    "hasCuDNN": 1,
    "compiledWithCuDNN": 1,
    "versionCuDNN": _CUDNN_VERSION,
    "versionRuntimeCuDNN": _CUDNN_VERSION,
    "supportsDilatedConvolutionWithCuDNN": 1,
    "supportsDepthwiseConvolutionWithCuDNN": 1,
    "supportsBFloat16ConvolutionWithCuDNNv8": 1,
    "supportsBFloat16RNNWithCuDNN": 1,
    "batchnormMinEpsilonCuDNN": 0.0,
    "hasCuBLASLt": 1,
}
_CUDA_BUILD_ANSWERS: dict[str, int | float] = {"hasPrimaryContext": 1}

_GUARD_TABLE = "_ZN3c104impl26device_guard_impl_registryE"
_GUARD_REGISTRAR = (
    "_ZN3c104impl24DeviceGuardImplRegistrarC1ENS_10DeviceTypeEPKNS0_24DeviceGuardImplInterfaceE"
)
_CUDA_HOOKS = "_ZN2at6detail12getCUDAHooksEv"
_REQUIRE_INIT = "_ZN5torch5utils24set_requires_device_initEN3c1010DeviceTypeEb"

#: What a self-check prints where all is well.
SELF_CHECK_PASSED = "neusight-core-ok"

#: Python would import modules from the folder that a check works in, which is everybody's.
_WITHOUT_FOLDER = "import sys\nsys.path[:] = [place for place in sys.path if place]\n"

_SELF_CHECK_PROGRAM = """
import torch
from contextlib import ExitStack
from neusight.fake_cuda.core import IS_CUDA_BUILD, _patch_core
from torch._subclasses.fake_tensor import FakeTensorMode
class Mode(FakeTensorMode):
    avoid_device_init = True
answers = torch.cuda.is_initialized, torch.cuda.current_device
with ExitStack() as undo:
    _patch_core(undo)
    torch.cuda.is_initialized = lambda: True
    torch.cuda.current_device = lambda: 0
    assert IS_CUDA_BUILD or torch._C._get_accelerator().type == "cuda"
    with Mode():
        x = torch.empty(4, 4, device="cuda", requires_grad=True)
        with torch.autograd.set_multithreading_enabled(False):
            (x @ x).sum().backward()
        assert x.grad.device.type == "cuda"
y = torch.ones(2, 2, requires_grad=True)
(y @ y).sum().backward()
torch.cuda.is_initialized, torch.cuda.current_device = answers
# A step of training: what else neusight stands on inside torch.
from neusight.fake_cuda import core
core.self_check = lambda: None
import neusight
with neusight.forecast_on("H100", allow_writes=True) as forecast:
    model = torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(4, 8, device="cuda")).sum().backward()
    optimizer.step()
assert forecast.kernels, "no kernel was recorded"
print("neusight-core-ok")
"""

#: Seconds after which the self-check counts as hanging. It takes 4 s on two free cores and passed
#: 180 s on two that eight test runs shared (2026-11-21), so five times that.
_SELF_CHECK_LIMIT_S = 900.0
#: Another limit, in seconds.
SELF_CHECK_LIMIT_VARIABLE = "NEUSIGHT_SELF_CHECK_SECONDS"

# A call of C: nothing interrupts it halfway.
_put: Callable[..., None] = operator.setitem

# The stub guard and the callbacks are called from C++ for as long as the process lives.
_keep_alive: list[object] = []


def _library(name: str) -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))


def _constant(value: int | float) -> int:
    """Address of a C function that ignores its arguments and returns `value`."""
    kind = ctypes.c_double if isinstance(value, float) else ctypes.c_ssize_t
    function = ctypes.CFUNCTYPE(kind, ctypes.c_void_p)(lambda _self: value)
    _keep_alive.append(function)
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address


def _register_stub_guard() -> None:
    """Registers a guard that answers 0 to all; torch then replaces it by its own fake guard."""
    zero = _constant(0)
    table = (ctypes.c_void_p * _GUARD_SLOTS)(*([zero] * _GUARD_SLOTS))
    guard = (ctypes.c_void_p * 2)(ctypes.addressof(table), 0)
    _keep_alive.extend([table, guard])
    registrar = _library("libc10.so")[_GUARD_REGISTRAR]
    registrar.argtypes = [ctypes.c_void_p, ctypes.c_byte, ctypes.c_void_p]
    registrar.restype = None
    this = ctypes.create_string_buffer(8)
    registrar(ctypes.addressof(this), _CUDA_DEVICE_TYPE, ctypes.addressof(guard))


def _enter_device_guard(undo: ExitStack) -> None:
    """A device guard for CUDA that touches no driver. It stays on a CPU build: no torch call there
    can determine, and tensors of the forecast may still be alive."""
    slot = (ctypes.c_void_p * _NUM_DEVICE_TYPES).in_dll(_library("libc10.so"), _GUARD_TABLE)
    real = slot[_CUDA_DEVICE_TYPE]
    has_gpu = torch.cuda.device_count() > 0
    if not has_gpu:
        _start_autograd()
    if real and has_gpu:
        undo.callback(_put, slot, _CUDA_DEVICE_TYPE, real)
    if has_gpu or not real:
        _register_stub_guard()
    torch._C._ensureCUDADeviceGuardSet()


@lru_cache(maxsize=1)
def _start_autograd() -> None:
    """Lets autograd's engine count devices while there is none. With the stub guard's it would
    start a thread for it, and then refuse to run in any process that is forked from this one
    (Engine::start_device_threads, torch/csrc/autograd/engine.cpp)."""
    with torch.inference_mode(False), torch.enable_grad():
        number: Any = torch.zeros((), device="cpu", requires_grad=True)
        number.backward()


@lru_cache(maxsize=1)
def _hook_slots() -> dict[str, int]:
    """Slot number of each virtual function of CUDAHooksInterface, from the wheel's headers."""
    folder = Path(torch.__file__).parent / "include" / "ATen" / "detail"
    names: list[str] = []
    for header, declaration in (
        ("AcceleratorHooksInterface.h", "struct TORCH_API AcceleratorHooksInterface"),
        ("CUDAHooksInterface.h", "struct TORCH_API CUDAHooksInterface"),
    ):
        text = re.sub(r"//[^\n]*", "", (folder / header).read_text())
        text = text[text.index(declaration) :]
        found = re.findall(r"virtual\s+[^;{]*?(~?\w+)\s*\(", text)
        # Only the base declares the destructor, which takes two slots (complete and deleting).
        for name in found:
            names.extend([name, f"{name}#deleting"] if name.startswith("~") else [name])
    return {name: index for index, name in enumerate(names)}


def _patch_hooks(undo: ExitStack, answers: dict[str, int | float]) -> None:
    slots = _hook_slots()
    get_hooks = _library("libtorch_cpu.so")[_CUDA_HOOKS]
    get_hooks.restype = ctypes.c_void_p
    get_hooks.argtypes = []
    vtable_pointer = ctypes.cast(get_hooks(), ctypes.POINTER(ctypes.c_void_p))
    original = vtable_pointer[0]
    assert original is not None
    size = max(slots.values()) + 1 + _VTABLE_HEADER
    word = ctypes.sizeof(ctypes.c_void_p)
    source = (ctypes.c_void_p * size).from_address(original - _VTABLE_HEADER * word)
    patched = (ctypes.c_void_p * size)(*source)
    for name, answer in answers.items():
        patched[_VTABLE_HEADER + slots[name]] = _constant(answer)
    _keep_alive.append(patched)
    undo.callback(_put, vtable_pointer, 0, original)
    vtable_pointer[0] = ctypes.addressof(patched) + _VTABLE_HEADER * word


def _forget_initialised(undo: ExitStack) -> None:
    """Torch notes that CUDA was initialised, which it was not: afterwards the first use of CUDA
    must try again, and say what it said before."""
    was_initialised = bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call, unused-ignore]
    require = _library("libtorch_python.so")[_REQUIRE_INIT]
    require.argtypes = [ctypes.c_byte, ctypes.c_bool]
    require.restype = None
    if not was_initialised:
        undo.callback(require, _CUDA_DEVICE_TYPE, True)


def _patch_core(undo: ExitStack) -> None:
    _enter_device_guard(undo)
    _forget_initialised(undo)
    _patch_hooks(undo, _CUDA_BUILD_ANSWERS if IS_CUDA_BUILD else _CPU_BUILD_ANSWERS)


@contextmanager
def cuda_core() -> Iterator[None]:
    """As `enter_cuda_core`, for the time of a block."""
    with ExitStack() as undo:
        enter_cuda_core(undo)
        yield


def enter_cuda_core(undo: ExitStack) -> None:
    """The core accepts `cuda` tensors from here on; once `undo` is left, it answers as before.

    UnsupportedTorchError where that is not proven to work: another platform than Linux x86-64, or
    a torch build that fails the self-check.
    """
    self_check()
    _patch_core(undo)


@lru_cache(maxsize=1)
def build_key() -> str:
    """Names this torch build: version, commit, where it lies, when it was installed."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    stamp = library.stat().st_mtime_ns if library.exists() else 0
    text = f"{torch.__version__} {torch.version.git_version} {library} {stamp} {sys.version}"
    return hashlib.sha256(text.encode()).hexdigest()[:20]


@lru_cache(maxsize=1)
def self_check() -> None:
    """Proves in a subprocess, once for each torch build, that this build can be patched.

    The answer is kept in the user's cache folder; where that cannot be written the check runs in
    each process. Raises UnsupportedTorchError, with what to do, before anything is touched, and
    SlowMachineError where the check did not end in time, which proves nothing.
    """
    refuse_platform()
    refuse_torch(torch.__version__, is_rocm=torch.version.hip is not None)
    kept = user_cache_folder() / f"core-{build_key()}-{__version__}.json"
    reason = failure_apart(_SELF_CHECK_PROGRAM, kept)
    if reason:
        raise UnsupportedTorchError(
            f"torch {torch.__version__} failed neusight's self-check ({reason}). "
            f"{remedy_for_torch(torch.__version__)}"
        )


@lru_cache(maxsize=1)
def record_functions_failure() -> str:
    """Why torch's record functions cannot be followed; empty where they can. A process of its own
    tries it, once for each torch build."""
    if not is_known_header():
        return "ATen/record_function.h is not the known one"
    kept = user_cache_folder() / f"record-functions-{build_key()}-{__version__}.json"
    return failure_apart(CHECK_PROGRAM, kept)


def failure_apart(program: str, kept: Path, **variables: str) -> str:
    """Why a program that ends with `SELF_CHECK_PASSED` fails in a process of its own; empty where
    it passes. The file `kept` then says so, and it does not run again."""
    try:
        known = json_value(read_bytes(kept))
    except (OSError, ValueError):
        known = None
    if known == {"ok": True}:
        return ""
    reason = _run_apart(program, variables)
    if not reason:
        with suppress(OSError):  # a read-only home: the next process checks again
            write_atomically(kept, json.dumps({"ok": True}).encode())
    return reason


def _run_apart(program: str, variables: Mapping[str, str]) -> str:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **variables}
    limit_s = _self_check_limit_s()
    try:
        done = subprocess.run(
            [sys.executable, "-c", _WITHOUT_FOLDER + program],
            capture_output=True,
            text=True,
            timeout=limit_s,
            env=environment,
            cwd=tempfile.gettempdir(),
        )
        reason = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else ""
        passed = SELF_CHECK_PASSED in done.stdout
        return "" if passed else reason or f"exit status {done.returncode}"
    except subprocess.TimeoutExpired:
        # Not `from` it: its text is the command, a screenful.
        raise SlowMachineError(
            f"neusight's self-check of torch {torch.__version__} did not end within {limit_s:g} s: "
            "this machine is too slow or too busy just now, which says nothing about torch. Run it "
            f"again, or give it more time: {SELF_CHECK_LIMIT_VARIABLE}={10 * limit_s:g}"
        ) from None
    except OSError as error:
        return str(error)


def _self_check_limit_s() -> float:
    stated = os.environ.get(SELF_CHECK_LIMIT_VARIABLE)
    if not stated:
        return _SELF_CHECK_LIMIT_S
    try:
        limit_s = float(stated)
    except ValueError:
        limit_s = 0.0
    if not limit_s > 0:
        raise OptionError(
            f"{SELF_CHECK_LIMIT_VARIABLE} is {stated!r}; it must be a number of seconds above 0."
        )
    return limit_s
