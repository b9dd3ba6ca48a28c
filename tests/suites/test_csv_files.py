"""Files of cases are checked before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from neusight.integrations.suites.csv_files import number_in, read_rows, whole_in
from neusight.predictors.errors import DataError


def test_rows_are_read_by_the_names_of_their_columns(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("b,a\n1,2\n")

    assert read_rows(path, ("a", "b")) == [{"a": "2", "b": "1"}]


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("", "lacks the columns a, b"),
        ("a\n1\n", "lacks the column b"),
        ("a,b\n", "has no rows"),
        ("a,b\n1,2\n3\n", "row 3 has another number of cells"),
        ("a,b\n1,2,3\n", "row 2 has another number of cells"),
        ('a,b\n"1,2\n', "no table of comma-separated values"),
    ],
)
def test_a_damaged_file_is_reported(tmp_path: Path, text: str, reported: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(text)

    with pytest.raises(DataError, match=reported):
        read_rows(path, ("a", "b"))


def test_a_file_that_is_missing_or_no_text_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_rows(path, ("a",))
    path.write_bytes(b"a\n\xff\xfe\n")
    with pytest.raises(DataError, match="no table of comma-separated values"):
        read_rows(path, ("a",))


@pytest.mark.parametrize("text", ["", "many", "nan", "inf", "0", "-3"])
def test_a_figure_must_be_a_positive_number(text: str) -> None:
    with pytest.raises(DataError, match="must be a positive number"):
        number_in({"a": text}, "a", Path("x.csv"))


def test_a_batch_must_be_whole() -> None:
    assert whole_in({"a": "8"}, "a", Path("x.csv")) == 8
    with pytest.raises(DataError, match="must be a whole number"):
        whole_in({"a": "8.5"}, "a", Path("x.csv"))
