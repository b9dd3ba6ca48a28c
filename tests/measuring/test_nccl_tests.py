"""What nccl-tests print."""

from __future__ import annotations

from pathlib import Path

import pytest

from neusight.predictors.clusters.topology import Curve
from neusight.predictors.errors import CalibrationError
from neusight.predictors.measuring.nccl_tests import NcclRun, is_nccl_output, read_nccl_output

#: As version 2.13 prints it; rows are out of place, then in place.
NEWER = """\
# nThread 1 nGpus 1 minBytes 65536 maxBytes 4194304 step: 8(factor) warmup iters: 5 iters: 20
#
# Using devices
#  Rank  0 Group  0 Pid   1887 on   worker-1 device  0 [0x8d] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   1888 on   worker-1 device  1 [0x91] NVIDIA H100 80GB HBM3
#  Rank  2 Group  0 Pid   1885 on   worker-0 device  0 [0x8d] NVIDIA H100 80GB HBM3
#  Rank  3 Group  0 Pid   1886 on   worker-0 device  1 [0x91] NVIDIA H100 80GB HBM3
#
#                                                    out-of-place               in-place
#       size   count   type   redop    root     time   algbw   busbw #wrong     time   algbw
#        (B)    (elements)                      (us)  (GB/s)  (GB/s)            (us)  (GB/s)
       65536   16384  float     sum      -1    62.90    1.04    1.56      0    61.53    1.07
      524288  131072  float     sum      -1    90.10    5.82    8.73      0    61.53    8.52
     4194304 1048576  float     sum      -1    280.9    14.9    22.4      0    279.1    15.0
# Out of bounds values : 0 OK
"""

#: As version 2.0 printed it: no group, no root.
OLDER = """\
# nThread 1 nGpus 2 minBytes 8 maxBytes 64 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
# Using devices
#   Rank  0 Pid  93569 on ai-vtraining device  0 [0x86] Tesla T4
#   Rank  1 Pid  93569 on ai-vtraining device  1 [0xaf] Tesla T4
#                                                   out-of-place                in-place
#       size         count    type   redop     time   algbw   busbw  error     time   algbw
           8             2   float     sum    59.98    0.00    0.00  2e-07    56.81    0.00
          64            16   float     sum    60.98    1.00    1.00  2e-07    56.81    0.00
"""


def written(text: str, folder: Path, name: str = "out.txt") -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_sizes_times_and_the_group_are_read(tmp_path: Path) -> None:
    points = ((65536, 62.9), (524288, 90.1), (4194304, 280.9))

    found = read_nccl_output(written(NEWER, tmp_path))

    assert found == [NcclRun(Curve("all_reduce", 4, 2, points), "NVIDIA H100 80GB HBM3")]


def test_the_older_form_has_the_time_in_another_column(tmp_path: Path) -> None:
    (run,) = read_nccl_output(written(OLDER, tmp_path))

    assert run == NcclRun(Curve("all_reduce", 2, 1, ((8, 59.98), (64, 60.98))), "Tesla T4")


def test_the_program_says_what_ran_else_the_files_name(tmp_path: Path) -> None:
    sends = "# Collective test starting: sendrecv_perf\n" + NEWER
    shares = NEWER.replace("sum", "none")

    (stated,) = read_nccl_output(written(sends, tmp_path))
    (named,) = read_nccl_output(written(shares, tmp_path, "alltoall_perf.2nodes.log"))

    assert (stated.curve.op, named.curve.op) == ("send_recv", "all_to_all")


def test_a_file_holds_several_runs(tmp_path: Path) -> None:
    runs = read_nccl_output(written(NEWER + OLDER, tmp_path))

    assert [(run.curve.ranks, run.curve.nodes) for run in runs] == [(4, 2), (2, 1)]


def test_other_files_are_distinguished(tmp_path: Path) -> None:
    assert is_nccl_output(written(NEWER, tmp_path))
    assert not is_nccl_output(written('{"traceEvents": []}', tmp_path, "trace.json"))
    assert not is_nccl_output(tmp_path)
    assert not is_nccl_output(tmp_path / "none.txt")


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        (NEWER.partition("       65536")[0], "holds no times"),
        (NEWER.replace("sum", "none"), "does not say which collective.*all_reduce_perf.txt"),
        (NEWER.replace("busbw", "b/s"), "does not say which collective"),
        (NEWER.replace("Rank  1", "Rank  0"), "no group.*MPI=1"),
        (NEWER.replace("#  Rank", "#  Rang"), "0 GPUs"),
        (NEWER.replace("1886 on   worker-0", "1886 on   worker-1"), "different numbers of GPUs"),
        (NEWER.replace("    time", "    tyme"), "no column 'time'"),
        (NEWER.replace("90.10", "fast"), "fast"),
        (NEWER.replace("90.10", "-1.0"), "-1.0"),
        (NEWER.replace("90.10", "nan"), "nan"),
        (NEWER.replace("   524288", "#  524288").replace("  4194304", "# 4194304"), "two sizes"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_reported(text: str, reported: str, tmp_path: Path) -> None:
    file = written(text, tmp_path)

    with pytest.raises(CalibrationError, match=reported) as caught:
        read_nccl_output(file)

    assert str(file) in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match=r"none\.txt cannot be read"):
        read_nccl_output(tmp_path / "none.txt")
