"""Ops of the program's own that return as much as values say: a size is assumed, and reported."""

from __future__ import annotations

from typing import Any

from torch._library.fake_impl import FakeImplCtx

from neusight.fake_cuda.patching import Patches
from neusight.recording.recorder import Recorder
from neusight.recording.values.invention import MASK_DENSITY


def install_custom_ops(patches: Patches, recorder: Recorder) -> None:
    """`torch.library.get_ctx().new_dynamic_size()` gives a number in a forecast's fake kernels:
    half of the most there may be, which is as many as the largest operand has rows where the fake
    kernel says nothing."""
    original: Any = FakeImplCtx.new_dynamic_size

    def new_dynamic_size(self: Any, *, min: int = 0, max: int | None = None) -> Any:
        if self._fake_mode is not recorder.mode:
            return original(self, min=min, max=max)
        most = recorder.fake_kernels.most_rows() if max is None else max
        size = int(most * MASK_DENSITY) or most
        size = size if size > min else min
        name = getattr(self._op, "_name", str(self._op)).removesuffix(".default")
        recorder.warn_once(
            f"{name} returns as much as values say; {size} of at most {most} were assumed first"
        )
        return size

    patches.set(FakeImplCtx, "new_dynamic_size", new_dynamic_size)
    # The older name of it.
    patches.set(
        FakeImplCtx,
        "create_unbacked_symint",
        lambda self, *, min=2, max=None: new_dynamic_size(self, min=min, max=max),
    )
