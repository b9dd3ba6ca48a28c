"""The switches that choose kernels are kept with the ops they matter to."""

from __future__ import annotations

import torch

from neusight.recording.dispatch.math_settings import MathSettings
from neusight.recording.recording import MathMode, release_of
from neusight.recording.signature import math_mode
from recorded_programs import calls, named


def test_switches_that_choose_kernels_are_kept_with_the_ops_they_matter_to() -> None:
    def program() -> None:
        x = torch.ones(8, 8, device="cuda")
        x @ x
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            x @ x
            x + x
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False

    found = calls(program)
    assert [call.math.matmul_tf32 for call in named(found, "mm")] == [False, True]
    assert named(found, "add")[0].math == MathMode(torch=release_of(torch.__version__))


def test_equal_switches_are_one_object() -> None:
    switches = MathSettings()

    assert switches.now() is switches.now()
    assert switches.now() == math_mode()
