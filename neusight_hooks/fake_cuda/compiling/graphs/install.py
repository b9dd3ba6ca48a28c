"""CUDA graphs of torch.compile (reduce-overhead, max-autotune, "cudagraphs"), and why not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from neusight.fake_cuda.compiling.graphs.trees import GraphTrees
from neusight.fake_cuda.patching import Patches
from neusight.recording.recorder import Recorder


def install_cuda_graphs(patches: Patches, recorder: Recorder) -> None:
    """Nothing is captured; from its third call on a graph costs the host one launch. Where torch
    itself decides against graphs it does not come here, and its reason is reported."""
    from torch._inductor import config as inductor_config
    from torch._inductor import cudagraph_trees, cudagraph_utils
    from torch._inductor.scheduler import Scheduler

    trees = GraphTrees(recorder)
    patches.set(cudagraph_trees, "cudagraphify", trees.cudagraphify)
    patches.set(cudagraph_trees, "get_manager", lambda *args, **kwargs: trees)

    def reported(message: str) -> None:
        recorder.warn_once(f"torch skips CUDA graphs here: {reason_text(message)}")
        skip(message)

    skip = patches.replace_code(cudagraph_utils, "log_cudagraph_skip_and_bump_counter", reported)
    split: Callable[..., Any] = Scheduler.graph_partition

    def graph_partition(self: Any) -> Any:
        if inductor_config.triton.cudagraphs:
            reasons = Counter(filter(None, map(self.should_partition, self.nodes)))
            if reasons and len(reasons) < len(self.nodes):
                recorder.warn_once(_parts_text(reasons))
        return split(self)

    patches.set(Scheduler, "graph_partition", graph_partition)


def _parts_text(reasons: Counter[str]) -> str:
    left_out = ", ".join(f"{reason} ({count})" for reason, count in sorted(reasons.items()))
    return f"torch leaves a part of a graph out of its CUDA graphs: {left_out}"


#: What torch's messages begin with, some twice.
_BEGINNING = re.compile(r"(?:(?:skipping|disabling) cudagraphs? due to )+")
#: Where a message goes on with the program's stack.
_STACK = re.compile(r"\.? *Found from *:?")
_LINE = re.compile(r'File "([^"]+)", line (\d+)')


def reason_text(message: str) -> str:
    """Torch's reason to skip, and the program's line where it has one.

    >>> reason_text("skipping cudagraphs due to cpu device (add)")
    'cpu device (add)'
    """
    text = _BEGINNING.sub("", message)
    reason = _STACK.split(text)[0].strip()
    lines = _LINE.findall(text.partition("ound from")[2])
    if not lines:
        return reason
    path, number = lines[-1]
    return f"{reason} at {Path(path).name}:{number}"
