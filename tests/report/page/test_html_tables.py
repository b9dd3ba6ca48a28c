"""Tables of a page: their marks for the script, what they escape and what they cut."""

from __future__ import annotations

import json

from neusight.integrations.report.page.html_tables import (
    Cell,
    Detail,
    bytes_cell,
    count_cell,
    data_element,
    pattern_of,
    share_cell,
    shortened,
    table,
    time_cell,
)


def test_cells_are_read_as_text_and_sorted_by_their_values() -> None:
    rows: list[list[str | Cell]] = [
        ["a", time_cell(1500), bytes_cell(2**30), count_cell(1234), share_cell(0.5)]
    ]

    text = table(["name", "time", "memory", "kernels", "share"], rows, caption="all", bars={4})

    assert "<caption><span>all</span></caption>" in text
    assert '<td data-v="1500">1.50 ms</td>' in text
    assert f'<td data-v="{2**30}">1.00 GiB</td>' in text
    assert '<td data-v="1234">1,234</td>' in text
    assert '<td class="bar" data-v="0.5">50.0%</td>' in text
    assert text.count("scope=col") == 5


def test_what_is_left_out_stands_in_a_foot_of_its_own() -> None:
    text = table(["name", "time"], [["a", "1"]], rest=["3 more rows", Cell("2 s", 2e6)])

    assert '<tfoot><tr><td>3 more rows</td><td data-v="2000000">2 s</td></tr></tfoot>' in text
    assert "<tfoot>" not in table(["name"], [["a"]])


def test_text_is_escaped_cut_and_broken_between_parts_of_names() -> None:
    text = table(["<b>"], [["<i>&"], ["a_b.c"], ["x" * 1000]], caption="<p>")

    assert "&lt;b&gt;" in text and "&lt;i&gt;&amp;" in text and "&lt;p&gt;" in text
    assert "a_<wbr>b.<wbr>c" in text
    assert "x" * 239 + "…" in text and "x" * 240 not in text
    assert shortened("short") == "short"


def test_a_share_sorts_by_six_digits() -> None:
    assert share_cell(1 / 3) == Cell("33.3%", 0.333333)


def test_no_text_ends_the_element_of_the_data() -> None:
    text = data_element("a", {"n": "</script><!--&"})

    inside = text.partition(">")[2].removesuffix("</script>")
    assert not set("<>&") & set(inside)
    assert json.loads(inside) == {"n": "</script><!--&"}


def test_numbers_in_paths_become_stars() -> None:
    assert pattern_of("a.0.b1.22") == "a.*.b1.*"
    assert pattern_of("0.a") == "0.a"


def test_detail_is_shared_but_something_always_stays() -> None:
    detail = Detail(num_spans=1000, num_rows=100, num_instances=10)

    assert detail.shared(0.5) == Detail(500, 50, 5)
    assert detail.shared(0.0) == Detail(60, 10, 0)
