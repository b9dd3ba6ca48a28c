"""Frameworks that train on many GPUs, unmodified, beside what theory says of their steps.

    python benchmarks/frameworks.py                       all that are installed, a line each
    python benchmarks/frameworks.py --only deepspeed
    python benchmarks/frameworks.py --csv benchmarks/results/frameworks.csv

Each is a program in `framework_programs/`, a small Llama on four H100. Of its steady step the bytes
of each collective (a rank's whole buffers, above 4 KiB), the bytes of its parameters and the tokens
of all ranks are compared with those counted by hand. A framework that is not installed keeps the
row it has in the table; why others are not in it, `NOT_RUN` says.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

from tables import read_table, write_table

PROGRAMS = Path(__file__).with_name("framework_programs")
TABLE = Path(__file__).with_name("results") / "frameworks.csv"

#: The small Llama: parameters, those of a block and of the embedding, bytes of the activations
#: between layers (bf16), tokens of a rank; its norms.
_LAYERS, _WIDTH, _HIDDEN, _VOCABULARY = 4, 512, 1024, 2048
_BLOCK = 4 * _WIDTH**2 + 3 * _WIDTH * _HIDDEN + 2 * _WIDTH
_EDGE = 2 * _VOCABULARY * _WIDTH + _WIDTH
_ALL = _LAYERS * _BLOCK + _EDGE
_NORMS = (2 * _LAYERS + 1) * _WIDTH
_TOKENS = 2 * 256
_ACTIVATIONS = _TOKENS * _WIDTH * 2
_RANKS = 4

#: Collectives below this are losses, norms of gradients, and flags, bytes.
_SMALL = 4096
_LIMIT_S = 600


@dataclass(frozen=True)
class Case:
    """A framework's program, and what a rank's step is by hand: bytes by kind of collective, bytes
    of its parameters (None: gathered ones lie beside them) on the rank that has most, and tokens of
    all ranks (None: a pipeline's schedule splits them, and their samples alone are known)."""

    framework: str
    package: str
    parallelism: str
    command: tuple[str, ...]
    collectives: dict[str, int]
    parameters: int | None = None
    tokens: int | None = _RANKS * _TOKENS


def _fsdp(units_again: int) -> dict[str, int]:
    """bf16 shards gathered forward, what is not the root's again backward, gradients scattered."""
    return {"all_gather": 2 * (_ALL + units_again), "reduce_scatter": 2 * _ALL}


_REPLICATED = {"all_reduce": 4 * _ALL}
_FSDP1 = _fsdp(_LAYERS * _BLOCK)
#: The embedding is a unit of its own there.
_FSDP2 = _fsdp(_LAYERS * _BLOCK + _VOCABULARY * _WIDTH)
_SPLIT_MLP = _LAYERS * (_BLOCK - 3 * _WIDTH * _HIDDEN // 2) + _EDGE

#: Megatron's GPT: biases, learned places, norms with biases; two matrices in the MLP.
_LAYER_NORMS = 4 * _WIDTH
_MEGATRON_EDGES = 256 * _WIDTH + 2 * _WIDTH


def _megatron_layer(ranks: int) -> int:
    split = 4 * _WIDTH**2 + 2 * _WIDTH * _HIDDEN + 3 * _WIDTH + _HIDDEN
    return split // ranks + 2 * _WIDTH + _LAYER_NORMS


_MEGATRON_TP = 2 * (_LAYERS * _megatron_layer(2) + _VOCABULARY * _WIDTH + _MEGATRON_EDGES)
_MEGATRON_STAGE = 2 * (2 * _megatron_layer(1) + _VOCABULARY * _WIDTH + 256 * _WIDTH)

#: torchtitan's Llama: of two ranks that split its layers one has half but for norms; gradients are
#: reduced in fp32.
_TITAN_TABLE = _VOCABULARY * _WIDTH
_TITAN_LAYER = (_BLOCK - 2 * _WIDTH) // 2 + 2 * _WIDTH
_TITAN_TP = _LAYERS * _TITAN_LAYER + _TITAN_TABLE + _WIDTH
_TITAN_FSDP = {"all_gather": _FSDP2["all_gather"], "reduce_scatter": 4 * _ALL}
#: Its Qwen 3, a mixture of four experts a layer, of which two lie on a rank and their neighbours on
#: the next: what all ranks share, and the experts, which are a unit of their own.
_TITAN_COMMON = 4 * _WIDTH**2 + 2 * _WIDTH + 4 * _WIDTH
_TITAN_EXPERTS = 2 * 3 * _WIDTH * _HIDDEN
_TITAN_MIXTURE = _LAYERS * (_TITAN_COMMON + _TITAN_EXPERTS)
#: Of a pipeline of two: the first and third, or first and last of four stages. Each rank gathers
#: once a step, and sends or receives what four micro-batches leave and bring at each border.
_TITAN_INTERLEAVED = 2 * _BLOCK + _TITAN_TABLE
_TITAN_ZBV = _BLOCK + _EDGE


def _titan_stages(parameters: int, borders: int) -> dict[str, int]:
    return {"all_gather": 2 * parameters, "reduce_scatter": 4 * parameters,
            "send_recv": 2 * borders * 4 * _ACTIVATIONS}  # fmt: skip


def _titan(parallelism: str, words: str, *counted: Any, ranks: tuple[str, ...] = ()) -> Case:
    options = tuple(
        word if number % 2 else f"--{word}" for number, word in enumerate(words.split())
    )
    command = ("--world-size", "4", *ranks, "with_torchtitan.py", *options)
    return Case("torchtitan", "torchtitan", parallelism, command, *counted)


_TITAN_PIPELINE = (
    "parallelism.pipeline_parallel_degree 2 training.local_batch_size 8 "
    "parallelism.pipeline_parallel_microbatch_size 2 parallelism.pipeline_parallel_schedule "
)
_ALL_RANKS = ("--rank", "all-distinct")

_FOUR = ("--world-size", "4")
_ACCELERATE = ("accelerate", "launch", "--num_processes", "4")
_DEEPSPEED = ("deepspeed", "--num_gpus", "4")

CASES = (
    Case("transformers Trainer", "transformers", "DDP", (*_FOUR, "hf_trainer.py", "ddp"),
         _REPLICATED, 4 * _ALL),
    Case("transformers Trainer", "transformers", "FSDP2, cpu_ram_efficient_loading",
         (*_FOUR, "hf_trainer.py", "fsdp2"), _FSDP2, _ALL),
    Case("accelerate", "accelerate", "DDP", (*_ACCELERATE, "with_accelerate.py", "ddp"),
         _REPLICATED, 4 * _ALL),
    Case("accelerate", "accelerate", "FSDP1", (*_ACCELERATE, "with_accelerate.py", "fsdp1"),
         _FSDP1),
    Case("accelerate", "accelerate", "FSDP2, cpu_ram_efficient_loading",
         (*_ACCELERATE, "with_accelerate.py", "fsdp2"), _FSDP2, _ALL),
    Case("Lightning", "lightning", "DDP", (*_FOUR, "with_lightning.py", "ddp"), _REPLICATED,
         4 * _ALL),
    Case("Lightning", "lightning", "FSDP1", (*_FOUR, "with_lightning.py", "fsdp"), _FSDP1),
    Case("Lightning", "lightning", "FSDP2 2 x tensor 2 (ModelParallelStrategy)",
         (*_FOUR, "with_lightning.py", "tp"),
         {"all_gather": 2 * (2 * _SPLIT_MLP - _EDGE), "reduce_scatter": 2 * _SPLIT_MLP,
          "all_reduce": 3 * _LAYERS * _ACTIVATIONS}, tokens=2 * _TOKENS),
    Case("DeepSpeed", "deepspeed", "ZeRO 1", (*_DEEPSPEED, "with_deepspeed.py", "--stage", "1"),
         {"all_gather": 2 * _ALL, "all_reduce": 2 * _ALL}),
    Case("DeepSpeed", "deepspeed", "ZeRO 2", (*_DEEPSPEED, "with_deepspeed.py", "--stage", "2"),
         {"all_gather": 2 * _ALL, "all_reduce": 2 * _ALL}),
    Case("DeepSpeed", "deepspeed", "ZeRO 3", (*_DEEPSPEED, "with_deepspeed.py", "--stage", "3"),
         {"all_gather": 2 * (_ALL - _NORMS), "reduce_scatter": 2 * _ALL}),
    Case("DeepSpeed", "deepspeed", "ZeRO 2, optimizer offloaded to the host",
         (*_DEEPSPEED, "with_deepspeed.py", "--stage", "2", "--offload"),
         {"all_gather": 2 * _ALL, "all_reduce": 2 * _ALL}),
    Case("TRL", "trl", "DDP (SFTTrainer)", (*_FOUR, "with_trl.py", "ddp"), _REPLICATED, 4 * _ALL),
    Case("TRL", "trl", "FSDP2 (SFTTrainer)", (*_FOUR, "with_trl.py", "fsdp2"), _FSDP2, _ALL),
    Case("litgpt", "litgpt", "FSDP1 (pretrain)", (*_FOUR, "with_litgpt.py"), _FSDP1,
         _ALL // 2),
    Case("torchtune", "torchtune", "FSDP2 (recipe full_finetune_distributed)",
         (*_FOUR, "with_torchtune.py"), _fsdp(_ALL), _ALL // 2),  # the root's parameters too
    Case("Megatron-Core", "megatron-core", "tensor 2, distributed optimizer",
         (*_FOUR, "with_megatron_core.py", "--tp", "2"),
         {"all_gather": _MEGATRON_TP, "reduce_scatter": _MEGATRON_TP,
          "all_reduce": (4 * _LAYERS + 2) * _ACTIVATIONS}, tokens=2 * _TOKENS),
    Case("Megatron-Core", "megatron-core", "pipeline 2, 4 micro-batches, distributed optimizer",
         (*_FOUR, "--rank", "all-distinct", "with_megatron_core.py", "--pp", "2",
          "--micro-batches", "4"),
         {"all_gather": _MEGATRON_STAGE, "reduce_scatter": _MEGATRON_STAGE,
          "send_recv": 5 * _ACTIVATIONS}, tokens=2 * 4 * _TOKENS),
    _titan("FSDP2", "", _TITAN_FSDP, _ALL),
    _titan("HSDP 2 x 2", "parallelism.data_parallel_replicate_degree 2",
           {**_TITAN_FSDP, "all_reduce": 2 * _ALL}, 2 * _ALL),
    _titan("FSDP2 2 x tensor 2", "parallelism.tensor_parallel_degree 2",
           {"all_gather": 2 * (_TITAN_TP + _LAYERS * _TITAN_LAYER + _TITAN_TABLE // 2)
            + (4 * _LAYERS + 2) * _ACTIVATIONS,
            "reduce_scatter": 4 * _TITAN_TP + (4 * _LAYERS + 2) * _ACTIVATIONS},
           2 * _TITAN_TP, 2 * _TOKENS),
    _titan("FSDP2 2 x context 2", "parallelism.context_parallel_degree 2",
           {"all_gather": _TITAN_FSDP["all_gather"] + 4 * _LAYERS * _ACTIVATIONS,
            "reduce_scatter": 4 * _ALL, "all_to_all": 4 * _LAYERS * _ACTIVATIONS},
           _ALL, 2 * _TOKENS),
    _titan("FSDP2 2 x pipeline 2, interleaved", _TITAN_PIPELINE + "Interleaved1F1B",
           _titan_stages(_TITAN_INTERLEAVED, 3), 2 * (_TITAN_INTERLEAVED + _WIDTH), None,
           ranks=_ALL_RANKS),
    _titan("FSDP2 2 x pipeline 2, zero bubble (ZBV)", _TITAN_PIPELINE + "ZBVZeroBubble",
           _titan_stages(_TITAN_ZBV, 2), 2 * 3 * _BLOCK, None, ranks=_ALL_RANKS),
    _titan("FSDP2, expert 2", "model.name mixture parallelism.expert_parallel_degree 2",
           {"all_gather": 2 * (2 * _TITAN_MIXTURE + _EDGE + _TITAN_TABLE),
            "reduce_scatter": 4 * (_TITAN_MIXTURE + _EDGE),
            "all_to_all": 4 * _LAYERS * _ACTIVATIONS},
           _EDGE + _LAYERS * (_TITAN_COMMON + 2 * _TITAN_EXPERTS)),
    _titan("FSDP2, float8 (torchao)", "model.converters quantize.linear.float8", _TITAN_FSDP, _ALL),
)  # fmt: skip

#: Frameworks without a row of their own, and why.
NOT_RUN = {
    "Composer, llm-foundry": "cannot be imported: they need torchvision with its compiled "
    "operators, and pip has none for a CPU build of this torch",
    "nanotron": "modules of its release 0.4 import each other in a circle, without a forecast too",
    "Ray Train": "its workers are actors of a Ray cluster, processes that no forecast sees; run "
    "the training function under torchrun",
}


@dataclass(frozen=True)
class Row:
    """How a case came out."""

    framework: str
    version: str
    parallelism: str
    outcome: str
    collectives: str
    collectives_by_hand: str
    parameters: str
    parameters_by_hand: str
    tokens: str
    tokens_by_hand: str
    reason: str = ""


def tried(case: Case) -> Row:
    """Runs a case; ok where all is as counted by hand."""
    version = importlib.metadata.version(case.package)
    with tempfile.TemporaryDirectory(prefix="framework-") as folder:
        figures, recording = (Path(folder, name) for name in ("figures.json", "recording"))
        place = next(i for i, word in enumerate(case.command) if word.endswith(".py"))
        words = (*case.command[:place], str(PROGRAMS / case.command[place]),
                 *case.command[place + 1 :])  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "neusight", "run", "--gpu", "H100", "--quiet", "--json",
             str(figures), "--save", str(recording), *words],
            capture_output=True, text=True, check=False, cwd=folder, timeout=_LIMIT_S,
            env={**os.environ, "PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1"},
        )  # fmt: skip
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or [str(done.returncode)])[-1]
            return _row(case, version, {}, None, 0, reason)
        document = json.loads(figures.read_text())
        return _row(case, version, _collectives(recording), _parameters(document),
                    int(document["all_ranks"]["tokens_per_step"] or 0), "")  # fmt: skip


def _row(
    case: Case,
    version: str,
    found: dict[str, int],
    parameters: int | None,
    tokens: int,
    reason: str,
) -> Row:
    is_same = (
        found == case.collectives
        and case.tokens in (None, tokens)
        and case.parameters in (None, parameters)
    )
    outcome = "failed" if reason else "ok" if is_same else "difference"
    return Row(
        case.framework, version, case.parallelism, outcome, _text(found), _text(case.collectives),
        str(parameters or ""), str(case.parameters or ""), str(tokens or ""),
        str(case.tokens or ""), reason,
    )  # fmt: skip


def _text(collectives: dict[str, int]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in sorted(collectives.items()))


def _collectives(recording: Path) -> dict[str, int]:
    """Bytes of the first rank's steady step, by kind."""
    import neusight
    from neusight.predictors.kernel import CollectiveSize
    from neusight.timeline.steady import kernels_of, steady_step_of

    timeline = neusight.Forecast.load(recording).timeline
    step = steady_step_of(timeline)
    assert step is not None
    found: Counter[str] = Counter()
    for span in kernels_of(step, timeline):
        size = span.kernel.size
        if isinstance(size, CollectiveSize) and size.num_bytes > _SMALL:
            found[span.kernel.name] += size.num_bytes
    return dict(found)


def _parameters(document: dict[str, Any]) -> int:
    alive = document["memory"]["alive"]
    return sum(item["num_bytes"] for item in alive if item["kind"] == "parameter")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="only those with this in their title")
    parser.add_argument("--csv", type=Path, help="write the table there, with the rows it has")
    options = parser.parse_args()
    rows: dict[tuple[str, str], Row] = {}
    if options.csv:
        rows = {(row["framework"], row["parallelism"]): Row(**row)
                for row in read_table(options.csv)}  # fmt: skip
    for case in CASES:
        if options.only.lower() not in f"{case.framework}: {case.parallelism}".lower():
            continue
        try:
            importlib.metadata.version(case.package)
        except importlib.metadata.PackageNotFoundError:
            print(f"not installed  {case.framework}")
            continue
        row = tried(case)
        rows[row.framework, row.parallelism] = row
        print(*astuple(row), sep=" | ", flush=True)
        if options.csv:
            _write(options.csv, rows)
    rows = {key: row for key, row in rows.items() if row.outcome != "not run"}
    for framework, reason in NOT_RUN.items():
        print(f"not run  {framework}: {reason}")
        rows[framework, ""] = Row(framework, "", "", "not run", *[""] * 6, reason)
    if options.csv:
        _write(options.csv, rows)


def _write(path: Path, rows: dict[tuple[str, str], Row]) -> None:
    columns = (field.name for field in fields(Row))
    write_table(path, columns, (astuple(rows[key]) for key in sorted(rows)))


if __name__ == "__main__":
    main()
