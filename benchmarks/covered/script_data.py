"""Tiny data of a script, as a user would lay them beside it: nothing is downloaded."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

#: Writes what a script reads, below the folder that it is run in.
Maker = Callable[[Path], None]

_SEED = 5

#: Words of texts that only need to be read.
_WORDS = ("the", "a", "king", "queen", "said", "to", "of", "and", "night", "day", "O", "God")

#: Magic numbers of idx files (yann.lecun.com's format): unsigned bytes of 3 and of 1 dimension.
_IDX_IMAGES, _IDX_LABELS = 0x803, 0x801


def text(folder: Path, path: str, *, num_lines: int = 400, words_a_line: int = 12) -> None:
    """A text file of common words."""
    random = Random(_SEED)
    lines = (" ".join(random.choices(_WORDS, k=words_a_line)) for _ in range(num_lines))
    target = _parent(folder / path)
    target.write_text("\n".join(lines) + " !,.:;?'\n" + "O God, O God!\n", encoding="utf-8")


def token_ids(
    folder: Path, path: str, *, num_tokens: int = 20_000, num_distinct: int = 50_000
) -> None:
    """Token ids as uint16, one after the other (nanoGPT's train.bin)."""
    random = Random(_SEED)
    ids = [random.randrange(num_distinct) for _ in range(num_tokens)]
    _parent(folder / path).write_bytes(struct.pack(f"<{num_tokens}H", *ids))


def json_lines(folder: Path, path: str, rows: list[dict[str, object]]) -> None:
    """A file of JSON values, a line each."""
    _parent(folder / path).write_text("".join(json.dumps(row) + "\n" for row in rows))


def json_list(folder: Path, path: str, rows: list[dict[str, object]]) -> None:
    """A file of one JSON list."""
    _parent(folder / path).write_text(json.dumps(rows))


def file(folder: Path, path: str, content: str) -> None:
    """A file of a given content."""
    _parent(folder / path).write_text(content, encoding="utf-8")


def digits(folder: Path, path: str, *, num_train: int = 256, num_test: int = 64) -> None:
    """MNIST's four files in its own format, with random pixels, where torchvision looks."""
    random = Random(_SEED)
    for name, num in (("train", num_train), ("t10k", num_test)):
        images = struct.pack(">IIII", _IDX_IMAGES, num, 28, 28) + random.randbytes(num * 784)
        labels = struct.pack(">II", _IDX_LABELS, num) + bytes(i % 10 for i in range(num))
        raw = folder / path / "MNIST" / "raw"
        _parent(raw / f"{name}-images-idx3-ubyte").write_bytes(images)
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(labels)


def images(
    folder: Path, path: str, *, classes: tuple[str, ...] = ("",), num: int = 8, side: int = 300
) -> None:
    """JPEG files of random pixels, a folder for each class."""
    from PIL import Image

    random = Random(_SEED)
    for name in classes:
        for index in range(num):
            pixels = random.randbytes(side * side * 3)
            target = _parent(folder / path / name / f"{index:03}.jpg")
            Image.frombytes("RGB", (side, side), pixels).save(target)


def citations(folder: Path, path: str, *, num_papers: int = 2708, num_words: int = 1433) -> None:
    """A graph of Cora's own size in Cora's own format: words and a class of each paper, and who
    cites whom."""
    random = Random(_SEED)
    rows = []
    for paper in range(num_papers):
        words = "\t".join("01"[random.random() < 0.01] for _ in range(num_words))
        rows.append(f"{paper}\t{words}\tclass{paper % 7}\n")
    _parent(folder / path / "cora.content").write_text("".join(rows))
    pairs = (f"{paper}\t{random.randrange(num_papers)}\n" for paper in range(num_papers))
    (folder / path / "cora.cites").write_text("".join(pairs))


def python(folder: Path, code: str) -> None:
    """What a few lines of Python, run in the folder, write: a checkpoint, a tokenizer. They run
    on the CPU, without a forecast."""
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the data of a script could not be made: {done.stderr[-400:]}")


def _parent(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
