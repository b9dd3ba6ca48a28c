"""What a recording costs: a command from cold to verdict, training steps, a trace; and a ratchet.

    python benchmarks/recording_speed.py [NAME ...] [--json FILE]
    python benchmarks/recording_speed.py --update     stores better ratios; worse with --worse

Seconds are CPU time (user and system, of all processes of a command), the best of several, so that
what else runs on the machine counts little. Each cost is kept as a ratio to other work done beside
it, which depends little on the machine: exit code 1 where one grew by more than the tolerance.

- command: `neusight run` of GPT-2 small over `import torch, torch._dynamo` in a process of its own.
- operators: GPT-2 small with the operators recorded that torch's dispatcher calls, over without:
  the first step, and six of them, of which two or three are followed.
- trace: writing the trace of that forecast (60,000 events, gzipped) over reading it as JSON.
- models: a step (first, and median of the repeated) over the same on meta tensors without neusight;
  with the seconds from the end of the block to its figures, and the peak resident memory.

Aims: command 1.3; GPT-2 large under 1.0 s first and 0.5 s repeated, Llama 8B under 2.5 s and 2 GB,
on two cores.
"""

from __future__ import annotations

import argparse
import compileall
import gzip
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[1]
STORED = Path(__file__).with_name("recording_speed_scores.json")
STEPS = 6
#: Runs of a command and of a trace, of which the best counts.
RUNS = 5
#: What a ratio may grow by before it counts as worse, a share: runs on a loaded machine differ so.
TOLERANCE = 0.15


def gpt2_large() -> tuple[nn.Module, int]:
    """Hugging Face GPT-2 large and its vocabulary."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=36, n_head=20, n_embd=1280, use_cache=False)
    return GPT2LMHeadModel(config), config.vocab_size


def llama_8b() -> tuple[nn.Module, int]:
    """Llama 3 8B in bf16 and its vocabulary."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        use_cache=False,
    )
    return LlamaForCausalLM(config).to(torch.bfloat16), config.vocab_size


MODELS = {"gpt2_large": gpt2_large, "llama_8b": llama_8b}


def train(model: nn.Module, vocabulary: int, device: str) -> list[float]:
    """Seconds of each step."""
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(vocabulary, (1, 1024), device=device)
    seconds = []
    for _ in range(STEPS):
        start = time.process_time()
        model(input_ids=tokens, labels=tokens).loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.process_time() - start)
    return seconds


def on_meta(make: Callable[[], tuple[nn.Module, int]]) -> list[float]:
    """The same steps on meta tensors, without neusight."""
    from transformers import masking_utils

    # It looks at the values of position_ids, which meta tensors do not have.
    masking_utils.find_packed_sequence_indices = lambda position_ids: None
    with torch.device("meta"):
        model, vocabulary = make()
    return train(model, vocabulary, "meta")


def in_forecast(make: Callable[[], tuple[nn.Module, int]]) -> tuple[list[float], float]:
    """The steps inside a forecast, and the seconds to its figures afterwards."""
    import neusight

    with neusight.forecast_on("B300") as forecast:
        model, vocabulary = make()
        seconds = train(model.cuda(), vocabulary, "cuda")
    start = time.process_time()
    forecast.to_json()
    return seconds, time.process_time() - start


def measure(name: str) -> dict[str, float]:
    """One model's row, in this process."""
    recorded, figures = in_forecast(MODELS[name])
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    plain = on_meta(MODELS[name])
    repeated, meta = statistics.median(recorded[1:]), statistics.median(plain[1:])
    return {
        "first_s": round(recorded[0], 3),
        "repeated_s": round(repeated, 3),
        "meta_s": round(meta, 3),
        "ratio_to_meta": round(repeated / meta, 2),
        "figures_s": round(figures, 3),
        "peak_resident_gib": round(resident, 2),
    }


def cpu_seconds(command: list[str], folder: Path) -> float:
    """What a command and its processes take, where bytecode is there."""
    env = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, env=env, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure_command() -> dict[str, float]:
    """From cold to verdict, beside the imports of torch and its compiler."""
    for folder in ("predictors", "neusight_hooks", "integrations"):
        compileall.compile_dir(ROOT / folder, quiet=1)
    script = str(ROOT / "examples" / "train_gpt2.py")
    forecast = [sys.executable, "-m", "neusight", "run", "--gpu", "H100", script]
    imports = [sys.executable, "-c", "import torch, torch._dynamo"]
    with tempfile.TemporaryDirectory() as folder:
        pairs = [
            (cpu_seconds(forecast, Path(folder)), cpu_seconds(imports, Path(folder)))
            for _ in range(RUNS)
        ]
    cold, plain = (min(seconds) for seconds in zip(*pairs, strict=True))
    return {
        "cold_s": round(cold, 2),
        "imports_s": round(plain, 2),
        "ratio_to_imports": round(cold / plain, 2),
    }


def measure_operators() -> dict[str, float]:
    """Steps of GPT-2 small with the operators that torch's dispatcher calls, beside without."""
    runs: dict[bool, list[list[float]]] = {True: [], False: []}
    train_small(with_operators=True)  # what torch does once
    for _ in range(RUNS):
        for with_operators in runs:
            runs[with_operators].append(train_small(with_operators=with_operators))
    recorded, plain = ([min(step) for step in zip(*runs[kind], strict=True)] for kind in runs)
    return {
        "first_s": round(recorded[0], 3),
        "ratio_of_first": round(recorded[0] / plain[0], 2),
        "ratio_of_all": round(sum(recorded) / sum(plain), 2),
    }


def train_small(*, with_operators: bool) -> list[float]:
    """Seconds of each step in a forecast."""
    from transformers import GPT2Config, GPT2LMHeadModel

    from neusight.forecast import forecast_options
    from neusight.session import Session, SessionOptions

    config = GPT2Config(use_cache=False)
    options = SessionOptions(forecast_options("H100"), with_operators=with_operators)
    with Session(options), torch.device("cuda"):
        return train(GPT2LMHeadModel(config), config.vocab_size, "cuda")


def measure_trace() -> dict[str, float]:
    """Writing the trace of that forecast, beside reading it."""
    from neusight.forecast import Forecast

    with tempfile.TemporaryDirectory() as name:
        saved, path = Path(name) / "recording.json", Path(name) / "trace.json.gz"
        script = str(ROOT / "examples" / "train_gpt2.py")
        command = [sys.executable, "-m", "neusight", "run", "--gpu", "H100"]
        cpu_seconds([*command, "--save", str(saved), script], Path(name))
        forecast = Forecast.load(saved)
        assert forecast.memory is not None and forecast.timeline.steps
        write = best(lambda: forecast.export_chrome_trace(path))
        text = gzip.decompress(path.read_bytes())
        read = best(lambda: json.loads(text))
    return {
        "write_s": round(write, 3),
        "read_s": round(read, 3),
        "ratio_to_reading": round(write / read, 2),
    }


def best(work: Callable[[], object]) -> float:
    """CPU seconds of the quickest of several calls."""
    seconds = []
    for _ in range(RUNS):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return min(seconds)


def measured(name: str) -> dict[str, float]:
    """A row; of what runs here, in a process of its own, whose memory is its own too."""
    if name == "command":
        return measure_command()
    if name == "trace":
        return measure_trace()
    command = [sys.executable, __file__, "--one", name]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    row: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return row


def ratios(rows: dict[str, dict[str, float]]) -> dict[str, float]:
    """What the ratchet holds."""
    return {
        f"{name} {figure}": value
        for name, row in rows.items()
        for figure, value in row.items()
        if figure.startswith("ratio_")
    }


def worse(now: dict[str, float], stored: dict[str, float]) -> list[str]:
    """What grew by more than the tolerance, in words."""
    return [
        f"{name}: {value:.2f}, {stored[name]:.2f} is stored"
        for name, value in now.items()
        if name in stored and value > stored[name] * (1 + TOLERANCE)
    ]


def main() -> int:
    """Prints a row each; 1 where one got worse."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    names = ("command", "operators", "trace", *MODELS)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    parser.add_argument("--json", type=Path, help="write all figures there")
    parser.add_argument("--update", action="store_true", help="store the ratios")
    parser.add_argument("--worse", action="store_true", help="store worse ones too")
    parser.add_argument("--one", choices=(*MODELS, "operators"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        own = measure_operators() if options.one == "operators" else measure(options.one)
        print(json.dumps(own))
        return 0
    unknown = set(options.names) - set(names)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: choose from {', '.join(names)}")
    rows: dict[str, dict[str, float]] = {}
    for name in options.names or names:
        rows[name] = measured(name)
        print(name, rows[name], flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")
    now, stored = ratios(rows), json.loads(STORED.read_text()) if STORED.exists() else {}
    lines = worse(now, stored)
    print("\n".join(["worse:", *lines]) if lines else "nothing got worse")
    if options.update and (not lines or options.worse):
        STORED.write_text(json.dumps({**stored, **now}, indent=1, sort_keys=True) + "\n")
        return 0
    return int(bool(lines))


if __name__ == "__main__":
    raise SystemExit(main())
