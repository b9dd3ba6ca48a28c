"""Shows that a change moved code and nothing else: thirty commands before and after it.

    python benchmarks/same_bytes.py [REVISION]

Builds the package as it was at REVISION (default: HEAD, so what is not committed yet is compared),
runs each command with that package and with this checkout's, and compares what each prints and
writes, byte for byte: recordings, figures as JSON, traces, Chakra, HTML, Markdown and JUnit.
Profiles are read where they lie beside the checkout.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_TRACES = ROOT.parent / "shared" / "traces"
_V100_PROFILE = _TRACES / "v100__resnet50_train_worker0.1623143089861.pt.trace.json.gz"
_H100_PROFILE = _TRACES / "h100__gaunernst_bert-small-uncased__1016001.json.gz"
#: What a server's forecasts read: a small Llama.
_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 16,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}
#: Each reads what the ones before it wrote: `{examples}` and the profiles lie outside.
COMMANDS = """
run --gpu H100 --host profiled --save gpt2 --html gpt2.html {examples}/train_gpt2.py
run --gpu V100 --json resnet.json --trace resnet_traces --save resnet {examples}/train_resnet50.py
run --gpu T4 --steps 3 --json lstm.json --html lstm.html --trace lstm {examples}/train_lstm.py
run --gpu L40S --json dcgan.json --trace dcgan {examples}/train_dcgan.py
run --gpu B200 --max-memory 12 --json bert.json --save bert {examples}/train_bert.py
run --gpu "RTX 4090" --trace hf --html hf.html {examples}/train_gpt2_hf.py
run --gpu A100 --explain gemm --predictor roofline --save gpt2_a100 {examples}/train_gpt2.py
run --gpu H100 --world-size 2 --rank 0,1 --trace ddp {examples}/train_ddp.py --layers 2
run --gpu H100 --world-size 4 --rank 0,1 --chakra chakra {examples}/train_fsdp.py --size tiny
run --gpu H100 --json compiled.json --trace compiled {examples}/train_gpt2_compiled.py --size tiny
run --gpu H100 --gpu T4 --price H100=2,T4=0.5 {examples}/train_dcgan.py
run --gpu A100 --sweep batch=16,32 {examples}/train_lstm.py
run --gpu H100 --save generation {examples}/generate_llama.py --layers 2 --tokens 9
check --gpu A100 --baseline base.json --update {examples}/train_lstm.py
check --gpu A100 --baseline base.json --json ok.json {examples}/train_lstm.py
check --gpu A100 --baseline base.json --quiet --junit junit.xml {examples}/train_lstm.py
check --gpu A100 --baseline base.json --samples 7 --markdown check.md {examples}/train_lstm.py
compare gpt2 gpt2_a100 --json compared.json --html compared.html --markdown compared.md
compare resnet bert --gpu L4
compare resnet {v100_profile} --json profile.json
plan --gpu A100,L4 --sweep batch=64,128 --jobs 1 --json plan.json {examples}/train_lstm.py
plan --gpu H100 --serve model.json --rate 4 --slo ttft=500ms --json deployed.json
serve --gpu H100 --rate 2,8 --requests 40 --json serve.json --html serve.html model.json
serve --gpu L4 --quantization fp8 --users 4 --requests 20 --trace serve.trace.json model.json
serve --gpu A100 generation
carry --to A100 --json carried.json --trace carried {v100_profile}
calibrate --out calibration.json {h100_profile}
run --gpu H100 --calibration calibration.json {examples}/train_bert.py
gpus
gpus B200
""".strip().splitlines()
#: Exit codes of a command that did what it was asked to: 1 is a regression, found by a check.
_DONE = (b"0", b"1")
#: Lines that differ from one run to the next: the time that recording took, where a trace lies, the
#: digest of neusight's code.
_MEASURED = re.compile(
    rb'^.*( CPU\b|pt\.trace|"trace":|(in|about) \d+(\.\d+)? s\b|^W\d{4} |"code": ").{,200}$',
    re.MULTILINE,
)


def build(source: Path, target: Path) -> None:
    """The package in `source` as a user would install it, below `target`."""
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"),
            *("--no-build-isolation", "--disable-pip-version-check", "--target", str(target)),
            str(source),
        ],
        check=True,
        cwd=target.parent,
    )


def written(package: Path, folder: Path) -> Iterator[dict[str, bytes]]:
    """What each command printed and wrote, by the name of the output."""
    folder.mkdir(parents=True)
    (folder / "model.json").write_text(json.dumps(_MODEL))
    environment = {
        **os.environ,
        "PYTHONPATH": str(package),
        "OMP_NUM_THREADS": "1",
        "SOURCE_DATE_EPOCH": "0",  # numpy reads a number
        "COLUMNS": "100",
        "XDG_CACHE_HOME": str(folder.parent / "cache"),
    }
    places = {
        "examples": ROOT / "examples",
        "v100_profile": _V100_PROFILE,
        "h100_profile": _H100_PROFILE,
    }
    known = {folder / "model.json"}
    for line in COMMANDS:
        ran = subprocess.run(
            [sys.executable, "-m", "neusight", *shlex.split(line.format(**places))],
            cwd=folder,
            env=environment,
            capture_output=True,
            check=False,
        )
        found = {"stdout": ran.stdout, "stderr": ran.stderr, "exit code": b"%d" % ran.returncode}
        for path in sorted(set(folder.rglob("*")) - known):
            known.add(path)
            if path.is_file() and "tfevents" not in path.name:  # TensorBoard dates those
                data = path.read_bytes()
                named = str(path.relative_to(folder))
                found[named] = gzip.decompress(data) if path.suffix == ".gz" else data
        yield {name: _MEASURED.sub(b"", data) for name, data in found.items()}


def compare(before: dict[str, bytes], after: dict[str, bytes]) -> list[str]:
    """The outputs that are not the same, and where they begin to differ; a command that fails."""
    different = []
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name, b""), after.get(name, b"")
        if name == "exit code" and new not in _DONE:
            error = after["stderr"].decode(errors="replace").strip()[-200:]
            different.append(f"exit code {new.decode()}: nothing was compared: {error}")
        elif old != new:
            start = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), 0)
            at = slice(max(0, start - 60), start + 60)
            different.append(f"{name}: {old[at]!r} became {new[at]!r}")
    return different


def main() -> int:
    """Runs and prints a line for each program; 1 where a byte differs or a command fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("revision", nargs="?", default="HEAD")
    revision = parser.parse_args().revision
    with tempfile.TemporaryDirectory(prefix="neusight-") as temporary:
        home = Path(temporary)
        source, old, new = home / "source", home / "old", home / "new"
        git = ["git", "-C", str(ROOT)]
        archive = subprocess.run([*git, "archive", revision], check=True, capture_output=True)
        source.mkdir()
        subprocess.run(["tar", "-x", "-C", str(source)], input=archive.stdout, check=True)
        build(source, old)
        current = home / "current"
        listed = subprocess.run(
            [*git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            check=True,
            capture_output=True,
        ).stdout.decode()
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file() and not name.startswith(("tests/", "benchmarks/")):
                target = current / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes((ROOT / name).read_bytes())
        build(current, new)
        num_different = 0
        outputs = [
            written(package, home / f"{package.name}-out" / "work") for package in (old, new)
        ]
        with ThreadPoolExecutor() as pool:
            for line in COMMANDS:
                before, after = pool.map(next, outputs)
                different = compare(before, after)
                num_different += len(different)
                size = sum(map(len, after.values()))
                digest = hashlib.sha256(b"".join(after[name] for name in sorted(after)))
                verdict = "\n    ".join(["DIFFERENT", *different]) if different else "the same"
                code = after["exit code"].decode()
                shown = f"exit code {code}, {len(after) - 1} outputs, {size / 1e6:.1f} MB"
                print(f"{line}\n    {shown}, {digest.hexdigest()[:12]}: {verdict}", flush=True)
    return int(num_different > 0)


if __name__ == "__main__":
    raise SystemExit(main())
