"""What forecasts of Llama 3 on many ranks cost: CPU seconds, memory, and the step that comes out.

python benchmarks/scale.py                 all sizes and numbers of ranks
python benchmarks/scale.py 8b 64,1024      one size, some numbers of ranks

Each case is `neusight run` of examples/train_fsdp.py in a process of its own: whole command, with
imports, setup and two training steps (one steady). 405B splits its layers over the eight GPUs of a
node. CPU seconds are those of the process and of what it started; a loaded machine makes them more.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "examples" / "train_fsdp.py"

#: Arguments of the example by size, and numbers of ranks that hold the model.
SIZES = {
    "8b": ((), (8, 64, 1024, 16384)),
    "70b": ((), (64, 1024, 16384)),
    "405b": (("--tp", "8"), (512, 1024, 16384)),
}

#: What the aim is, in CPU seconds of a quiet machine.
AIM_S = {"8b": 20, "70b": 60, "405b": 90}

KIB = 1024


@dataclass(frozen=True)
class Cost:
    """What one case took, and what it said."""

    cpu_s: float
    peak_bytes: int
    step_ms: float
    num_ops: int
    fits: str


def cost_of(size: str, ranks: int, gpu: str) -> Cost:
    """One case in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "forecast.json")
        words = [
            sys.executable, "-m", "neusight", "run", "--gpu", gpu, "--quiet", "--steps", "1",
            "--world-size", str(ranks), "--json", str(report),
            str(EXAMPLE), "--size", size, "--checkpoint", *SIZES[size][0],
        ]  # fmt: skip
        silent = (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)
        process = os.posix_spawn(sys.executable, words, os.environ, file_actions=[silent])
        _, status, used = os.wait4(process, 0)
        if status:
            raise SystemExit(f"{size} on {ranks} ranks failed")
        found = json.loads(report.read_text())
    return Cost(
        used.ru_utime + used.ru_stime,
        used.ru_maxrss * KIB,
        found["step_latency_us"]["median"] / 1000,
        found["num_ops"],
        found["memory_verdict"],
    )


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="What forecasts of many ranks cost.")
    parser.add_argument("size", nargs="?", choices=SIZES)
    parser.add_argument("ranks", nargs="?", help="numbers of ranks, with commas")
    parser.add_argument("--gpu", default="H100")
    options = parser.parse_args(words)
    print(f"{'size':>5} {'ranks':>6} {'CPU s':>7} {'aim':>4} {'peak MiB':>9} {'ops':>6} "
          f"{'step ms':>9}  fits")  # fmt: skip
    for size in [options.size] if options.size else SIZES:
        chosen = options.ranks.split(",") if options.ranks else SIZES[size][1]
        for ranks in map(int, chosen):
            cost = cost_of(size, ranks, options.gpu)
            print(
                f"{size:>5} {ranks:>6} {cost.cpu_s:7.1f} {AIM_S[size]:>4} "
                f"{cost.peak_bytes / KIB**2:9.0f} {cost.num_ops:>6} {cost.step_ms:9.1f}  "
                f"{cost.fits}",
                flush=True,
            )


if __name__ == "__main__":
    main()
