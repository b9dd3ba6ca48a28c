"""Shows that a change moved code and nothing else: six programs forecast before and after it.

    python benchmarks/same_bytes.py [REVISION]

Builds the package as it was at REVISION (default: HEAD, so what is not committed yet is compared),
runs each program with that package and with this checkout's, and compares what each writes, byte
for byte: the recording, the figures as JSON, the trace, the HTML report and the printed summary.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Program, GPU and options: every room has its part, and several kinds of GPU.
PROGRAMS = (
    ("train_gpt2.py", "H100", ("--host", "profiled")),
    ("train_resnet50.py", "V100", ()),
    ("train_lstm.py", "T4", ("--steps", "3")),
    ("train_dcgan.py", "L40S", ()),
    ("train_bert.py", "B200", ("--max-memory", "12")),
    ("train_gpt2_hf.py", "RTX 4090", ()),
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


def written(
    package: Path, program: tuple[str, str, tuple[str, ...]], folder: Path
) -> dict[str, bytes]:
    """What one program's forecast wrote, by the name of the output."""
    script, gpu, options = program
    folder.mkdir()
    command = [
        *(sys.executable, "-m", "neusight", "run", "--gpu", gpu, *options),
        *("--json", "figures.json", "--trace", "trace", "--html", "report.html"),
        *("--save", "recording.json", str(ROOT / "examples" / script)),
    ]
    ran = subprocess.run(
        command,
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(package),
            "OMP_NUM_THREADS": "1",
            "SOURCE_DATE_EPOCH": "",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode not in (0, 1):
        raise SystemExit(f"{script} on {gpu} failed:\n{ran.stdout}{ran.stderr}")
    # The time that recording took is the one figure that is measured here.
    lines = [
        line for line in ran.stdout.splitlines() if " CPU" not in line and "pt.trace" not in line
    ]
    found = {"summary": "\n".join(lines).encode()}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "tfevents" not in path.name:  # TensorBoard dates those
            name = path.name.rpartition(".pt.trace")[1].lstrip(".") or path.name
            data = path.read_bytes()
            found[name] = gzip.decompress(data) if path.suffix == ".gz" else data
    found["figures.json"] = b"\n".join(
        line for line in found["figures.json"].splitlines() if b'"trace"' not in line
    )
    return found


def compare(before: dict[str, bytes], after: dict[str, bytes]) -> list[str]:
    """The outputs that are not the same, and where they begin to differ."""
    different = []
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name, b""), after.get(name, b"")
        if old != new:
            start = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), 0)
            at = slice(max(0, start - 60), start + 60)
            different.append(f"{name}: {old[at]!r} became {new[at]!r}")
    return different


def main() -> int:
    """Runs and prints a line for each program; 1 where a byte differs."""
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
        for number, program in enumerate(PROGRAMS):
            with ThreadPoolExecutor() as pool:
                runs = [
                    pool.submit(written, package, program, home / f"{package.name}{number}")
                    for package in (old, new)
                ]
            before, after = (run.result() for run in runs)
            different = compare(before, after)
            num_different += len(different)
            size = sum(map(len, after.values()))
            digest = hashlib.sha256(b"".join(after[name] for name in sorted(after))).hexdigest()
            verdict = "\n    ".join(["DIFFERENT", *different]) if different else "the same"
            print(f"{program[0]:20} {program[1]:10} {size / 1e6:6.1f} MB {digest[:12]}  {verdict}")
    return int(num_different > 0)


if __name__ == "__main__":
    raise SystemExit(main())
