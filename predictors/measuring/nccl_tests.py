"""What nccl-tests print (all_reduce_perf and the like), as measurements of a cluster."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from neusight.predictors.clusters.topology import Curve
from neusight.predictors.errors import CalibrationError
from neusight.predictors.files import read_bytes, shown

#: Programs of nccl-tests, and what they run. Sizes are a rank's full buffer.
_PROGRAMS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "sendrecv": "send_recv",
    "reduce": "reduce",
}

#: "#  Rank  0 Group  0 Pid   1887 on   worker-1 device  0 [0x8d] NVIDIA H100 80GB HBM3"; the group
#: is newer.
_DEVICE = re.compile(
    r"#\s+Rank\s+([0-9]{1,7})\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s+(.*\S)"
)
_STARTING = re.compile(r"#\s*Collective test starting:\s*(\w+)_perf")
_BEGIN = re.compile(r"#\s*nThread\s")
_COUNT = re.compile(r"[0-9]{1,15}")
#: Words that every row of the table has more of: size, count, type and what follows.
_LEAST_WORDS = 4
_COLUMNS = re.compile(r"#\s+size\s+count\s")

#: Bytes of a file that is read at most: a sweep is a few kilobytes.
_MOST_BYTES = 16 * 2**20

#: Sizes that a run must have: two give a base and a bandwidth.
_LEAST_SIZES = 2

_MOST_SIZE = 2**50
_MOST_US = 1e9


@dataclass(frozen=True)
class NcclRun:
    """One run of a program of nccl-tests: its times, and the GPUs by their driver's name."""

    curve: Curve
    gpu: str


def is_nccl_output(path: str | Path) -> bool:
    """Whether the file begins as the output of nccl-tests does, or holds its table."""
    if not Path(path).is_file():
        return False
    with Path(path).open("rb") as file:
        text = file.read(2**20).decode("utf-8", errors="replace")
    return any(_BEGIN.match(line) or _COLUMNS.match(line) for line in text.splitlines())


def read_nccl_output(path: str | Path) -> list[NcclRun]:
    """The runs that a file holds; CalibrationError says what cannot be used, and what to do."""
    try:
        data = read_bytes(path, most=_MOST_BYTES)
    except (OSError, ValueError) as error:
        raise CalibrationError(
            f"The output of nccl-tests {path} cannot be read: {error}."
        ) from error
    lines = data.decode("utf-8", errors="replace").splitlines()
    runs = [_Printed(str(path), part) for part in _parts(lines)]
    found = [run.value() for run in runs if run.rows]
    if not found:
        raise CalibrationError(
            f"{path} holds no times of nccl-tests. Run all_reduce_perf to its end and keep all "
            "that it prints."
        )
    return found


def _parts(lines: Sequence[str]) -> Iterator[list[str]]:
    """The lines of each run: from where it states its threads to where the next does."""
    part: list[str] = []
    for line in lines:
        if _BEGIN.match(line) and any(_is_row(other) for other in part):
            yield part
            part = []
        part.append(line)
    yield part


def _is_row(line: str) -> bool:
    words = line.split()
    return len(words) > _LEAST_WORDS and all(map(_COUNT.fullmatch, words[:2]))


class _Printed:
    """The lines of one run, and what they say."""

    def __init__(self, source: str, lines: Sequence[str]) -> None:
        self.source = source
        self.lines = lines
        self.rows = [line.split() for line in lines if _is_row(line)]
        head = next((line for line in lines if _COLUMNS.match(line)), "")
        self.columns = head.lstrip("#").split()

    def value(self) -> NcclRun:
        """All of it; CalibrationError."""
        devices = [found for line in self.lines if (found := _DEVICE.match(line))]
        ranks = {int(found[1]) for found in devices}
        if len(ranks) < 2 or ranks != set(range(len(devices))):
            raise self._error(
                f"it ran on {len(devices)} GPUs of ranks {shown(sorted(ranks))}, which are no "
                "group. Build nccl-tests with MPI=1 and start one process a GPU, or use -g"
            )
        of_host = Counter(found[2] for found in devices)
        if len(set(of_host.values())) > 1:
            raise self._error(f"its hosts run different numbers of GPUs ({shown(dict(of_host))})")
        points = self._points()
        curve = Curve(self._op(len(devices)), len(devices), len(of_host), points)
        return NcclRun(curve, devices[0][3])

    def _points(self) -> tuple[tuple[int, float], ...]:
        """Sizes and times, out of place; of a size that stands twice the shorter one."""
        if "time" not in self.columns:
            raise self._error("its table has no column 'time'")
        at = self.columns.index("time")
        found: dict[int, float] = {}
        for row in self.rows:
            size, time_us = int(row[0]), self._number(row, at)
            if size and time_us > 0.0:
                found[size] = min(time_us, found.get(size, time_us))
        if len(found) < _LEAST_SIZES:
            raise self._error("it has times of fewer than two sizes; use -b 64K -e 1G -f 4")
        return tuple(sorted(found.items()))

    def _number(self, row: Sequence[str], at: int) -> float:
        try:
            value = float(row[at])
        except (IndexError, ValueError):
            value = -1.0
        if not 0.0 <= value <= _MOST_US or int(row[0]) > _MOST_SIZE:
            raise self._error(
                f"the row of {row[0][:20]} bytes has the time {shown(row[at : at + 1])}"
            )
        return value

    def _op(self, num_ranks: int) -> str:
        """What was run: as it says (newer versions), by the file's name, or, of an all-reduce, by
        the ratio of its two bandwidths."""
        for line in self.lines:
            found = _STARTING.match(line)
            if found is not None and found[1] in _PROGRAMS:
                return _PROGRAMS[found[1]]
        name = Path(self.source).name
        for program, op in _PROGRAMS.items():
            if program in name:
                return op
        if self._is_all_reduce(num_ranks):
            return "all_reduce"
        raise self._error(
            "it does not say which collective it ran. Name the file after the program, as "
            f"{next(iter(_PROGRAMS))}_perf.txt"
        )

    def _is_all_reduce(self, num_ranks: int) -> bool:
        """Nothing else that reduces, to no root, has more bus than algorithm bandwidth."""
        values = max(self.rows, key=lambda row: int(row[0]))
        # Out of place comes first.
        row = dict(reversed(list(zip(self.columns, values, strict=False))))
        try:
            ratio = float(row["busbw"]) / float(row["algbw"])
        except (KeyError, ValueError, ZeroDivisionError):
            return False
        reduces = row.get("redop", "none") != "none" and row.get("root", "-1") == "-1"
        return reduces and ratio > _LEAST_PASSES * (num_ranks - 1) / num_ranks

    def _error(self, why: str) -> CalibrationError:
        return CalibrationError(f"The output of nccl-tests {self.source} cannot be used: {why}.")


#: Passes over the data from which it is an all-reduce, which has 2; a reduce-scatter has 1.
_LEAST_PASSES = 1.5
