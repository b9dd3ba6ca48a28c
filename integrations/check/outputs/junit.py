"""A check's report as JUnit XML, for whatever shows tests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from neusight.exit_codes import ExitCode
from neusight.integrations.check.figures.metrics import KEPT_METRICS
from neusight.integrations.check.outputs.report_text import state_text
from neusight.integrations.check.outputs.terminal import explanation
from neusight.integrations.check.result import CaseResult


def junit_xml(results: Sequence[CaseResult]) -> str:
    """A test suite with a test for each case: a regression is a failure, all else an error."""
    suite = ElementTree.Element(
        "testsuite",
        name="neusight",
        tests=str(len(results)),
        failures=str(sum(result.exit_code == ExitCode.JUDGED for result in results)),
        errors=str(sum(result.exit_code > ExitCode.JUDGED for result in results)),
    )
    for result in results:
        case = result.case
        seconds = case.metrics["step_latency_us"] / 1e6 if case else 0.0
        test = ElementTree.SubElement(
            suite, "testcase", classname="neusight", name=_xml(result.name), time=f"{seconds:.9f}"
        )
        if case is not None:
            properties = ElementTree.SubElement(test, "properties")
            for metric in KEPT_METRICS:
                if metric.name not in case.metrics:
                    continue
                value = f"{case.metrics[metric.name]}"
                ElementTree.SubElement(properties, "property", name=metric.name, value=value)
        if not result.exit_code:
            continue
        kind = "failure" if result.exit_code == ExitCode.JUDGED else "error"
        message = result.failure or state_text(result)
        problem = ElementTree.SubElement(test, kind, message=_xml(message), type=result.kind)
        if result.judgement is not None:
            problem.text = _xml("\n".join(explanation(result.judgement, Path.cwd())))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _xml(text: str) -> str:
    """Without the characters that XML 1.0 cannot hold."""
    return re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text)
