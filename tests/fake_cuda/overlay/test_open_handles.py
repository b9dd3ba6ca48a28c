"""Handles that were open for writing before a block write to a private copy inside it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest
import torch

import neusight
from warm_python import run_python


@pytest.fixture
def log(tmp_path: Path) -> Iterator[TextIO]:
    with (tmp_path / "log.txt").open("w") as file:
        yield file


def test_what_was_written_before_and_after_stays_and_the_block_leaves_nothing(
    log: TextIO, tmp_path: Path
) -> None:
    log.write("before, ")

    with neusight.forecast_on("H100"):
        torch.ones(2, device="cuda")
        log.write("inside")
        log.flush()
        seen = (tmp_path / "log.txt").read_text()
    log.write("after")
    log.flush()

    assert seen == "before, inside"
    assert (tmp_path / "log.txt").read_text() == "before, after"


def test_what_the_block_left_unflushed_does_not_come_later(log: TextIO, tmp_path: Path) -> None:
    with neusight.forecast_on("H100"):
        torch.ones(2, device="cuda")
        log.write("inside")
    log.write("after")
    log.flush()

    assert (tmp_path / "log.txt").read_text() == "after"


def test_a_log_handler_of_before_goes_on(tmp_path: Path) -> None:
    handler = logging.FileHandler(tmp_path / "run.log")
    logger = logging.getLogger("open handles")
    logger.addHandler(handler)
    try:
        logger.warning("before")
        with neusight.forecast_on("H100"):
            torch.ones(2, device="cuda")
            logger.warning("inside")
        logger.warning("after")
    finally:
        logger.removeHandler(handler)
        handler.close()

    assert (tmp_path / "run.log").read_text() == "before\nafter\n"


def test_bytes_are_read_and_written_where_the_handle_stood(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"0123456789")

    with (tmp_path / "data").open("r+b") as file:
        file.seek(4)
        with neusight.forecast_on("H100"):
            torch.ones(2, device="cuda")
            file.write(b"XX")
            file.seek(0)
            seen = file.read()
        file.seek(9)
        file.write(b"!")

    assert seen == b"0123XX6789"
    assert (tmp_path / "data").read_bytes() == b"012345678!"


def test_standard_output_leads_where_it_led(tmp_path: Path) -> None:
    program = (
        "import neusight, torch\nprint('before')\n"
        "with neusight.forecast_on('H100'):\n    torch.ones(2, device='cuda')\n"
        "    print('inside')\nprint('after')\n"
    )

    assert run_python("-c", program, cwd=tmp_path).stdout == "before\ninside\nafter\n"


def test_the_log_of_a_notebooks_kernel_is_none_of_the_programs_files(
    log: TextIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "_original_stdstream_copy", log.fileno(), raising=False)
    monkeypatch.setattr(sys, "stderr", log)

    with neusight.forecast_on("H100") as forecast:
        torch.ones(2, device="cuda")
        log.write("inside")
        log.flush()

    assert (tmp_path / "log.txt").read_text() == "inside"
    assert forecast.warnings == []
