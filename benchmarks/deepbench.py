"""Recurrent layers and all-reduces of older GPUs against measured ones: data/deepbench.

    python benchmarks/deepbench.py             compares, exit code 1 where a group got worse
    python benchmarks/deepbench.py --table     all groups, with bias
    python benchmarks/deepbench.py --update    stores the scores (ratchet.py)

A recurrent layer is cuDNN's, all time steps; the product of its input is not part of it. Both parts
of its gradient count together. An all-reduce is NCCL's over PCIe, above 8 GPUs over InfiniBand too.
Products and convolutions of the same source are in accuracy.py. Fitted to these rows is what a rank
reaches of PCIe and of InfiniBand, to M40's alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import ratchet
from tables import read_table

from neusight.ops import kernels_of
from neusight.predictors.kernel import Kernel
from neusight.predictors.registry import predict
from neusight.predictors.training.datasheet import KnownGPUs
from neusight.recording.recording import MathMode, OpSignature, TensorSpec

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "deepbench"

#: GPUs of a host.
GPUS_PER_NODE = 8

#: cudnnRNNMode_t of the cells, and torch's names of the tables' dtypes.
CELLS = {"rnn_relu": 0, "lstm": 2, "gru": 3}
DTYPES = {
    "fp32": "float32",
    "fp16_tensor_core": "float16",
    "fp16_storage_fp32_math": "float16",
}


def rows() -> Iterator[ratchet.Row]:
    """Each measurement beside its forecast."""
    if not DATA.exists():
        return
    book = KnownGPUs(DATA)
    yield from _all_reduces(book)
    yield from _recurrent_layers(book)


def _all_reduces(book: KnownGPUs) -> Iterator[ratchet.Row]:
    for row in read_table(DATA / "all_reduce.csv"):
        gpu, ranks = book.find(row["gpu"]), int(row["num_gpus"])
        if isinstance(gpu, str):
            continue
        kernel = Kernel.collective(
            "all_reduce", int(row["message_bytes"]), ranks, dtype="float32",
            num_nodes=-(-ranks // GPUS_PER_NODE),
        )  # fmt: skip
        [estimate] = predict([kernel], gpu)
        measured = float(row["latency_us"])
        where = "in a host" if ranks <= GPUS_PER_NODE else "over InfiniBand"
        yield ratchet.Row(
            f"all_reduce {where}", row["gpu"], "fp32", error=estimate.latency_us / measured - 1.0,
            is_inside=estimate.low_us <= measured <= estimate.high_us,
        )  # fmt: skip


def _recurrent_layers(book: KnownGPUs) -> Iterator[ratchet.Row]:
    measured: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    for row in read_table(DATA / "rnn.csv"):
        if row["dtype"] in DTYPES:
            layer = tuple(row[name] for name in ("gpu", "dtype", "cell", "hidden", "batch"))
            measured[(*layer, row["timesteps"])][row["pass"]] = float(row["latency_us"])
    for (label, dtype, cell, *sizes), times in measured.items():
        gpu = book.find(label)
        if isinstance(gpu, str):
            continue
        hidden, batch, steps = map(int, sizes)
        backward = {name: time for name, time in times.items() if name != "forward"}
        passes = {"forward": times.get("forward", 0.0), "backward": sum(backward.values())}
        if len(backward) == 1 and "backward" not in backward:
            del passes["backward"]  # one of its two parts
        for direction, time_us in passes.items():
            if time_us:
                kernels = _layer(
                    cell, hidden, batch, steps, DTYPES[dtype], is_backward=direction == "backward"
                )
                forecast_us = sum(item.latency_us for item in predict(kernels, gpu))
                yield ratchet.Row(
                    "recurrent layer", label, dtype, mode=direction,
                    error=forecast_us / time_us - 1.0,
                )  # fmt: skip


def _layer(
    cell: str, hidden: int, batch: int, steps: int, dtype: str, *, is_backward: bool
) -> list[Kernel]:
    """The kernels of a layer, without what its input alone needs."""
    input = TensorSpec((steps, batch, hidden), (batch * hidden, hidden, 1), dtype, "cuda:0")
    arguments = {
        "input": input, "mode": CELLS[cell], "hidden_size": hidden, "num_layers": 1,
        "batch_first": False, "dropout": 0.0, "train": True, "bidirectional": False,
        "batch_sizes": (), "proj_size": 0,
    }  # fmt: skip
    if not is_backward:
        call = OpSignature("aten::_cudnn_rnn", "default", tuple(arguments.items()), (input,))
        return list(kernels_of(call, MathMode()))[1:]
    arguments["output_mask"] = (False, False, False, True)
    call = OpSignature("aten::_cudnn_rnn_backward", "default", tuple(arguments.items()), (input,))
    found = list(kernels_of(call, MathMode()))
    del found[-3]  # the gradient of the weight that the input is multiplied with
    return found


if __name__ == "__main__":
    raise SystemExit(ratchet.run("deepbench", __doc__, DATA, rows))
