"""Tables of what to change: their columns, those of prose, and what is left out."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

from neusight.advice.advice import Advice
from neusight.advice.memory import LargestBatch, Remedy
from neusight.integrations.report.page.changes import advice_table, compiled_tables, remedy_table
from neusight.output.compiled import Break, Compilation, Recompile
from neusight.output.figures import Row

GIB = 2**30


def cells(page: str) -> list[str]:
    """Each cell: its class and value, and what is read."""
    found = re.findall(r"<t[hd]( [^>]*|)>(.*?)</t[hd]>", page.replace("<wbr>", ""))
    return [" ".join([*re.findall(r'="([^"]*)"', at), text]) for at, text in found]


def test_a_change_states_its_gain() -> None:
    assert cells(advice_table([Advice("a", "do", 1500.0, 0.25, "that")])) == [
        "change", "a step", "gain", "words assumes",
        "do", "1500 1.50 ms", "-0.25 -25%", "words that",
    ]  # fmt: skip


def test_breaks_and_recompiles_have_the_words_of_torch() -> None:
    found = Compilation(
        num_graphs=2,
        num_calls=3,
        breaks=(Break("a.py:3", "print", 2, 7.0, 1, 5.0),),
        recompiles=(Recompile("a.py:9", "f", "size", 4),),
        fused=Row("fused", 5, 12.0, 0.5),
        buffer_bytes=0,
    )

    assert cells(compiled_tables(found)) == [
        "graph break", "words torch&#x27;s reason", "more calls", "host", "waits", "waited",
        "a.py:3", "words print", "2 2", "7 7.0 µs", "1 1", "5 5.0 µs",
        "recompiled for", "words function", "words torch&#x27;s reason", "times",
        "a.py:9", "words f", "words size", "4 4",
    ]  # fmt: skip
    assert compiled_tables(found).startswith("<p>2 graphs")


def test_what_would_make_it_fit_has_a_last_column_where_a_change_needs_something() -> None:
    def table_of(*remedies: Remedy, batch: LargestBatch | None = None) -> str:
        advice: Any = SimpleNamespace(
            remedies=remedies, batch=batch, needed_bytes=3 * GIB, limit_bytes=2 * GIB
        )
        return remedy_table(advice)

    plain = Remedy("shrink", GIB, 2 * GIB, fits=True, added_us=1000.0)
    needing = Remedy("8 bits", 2 * GIB, GIB, fits=False, needs="a package")

    header = ["change", "needs in all", "saves", "fits", "a step"]
    row = ["shrink", "1073741824 1.00 GiB", "2147483648 2.00 GiB", "yes", "1000 +1.00 ms"]
    other = ["8 bits", "2147483648 2.00 GiB", "1073741824 1.00 GiB", "no", "-", "words a package"]
    assert cells(table_of(plain)) == header + row
    assert cells(table_of(plain, needing)) == [*header, "words if", *row, "words ", *other]
    assert "needs 3.00 GiB of 2.00 GiB. The largest batch that fits is 4 (now 8)." in table_of(
        plain, batch=LargestBatch(4, 8)
    )
