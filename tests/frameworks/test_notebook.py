"""`%%neusight` in a real kernel: what runs, what is shown, and what is left when a cell ends."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from notebook_kernel import Kernel, needs_kernel, running_kernel

TRAINING = """\
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for number in range(20):
    loss = model(torch.randn(8, 64, device="cuda")).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(number, loss.item())
"""
AS_BEFORE = "torch.cuda.is_available(), neusight.session.Session._current"


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """One kernel for all tests: it takes seconds to start, and torch to be imported."""
    with running_kernel(tmp_path_factory.mktemp("notebook")) as kernel:
        shown = kernel.run(
            "import os, signal, sys, threading, time\nimport torch, neusight.session"
        )
        assert shown.error == ""
        yield kernel


@pytest.fixture
def kernel(notebook: Kernel) -> Iterator[Kernel]:
    """The same; what a test ran there leaves no forecast open and no GPU."""
    yield notebook
    assert notebook.run(AS_BEFORE).texts == ["(False, None)"]


pytestmark = needs_kernel


def test_a_cell_runs_as_on_the_gpu_and_its_forecast_shows(kernel: Kernel) -> None:
    shown = kernel.run(f"%%neusight H100 --as mine\n{TRAINING}")
    after = kernel.run("_ is mine, number, optimizer.defaults['lr'], '_neusight_cell' in globals()")

    [forecast] = shown.displayed
    assert shown.stdout.splitlines()[0] == "0 2.0"
    assert forecast["text/plain"].startswith("H100-SXM5-80GB: fits, ")
    assert "where the time goes" in forecast["text/plain"]
    assert "<strong>H100-SXM5-80GB: fits, " in forecast["text/html"]
    assert "<iframe " in forecast["text/html"]
    assert after.texts == ["(True, 19, 0.001, False)"]


def test_the_last_value_of_a_cell_shows_above_the_forecast(kernel: Kernel) -> None:
    shown = kernel.run("%%neusight H100\nx = torch.ones(2, 3, device='cuda') + 1\nx.shape")
    hidden = kernel.run("%%neusight H100\nx = torch.ones(2, 3, device='cuda') + 1\nx.shape;")

    assert shown.texts[0] == "torch.Size([2, 3])"
    assert [text.split(":")[0] for text in (shown.texts[1], *hidden.texts)] == [
        "H100-SXM5-80GB",
        "H100-SXM5-80GB",
    ]


def test_time_inside_is_the_forecasts(kernel: Kernel) -> None:
    shown = kernel.run(
        "%%neusight H100\nbegan = time.time()\ntime.sleep(3600)\ntime.time() - began"
    )

    assert 3600.0 <= float(shown.texts[0]) < 3601.0


def test_messages_name_the_lines_of_the_cell(kernel: Kernel) -> None:
    shown = kernel.run(f"%%neusight H100 --as mine\n{TRAINING}")
    number = kernel.run("len(In) - 2")

    [place] = [line for line in shown.texts[0].splitlines() if "invented at" in line]
    assert place.endswith(f"invented at: In[{number.texts[0]}]:9")  # the magic is its first line
    assert f"<title>In[{number.texts[0]}] " in shown.displayed[0]["text/html"]


def test_a_cell_that_raises_shows_its_own_lines_and_ends_the_forecast(kernel: Kernel) -> None:
    source = "%%neusight H100 --as mine\nx = torch.ones(3, device='cuda')\nx + torch.ones(4).cuda()"

    shown = kernel.run(source)
    after = kernel.run("mine.failure, mine.recording.num_ops > 0")

    assert shown.error.startswith("RuntimeError: The size of tensor a (3) must match")
    assert "----> 3 x + torch.ones(4).cuda()" in shown.traceback
    assert "neusight_hooks" not in shown.traceback
    assert shown.displayed == []
    assert after.texts[0].startswith("('RuntimeError: The size of tensor a (3) must match")
    assert after.texts[0].endswith("True)")


def test_an_interrupted_cell_leaves_the_notebook_as_it_was(kernel: Kernel) -> None:
    source = (
        "%%neusight H100 --as mine\n"
        "presser = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))\n"
        "while True:\n"
        "    x = torch.ones(3, device='cuda') + 1\n"
        "    presser.is_alive() or presser.ident or presser.start()\n"
    )

    shown = kernel.run(source)
    after = kernel.run("signal.getsignal(signal.SIGINT) is signal.default_int_handler, 1 + 1")

    assert shown.error.startswith("KeyboardInterrupt")
    assert "neusight_hooks" not in shown.traceback
    assert after.texts == ["(True, 2)"]


def test_a_cell_may_await(kernel: Kernel) -> None:
    shown = kernel.run(
        "%%neusight H100\n"
        "from __future__ import annotations\n"
        "import asyncio\n"
        "async def made():\n"
        "    await asyncio.sleep(0.001)\n"
        "    return torch.ones(3, device='cuda') + 1\n"
        "(await made()).sum().item()\n"
    )

    assert shown.error == ""
    assert float(shown.texts[0]) > 0.0
    assert shown.texts[1].startswith("H100-SXM5-80GB: fits")


@pytest.mark.parametrize(
    "first_lines", ["%%neusight H100\n%%time", "%%time\n%%neusight H100"], ids=["below", "above"]
)
def test_other_magics_run_with_it(first_lines: str, kernel: Kernel) -> None:
    shown = kernel.run(f"{first_lines}\ny = torch.ones(5, device='cuda') * 2\nz = y.sum()")
    after = kernel.run("tuple(z.shape)")

    assert shown.error == ""
    assert "Wall time" in shown.stdout
    assert [text.partition(",")[0] for text in shown.texts] == ["H100-SXM5-80GB: fits"]
    assert after.texts == ["()"]


def test_magics_and_shell_commands_run_inside(kernel: Kernel) -> None:
    shown = kernel.run(
        "%%neusight H100 --quiet\n"
        "%time y = torch.ones(5, device='cuda') * 2\n"
        "!echo from the shell\n"
        "gpu = 'L4'\n"
    )
    named = kernel.run("%%neusight {gpu} --quiet\ny = torch.ones(5, device='cuda') * 2")

    assert "Wall time" in shown.stdout
    assert "from the shell" in shown.stdout
    assert [list(data) for data in shown.displayed] == [["text/plain"]]
    assert named.texts[0].startswith("L4: fits, ")


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        ("", "name the GPU to forecast on"),
        ("H10", "Unknown GPU 'H10'. Did you mean 'H100'?"),
        ("H100 --frob", "unrecognized arguments: --frob"),
        ("H100 --as 2x", "--as is '2x'; it must be the name of a variable"),
        ("H100 --steps 0", "steps is '0'"),
        ("H100 --host nobody", "unknown host 'nobody'"),
        ("H100 --predictor nobody", "Unknown predictor 'nobody'"),
        ("H100 --calibration nowhere.json", "nowhere.json"),
        ("H100 'open", "No closing quotation"),
    ],
)
def test_a_meaningless_line_is_reported_in_one(line: str, reported: str, kernel: Kernel) -> None:
    shown = kernel.run(f"%%neusight {line}\nraise AssertionError")

    assert reported in shown.stderr.splitlines()[0]
    assert shown.stderr.startswith("UsageError: ")
    assert (shown.error, shown.displayed) == ("", [])


def test_help_states_the_options_and_runs_nothing(kernel: Kernel) -> None:
    shown = kernel.run("%%neusight --help\nraise AssertionError")
    lost = kernel.run("1\n%neusight H100")

    assert shown.stdout.startswith("usage: %%neusight GPU ")
    assert "--steps N" in shown.stdout
    assert shown.stdout.endswith("The cell was not run.\n")
    assert (shown.stderr, shown.error) == ("", "")
    assert "begins a cell" in lost.stderr


def test_a_cell_ends_after_its_steady_steps_where_asked(kernel: Kernel) -> None:
    shown = kernel.run(f"%%neusight H100 --steps 3\n{TRAINING}raise AssertionError")

    assert shown.error == ""
    assert 3 <= len(shown.stdout.splitlines()) < 20
    assert shown.texts[0].startswith("H100-SXM5-80GB: fits, ")


def test_a_tensor_of_a_cell_that_has_ended_is_reported(kernel: Kernel) -> None:
    kernel.run("%%neusight H100\nkept = torch.ones(5, device='cuda') * 2")

    shown = kernel.run("kept")
    used = kernel.run("kept + 1")
    used_again = kernel.run("%%neusight H100\nkept + 1")

    assert shown.texts == [
        "tensor(..., device='cuda:0', size=(5,), dtype=torch.float32, forecast=True)"
    ]
    for each in (used, used_again):
        assert each.error.startswith(
            "ForecastStateError: A tensor made inside forecast_on was used"
        )
        assert "in the same cell" in each.error


def test_a_model_of_another_cell_is_forecast_in_each_and_comes_back(kernel: Kernel) -> None:
    kernel.run("torch.manual_seed(0)\nnet = torch.nn.Linear(8, 8)\nbefore = net.weight.clone()")
    source = "net.cuda()(torch.ones(4, 8, device='cuda')).sum().backward()"

    first = kernel.run(f"%%neusight H100 --as first\n{source}")
    second = kernel.run(f"%%neusight A100 --as second\n{source}")
    after = kernel.run(
        "first.gpu.name, second.gpu.name, net.weight.equal(before), net.weight.device.type"
    )

    assert (first.error, second.error) == ("", "")
    assert after.texts == ["('H100-SXM5-80GB', 'A100-SXM4-80GB', True, 'cpu')"]


def test_files_of_a_cell_are_gone_unless_kept_and_the_kernels_log_is_none(kernel: Kernel) -> None:
    source = "print('hello'); y = torch.ones(5, device='cuda') * 2; torch.save([1], 'made.pt')"

    gone = kernel.run(f"%%neusight H100\n{source}")
    there = kernel.run("os.path.exists('made.pt')")
    kernel.run(f"%%neusight H100 --allow-writes\n{source}")
    there_now = kernel.run("os.path.exists('made.pt')")

    [note] = [line for line in gone.texts[0].splitlines() if "what the script wrote" in line]
    assert "was new and is removed at the end" in note
    assert "not over your files" not in note  # nothing of ipykernel's
    assert (there.texts, there_now.texts) == (["False"], ["True"])


def test_threads_of_a_cell_run_and_print(kernel: Kernel) -> None:
    shown = kernel.run(
        "%%neusight H100\n"
        "worker = threading.Thread(target=lambda: (time.sleep(0.001), print('from a thread')))\n"
        "worker.start()\n"
        "y = torch.ones(5, device='cuda') * 2\n"
        "worker.join()\n"
    )

    assert shown.stdout == "from a thread\n"
    assert shown.error == ""


def test_a_module_that_changed_between_cells_is_loaded_again(kernel: Kernel) -> None:
    write = "open('layers.py', 'w').write({!r})\nos.utime('layers.py', (1e9 + {}, 1e9 + {}))\n"
    cell = "%%neusight H100 --as {}\ny = layers.doubled(torch.ones(5, device='cuda'))"
    kernel.run("%load_ext autoreload\n%autoreload 2\nsys.path.insert(0, os.getcwd())")
    kernel.run(write.format("def doubled(x): return x * 2\n", 1, 1) + "import layers")
    kernel.run(cell.format("first"))

    kernel.run(write.format("def doubled(x): return x * 2 + 1\n", 5, 5))
    kernel.run(cell.format("second"))
    after = kernel.run("%autoreload 0\nfirst.recording.num_ops, second.recording.num_ops")

    assert after.texts == ["(2, 3)"]


def test_a_long_cell_says_how_far_it_is_until_it_ends(kernel: Kernel) -> None:
    kernel.run(
        "from neusight.integrations.frameworks import notebook\n"
        "from neusight.integrations.program.progress.reporting import ReportInterval\n"
        "usual = notebook._REPORT_INTERVAL\n"
        "notebook._REPORT_INTERVAL = ReportInterval(0.001, 0.001)\n"
        "shown, show = [], notebook._UpdatedLine.show\n"
        "notebook._UpdatedLine.show = lambda line, text: (shown.append(text), show(line, text))\n"
    )

    shown = kernel.run(
        "%%neusight H100\n"
        "while not shown or ' ops, ' not in shown[-1]:\n"
        "    y = torch.ones(5, device='cuda') * 2\n"
    )
    after = kernel.run(
        "notebook._REPORT_INTERVAL = usual\nnotebook._UpdatedLine.show = show\nshown[-1]"
    )

    assert [text.partition(",")[0] for text in shown.texts] == ["", "H100-SXM5-80GB: fits"]
    assert re.fullmatch(r"'neusight: step \d+, [\d,]+ ops, \d+ s'", after.texts[0])


def test_a_block_inside_a_cell_shows_its_forecast_as_a_value(kernel: Kernel) -> None:
    shown = kernel.run(
        "with neusight.forecast_on('H100') as forecast:\n"
        "    print(forecast._repr_html_(), forecast)\n"
        "    y = torch.ones(5, device='cuda') * 2\n"
        "forecast"
    )

    assert shown.stdout == "None <Forecast on H100-SXM5-80GB, recording>\n"
    assert shown.texts[0].startswith("<Forecast on H100-SXM5-80GB: ")
    assert "<iframe " in shown.displayed[0]["text/html"]


def test_two_open_at_once_are_refused_in_a_line_of_the_cell(kernel: Kernel) -> None:
    shown = kernel.run("%%neusight H100\nneusight.forecast_on('A100').__enter__()")

    assert shown.error.startswith(
        "ForecastStateError: A forecast on H100-SXM5-80GB is open already"
    )
    assert "----> 2 neusight" in shown.traceback


def test_the_extension_can_be_loaded_again_and_unloaded(kernel: Kernel) -> None:
    loaded = kernel.run("%load_ext neusight\n%reload_ext neusight")
    once = kernel.run("%%neusight H100 --quiet\ny = torch.ones(5, device='cuda') * 2")
    kernel.run("%unload_ext neusight")
    gone = kernel.run("%%neusight H100\nraise AssertionError")
    kernel.run("%load_ext neusight")
    again = kernel.run("%%neusight H100 --quiet\ny = torch.ones(5, device='cuda') * 2")

    assert (loaded.error, loaded.stderr) == ("", "")
    assert "`%%neusight` not found" in gone.stderr
    assert len(once.texts) == len(again.texts) == 1


@pytest.mark.skipif(find_spec("IPython") is None, reason="IPython is not installed")
def test_a_terminals_ipython_shows_the_summary(tmp_path: Path) -> None:
    program = (
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        "shell.run_cell('import neusight', store_history=True)\n"
        "cell = '%%neusight H100\\nimport torch\\ny = torch.ones(5, device=\"cuda\") * 2'\n"
        "shell.run_cell(cell, store_history=True)\n"
    )

    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )

    assert done.stdout.startswith("H100-SXM5-80GB: fits, ")
    assert "where the time goes" in done.stdout
