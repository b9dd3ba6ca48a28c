"""Ctrl-C and faults at any moment: nothing is left behind, nothing recorded is lost."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import pytest
import torch
from torch import nn

import neusight
from neusight.exit_codes import ExitCode
from neusight.integrations.cli.main import main
from neusight.interrupts import Interrupts
from places import ROOT

#: Lines of opening and of closing at which a fault is tried; all of them where this is set.
EVERY_LINE = bool(os.environ.get("NEUSIGHT_EVERY_LINE"))
SAMPLED_LINES = 24

#: Loops that only an interrupt ends give up after this, in seconds: far above what any needs.
GIVE_UP_S = 300

FOLDERS = tuple(
    f"{ROOT / folder}{os.sep}" for folder in ("neusight_hooks", "integrations", "predictors")
)


@pytest.fixture(autouse=True)
def as_on_a_terminal() -> Iterator[None]:
    """A shell starts what it runs in the background with Ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def train(between: Callable[[], object] = lambda: None) -> None:
    model = nn.Linear(8, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        model(torch.randn(2, 8, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        between()


def latency() -> float:
    with neusight.forecast_on("H100") as forecast:
        train()
    return forecast.latency_us


def press() -> None:
    """Ctrl-C, here and now."""
    signal.raise_signal(signal.SIGINT)


def fault() -> None:
    raise KeyboardInterrupt


def spin() -> None:
    """A loop in which no op comes."""
    end = time.monotonic() + GIVE_UP_S
    while time.monotonic() < end:
        pass
    pytest.fail("the interrupt was lost")


@pytest.fixture(scope="module")
def reference() -> float:
    latency()  # what is made once
    return latency()


def state() -> tuple[object, ...]:
    """What torch and Python answer: all code of torch.cuda and others, and who handles what."""
    modules = (torch.cuda, torch.cuda.memory, torch.serialization, torch.backends.cudnn, nn.init)
    codes = [
        value.__code__
        for module in modules
        for value in vars(module).values()
        if isinstance(value, FunctionType)
    ]
    return (
        codes,
        torch.cuda.is_available(),
        torch.accelerator.is_available(),
        torch._C._len_torch_dispatch_stack(),
        torch._C._only_lift_cpu_tensors(),
        torch.autograd.is_multithreading_enabled(),
        open.__module__,
        signal.getsignal(signal.SIGINT),
        sys.unraisablehook,
        len(sys.meta_path),
        len(nn.modules.module._global_forward_pre_hooks),
        nn.Module._apply,
        torch.optim.Optimizer.__init__,
    )


class AtLine:
    """Does something at the k-th line that runs in neusight's own files."""

    def __init__(self, position: int, action: Callable[[], object]) -> None:
        self.position = position
        self.action = action
        self.num_lines = 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(FOLDERS):
            return None
        if event == "line":
            self.num_lines += 1
            if self.num_lines == self.position:
                sys.settrace(self.before)
                self.action()
        return self

    def __enter__(self) -> AtLine:
        self.before = sys.gettrace()
        sys.settrace(self)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(self.before)


def opened_at(position: int, action: Callable[[], object]) -> tuple[AtLine, Any]:
    """Opens and leaves a block; the action happens while it opens."""
    block = neusight.forecast_on("H100")
    with AtLine(position, action) as line:
        forecast = block.__enter__()
    try:
        train()
    finally:
        block.__exit__(*sys.exc_info())
    return line, forecast


def closed_at(position: int, action: Callable[[], object], seen: list[Any]) -> AtLine:
    """Opens and leaves a block; the action happens while it closes."""
    block = neusight.forecast_on("H100")
    seen.append(block.__enter__())
    train()
    with AtLine(position, action) as line:
        block.__exit__(None, None, None)
    return line


def positions(num_lines: int) -> range:
    return range(1, num_lines + 1, 1 if EVERY_LINE else max(1, num_lines // SAMPLED_LINES))


@pytest.mark.slow
@pytest.mark.parametrize("action", [press, fault])
def test_a_fault_at_any_line_of_opening_leaves_nothing(
    action: Callable[[], object], reference: float
) -> None:
    before = state()
    opened_at(0, action)  # what is remembered of modules afterwards takes no lines
    num_lines = opened_at(0, action)[0].num_lines
    assert num_lines > 1000

    broken = []
    for position in positions(num_lines):
        try:
            line, _ = opened_at(position, action)
        except KeyboardInterrupt:
            pass
        else:
            assert line.num_lines < position  # fewer lines ran: what was looked at is remembered
        if state() != before or latency() != reference:
            broken.append(position)

    assert broken == []


@pytest.mark.slow
def test_ctrl_c_at_any_line_of_closing_loses_nothing(reference: float) -> None:
    before = state()
    num_lines = closed_at(0, press, []).num_lines
    assert num_lines > 500

    broken = []
    for position in positions(num_lines):
        seen: list[Any] = []
        with pytest.raises(KeyboardInterrupt):
            closed_at(position, press, seen)
        if state() != before or seen[0].latency_us != reference or latency() != reference:
            broken.append(position)

    assert broken == []


def test_ctrl_c_at_any_op_ends_the_block_and_keeps_what_was_recorded(reference: float) -> None:
    before = state()
    with neusight.forecast_on("H100") as whole:
        train()

    for position in range(1, whole.recording.num_ops + 1):
        with pytest.raises(KeyboardInterrupt), neusight.forecast_on("H100") as forecast:
            recorder = forecast._recorder
            assert recorder is not None
            tape: Any = recorder.tape
            add_op = tape.add_op

            def counted(op: Any, tape: Any = tape, add_op: Any = add_op) -> None:
                add_op(op)
                if tape.gpu_ops == position:  # noqa: B023  (it does not outlive the loop)
                    press()

            tape.add_op = counted
            train()
        assert forecast.recording.num_ops == position
        assert forecast.latency_us > 0

    assert state() == before
    assert latency() == reference


# -- where C code drops what is raised -------------------------------------------------------------


class Dying:
    """An object whose end is when Ctrl-C comes."""

    def __del__(self) -> None:
        press()


def interrupted_block(program: Callable[[Any], object]) -> Any:
    """The forecast of a program that Ctrl-C ends."""
    with pytest.raises(KeyboardInterrupt), neusight.forecast_on("H100") as forecast:
        program(forecast)
    assert forecast.recording.num_ops == 1
    return forecast


def test_ctrl_c_while_a_storage_dies_ends_a_loop_without_ops() -> None:
    def program(forecast: Any) -> None:
        forecast._recorder.storages.on_death.subscribe(lambda key: press())
        tensor = torch.ones(4, device="cuda")
        del tensor
        spin()

    interrupted_block(program)


def test_ctrl_c_in_a_finalizer_is_not_lost() -> None:
    def program(forecast: Any) -> None:
        torch.ones(4, device="cuda")
        dying = Dying()
        del dying
        spin()

    interrupted_block(program)


def test_ctrl_c_in_a_callback_of_a_weak_reference_is_not_lost() -> None:
    class Thing:
        pass

    def program(forecast: Any) -> None:
        torch.ones(4, device="cuda")
        thing = Thing()
        watched = weakref.ref(thing, lambda reference: press())
        del thing
        assert watched() is None
        spin()

    interrupted_block(program)


def test_what_others_drop_is_reported_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: reported.append(dropped.exc_type))

    class Broken:
        def __del__(self) -> None:
            raise ZeroDivisionError

    with neusight.forecast_on("H100"):
        torch.ones(4, device="cuda")
        broken = Broken()
        del broken
        gc.collect()

    assert reported == [ZeroDivisionError]


def test_a_loop_that_sleeps_ends() -> None:
    main_thread = threading.main_thread().ident or 0

    def program(forecast: Any) -> None:
        tensor = torch.ones(4, device="cuda")
        timer = threading.Timer(0.001, lambda: signal.pthread_kill(main_thread, signal.SIGINT))
        timer.start()
        end = time.monotonic() + GIVE_UP_S
        while time.monotonic() < end:
            time.sleep(0.001)
        del tensor
        pytest.fail("the interrupt was lost")

    interrupted_block(program)


# -- whose handler it is ---------------------------------------------------------------------------


@pytest.fixture
def presses() -> Iterator[list[int]]:
    """A handler of the user's own, which raises nothing; what it was given."""
    reported: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: reported.append(number))
    yield reported
    signal.signal(signal.SIGINT, before)


def test_a_handler_from_before_the_block_is_called(presses: list[int], reference: float) -> None:
    handler = signal.getsignal(signal.SIGINT)

    with neusight.forecast_on("H100") as forecast:
        train(between=press)

    assert presses == [signal.SIGINT] * 2
    assert signal.getsignal(signal.SIGINT) is handler
    assert forecast.latency_us == reference


def test_it_is_called_once_the_block_is_open_or_closed(presses: list[int]) -> None:
    opened_at(2000, press)
    closed_at(500, press, [])

    assert presses == [signal.SIGINT] * 2


def test_a_handler_set_inside_the_block_is_called_and_stays() -> None:
    reported = []
    before = signal.getsignal(signal.SIGINT)
    try:
        with neusight.forecast_on("H100"):
            ours = signal.signal(signal.SIGINT, lambda number, frame: reported.append(number))
            train(between=press)
        press()
        assert reported == [signal.SIGINT] * 3

        assert callable(ours)
        with pytest.raises(KeyboardInterrupt):
            ours(signal.SIGINT, None)  # who calls the handler from before gets what it did
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_was_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with neusight.forecast_on("H100"):
            train(between=press)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_get_no_signals_and_set_no_handlers(reference: float) -> None:
    before = signal.getsignal(signal.SIGINT)
    found: list[Any] = []

    def program() -> None:
        found.append(latency())
        found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=program)
    thread.start()
    thread.join()

    assert found == [reference, before]


def test_an_interrupt_that_waits_is_passed_on_once() -> None:
    reported = []
    before = signal.signal(signal.SIGINT, lambda number, frame: reported.append(number))
    interrupts = Interrupts()
    try:
        interrupts.hold()
        press()
        press()
        assert (reported, interrupts.count) == ([], 2)

        interrupts.put_back()
        assert reported == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


# -- the commands ----------------------------------------------------------------------------------

STEPS = """
import os, signal, sys, torch
model = torch.nn.Linear(8, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(10**9):
    model(torch.randn(2, 8, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 3:
        {at_step_3}
"""
PRESS = "signal.raise_signal(signal.SIGINT)"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def script(folder: Path, text: str) -> str:
    (folder / "train.py").write_text(text)
    return "train.py"


def test_run_sums_up_what_was_recorded(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = state()

    code = main(["run", "--gpu", "H100", "--gpu", "A100", "--steps", "all", "--json", "f.json",
                 script(folder, STEPS.format(at_step_3=PRESS))])  # fmt: skip

    reported = capsys.readouterr()
    assert (code, int(ExitCode.INTERRUPTED)) == (ExitCode.INTERRUPTED, 130)
    assert "ms a step" in reported.out and "A100-SXM4-80GB" in reported.out
    assert "neusight: interrupted; the forecast covers what it did before" in reported.err
    assert "Traceback" not in reported.err
    assert (folder / "f.json").exists()
    assert state() == before


@pytest.mark.parametrize(
    "text",
    [
        f"import signal; {PRESS}",
        f"import signal\ntry:\n    {PRESS}\nexcept KeyboardInterrupt:\n    raise SystemExit(1)",
        f"import signal\ntry:\n    {PRESS}\nexcept KeyboardInterrupt:\n    raise ValueError",
    ],
)
def test_run_says_so_where_nothing_was_recorded(
    text: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["run", "--gpu", "H100", script(folder, text)])

    reported = capsys.readouterr()
    assert (code, reported.out) == (ExitCode.INTERRUPTED, "")
    assert reported.err == "neusight: interrupted before any CUDA work\n"


def test_a_script_that_ends_itself_at_ctrl_c_ends_as_it_says(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = STEPS.format(at_step_3=f"signal.signal(2, lambda *_: sys.exit()); {PRESS}")

    assert main(["run", "--gpu", "H100", "--steps", "all", script(folder, text)]) == 0

    assert "fits" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_after_the_script_is_reported_in_a_line(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neusight.Forecast, "summary", lambda forecast, **options: press())
    text = STEPS.format(at_step_3="break")

    assert main(["run", "--gpu", "H100", script(folder, text)]) == ExitCode.INTERRUPTED

    assert capsys.readouterr().err == "neusight: interrupted\n"


def test_check_sums_up_and_judges_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = STEPS.format(at_step_3=PRESS)

    code = main(["check", "--gpu", "H100", "--steps", "all", "--update", script(folder, text)])

    reported = capsys.readouterr()
    assert code == ExitCode.INTERRUPTED
    assert reported.out.startswith("H100-SXM5-80GB: fits")
    assert reported.err == "neusight: interrupted; 0 results, of 1 programs to check\n"
    assert not (folder / "neusight.json").exists()


def neusight_process(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "neusight", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "TMPDIR": str(folder / "tmp")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def press_at(process: subprocess.Popen[str], *marks: str) -> None:
    """Ctrl-C once each of these lines was printed, in turn."""
    assert process.stdout is not None
    for mark in marks:
        while process.stdout.readline() not in (f"{mark}\n", ""):
            pass
        process.send_signal(signal.SIGINT)


def test_ctrl_c_from_outside_ends_a_training_loop_with_its_summary(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    text = STEPS.format(at_step_3='print("training", flush=True)')
    process = neusight_process(
        tmp_path, "run", "--gpu", "H100", "--steps", "all", script(tmp_path, text)
    )

    press_at(process, "training")
    out, err = process.communicate()

    assert process.returncode == ExitCode.INTERRUPTED
    assert "H100-SXM5-80GB: fits" in out
    assert err == "neusight: interrupted; the forecast covers what it did before\n"
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_second_ctrl_c_ends_a_script_that_catches_the_first(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    text = """
import torch
tensor = torch.ones(4, device="cuda")
torch.save(tensor, "saved.pt")
print("begins", flush=True)
while True:
    try:
        while True:
            tensor + tensor
    except BaseException:
        print("caught", flush=True)
"""
    process = neusight_process(
        tmp_path, "run", "--gpu", "H100", "--steps", "all", script(tmp_path, text)
    )

    press_at(process, "begins", "caught")
    out, err = process.communicate()

    assert process.returncode == ExitCode.INTERRUPTED
    assert (out, err) == ("", "neusight: interrupted\n")
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("module", ["torch", "torch.nn.modules", "neusight.recording.recorder"])
def test_ctrl_c_while_torch_is_imported_is_reported_in_a_line(module: str, tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Finder:\n"
        "    @staticmethod\n"
        "    def find_spec(name, *rest):\n"
        f"        if name == {module!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder)\n"
    )
    process = neusight_process(tmp_path, "run", "--gpu", "H100", script(tmp_path, "import torch"))

    out, err = process.communicate()

    assert (process.returncode, out, err) == (ExitCode.INTERRUPTED, "", "neusight: interrupted\n")
