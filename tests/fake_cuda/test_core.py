"""Torch's C++ core: patched inside, itself outside, and refused where nobody has proven it."""

from __future__ import annotations

import json
import platform
import subprocess
from pathlib import Path

import pytest
import torch

from neusight.compatibility.releases import remedy_for_torch
from neusight.fake_cuda import core
from neusight.fake_cuda.core import SELF_CHECK_PASSED, cuda_core, failure_apart, self_check
from neusight.predictors.errors import OptionError, SlowMachineError, UnsupportedTorchError
from warm_python import run_python


@pytest.fixture
def fresh_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home in which nothing was checked yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    self_check.cache_clear()
    return tmp_path


def test_inside_torch_has_an_accelerator_and_afterwards_what_it_had() -> None:
    before = (torch.accelerator.current_accelerator(), torch._C._get_accelerator())

    with cuda_core():
        inside = torch.accelerator.current_accelerator()

    assert inside is not None and inside.type == "cuda"
    assert (torch.accelerator.current_accelerator(), torch._C._get_accelerator()) == before


def test_an_exception_inside_puts_the_core_back() -> None:
    before = torch.accelerator.current_accelerator()

    with pytest.raises(ZeroDivisionError), cuda_core():
        raise ZeroDivisionError

    assert torch.accelerator.current_accelerator() == before


def test_hooks_are_found_in_the_headers_of_the_wheel() -> None:
    slots = core._hook_slots()

    wanted = {**core._CPU_BUILD_ANSWERS, **core._CUDA_BUILD_ANSWERS}
    assert set(wanted) <= set(slots)
    assert len(set(slots.values())) == len(slots)


def test_an_unproven_platform_is_refused_before_anything_is_touched(
    fresh_check: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")

    with pytest.raises(UnsupportedTorchError, match="proven on Linux x86-64 only"):
        self_check()
    assert list(fresh_check.iterdir()) == []


def test_a_rocm_build_is_refused(fresh_check: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4")

    with pytest.raises(UnsupportedTorchError, match="ROCm build"):
        self_check()


def test_an_old_torch_is_refused_without_a_try(
    fresh_check: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", "2.6.0+cu124")
    monkeypatch.setattr(core, "_SELF_CHECK_PROGRAM", "raise SystemExit('not tried')")

    with pytest.raises(UnsupportedTorchError, match=r"2\.6\.0\+cu124 is older .* 2\.11\.0"):
        self_check()


def test_a_torch_whose_private_names_moved_is_refused_with_the_nearest_that_works(
    fresh_check: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = "import torch._subclasses.fake_tensor as home; del home.FakeTensor"
    monkeypatch.setattr(torch, "__version__", "2.14.0")
    monkeypatch.setattr(core, "_SELF_CHECK_PROGRAM", f"{moved}\n{core._SELF_CHECK_PROGRAM}")

    with pytest.raises(UnsupportedTorchError) as caught:
        self_check()

    assert "(ImportError: cannot import name 'FakeTensor'" in str(caught.value)
    assert "The nearest release that works is 2.1" in str(caught.value)


def test_a_torch_that_fails_the_check_is_refused_with_what_to_do(
    fresh_check: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "_SELF_CHECK_PROGRAM", "raise ValueError('wrong slot')")

    with pytest.raises(UnsupportedTorchError) as caught:
        self_check()

    assert "failed neusight's self-check (ValueError: wrong slot)" in str(caught.value)
    assert remedy_for_torch(torch.__version__) in str(caught.value)
    assert list(fresh_check.rglob("*.json")) == []


def test_a_check_that_crashes_is_a_failed_check(
    fresh_check: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "_SELF_CHECK_PROGRAM", "import os; os.abort()")

    with pytest.raises(UnsupportedTorchError, match="exit status -6"):
        self_check()


def test_a_check_that_does_not_end_in_time_blames_the_machine_not_torch(
    fresh_check: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(core.SELF_CHECK_LIMIT_VARIABLE, "0.01")

    with pytest.raises(SlowMachineError) as caught:
        self_check()

    text = str(caught.value)
    assert "did not end within 0.01 s" in text
    assert "too slow or too busy" in text
    assert f"{core.SELF_CHECK_LIMIT_VARIABLE}=0.1" in text
    assert "import torch" not in text  # the command
    assert caught.value.__suppress_context__
    assert list(fresh_check.rglob("*.json")) == []

    monkeypatch.delenv(core.SELF_CHECK_LIMIT_VARIABLE)
    monkeypatch.setattr(core, "_SELF_CHECK_PROGRAM", f"print({SELF_CHECK_PASSED!r})")
    self_check()


@pytest.mark.parametrize("stated", ["soon", "0", "-3", "nan"])
def test_a_limit_that_is_none_is_reported(
    stated: str, fresh_check: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(core.SELF_CHECK_LIMIT_VARIABLE, stated)

    with pytest.raises(OptionError, match="a number of seconds above 0"):
        self_check()


def test_the_check_is_remembered_for_each_torch_build(
    fresh_check: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []
    real = subprocess.run

    def run(*args: object, **kwargs: object) -> object:
        runs.append(args)
        return real(*args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(core, "_SELF_CHECK_PROGRAM", f"print({SELF_CHECK_PASSED!r})")
    self_check()
    self_check.cache_clear()
    self_check()

    (file,) = fresh_check.rglob("core-*.json")
    assert json.loads(file.read_text()) == {"ok": True}
    assert len(runs) == 1


def test_a_check_imports_nothing_from_the_folder_that_everybody_writes_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shared_by_all.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    program = (
        f"try:\n    import shared_by_all\nexcept ImportError:\n    print('{SELF_CHECK_PASSED}')"
    )

    assert failure_apart(program, tmp_path / "kept.json") == ""


def test_a_read_only_home_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "below"))
    self_check.cache_clear()
    monkeypatch.setattr(core, "_SELF_CHECK_PROGRAM", f"print({SELF_CHECK_PASSED!r})")

    self_check()


def test_a_damaged_memory_is_checked_again(
    fresh_check: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "_SELF_CHECK_PROGRAM", f"print({SELF_CHECK_PASSED!r})")
    self_check()
    [file] = fresh_check.rglob("core-*.json")
    file.write_text("{ not json")

    self_check.cache_clear()
    self_check()

    assert json.loads(file.read_text()) == {"ok": True}


def test_a_process_that_forecast_a_backward_can_be_forked() -> None:
    """In one of its own, where no other test has begun autograd."""
    program = """
import os, neusight, torch
def train():
    with neusight.forecast_on("H100"):
        torch.nn.Linear(4, 4).cuda()(torch.ones(2, 4, device="cuda")).sum().backward()
train()
child = os.fork()
if not child:
    train()
    torch.nn.Linear(4, 4)(torch.ones(2, 4)).sum().backward()
    os._exit(0)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = run_python("-c", program)
    assert done.returncode == 0, done.stderr
