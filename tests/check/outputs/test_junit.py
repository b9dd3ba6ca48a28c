"""JUnit XML, safe whatever names hold."""

from __future__ import annotations

from xml.etree import ElementTree

from check_results import BEFORE, regression
from neusight.integrations.check.outputs.junit import junit_xml
from neusight.integrations.check.result import CaseResult


def test_junit_distinguishes_failures_from_errors() -> None:
    name = "a<b>&\"'\x00\ud800"
    results = [
        regression(name),
        CaseResult("t", "failed", failure="it broke"),
        CaseResult("new", "new", case=BEFORE),
        CaseResult("fine", "updated", case=BEFORE),
    ]

    suite = ElementTree.fromstring(junit_xml(results))

    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("4", "1", "2")
    first, second, _, last = suite.findall("testcase")
    assert first.get("name") == "a<b>&\"'??"
    assert [test.get("time") for test in (first, second)] == ["0.001500000", "0.000000000"]
    failure, error = first.find("failure"), second.find("error")
    assert failure is not None and "gemm 8x16x8 bf16" in str(failure.text)
    assert error is not None and error.get("message") == "it broke"
    assert [child.tag for child in last] == ["properties"]
