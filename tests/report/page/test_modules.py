"""The tree of modules: what belongs to whom, and which blocks are alike."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from neusight.integrations.report.page.html_tables import Detail
from neusight.integrations.report.page.modules import (
    ModuleNode,
    _Listed,
    _static_table,
    module_tree,
    view_of_modules,
)
from neusight.predictors.kernel import Kernel
from neusight.predictors.predictor import Estimate
from neusight.recording.recording import MathMode, OpCall, OpSignature, Phase
from neusight.timeline.spans import HostSpan, KernelSpan, Timeline
from timelines import step_span

PRODUCT = Kernel.gemm(64, 64, 64)
PRICED = Estimate(1, 1, 1, "memory", "physics", "test")


def kernel(module: str, duration_ns: int, phase: Phase = "forward") -> KernelSpan:
    call = OpCall(OpSignature("aten::mm", "default", (), ()), MathMode(), module, phase)
    return KernelSpan(PRODUCT, PRICED, 0, 0, duration_ns, 0, 0, call)


def outline(node: ModuleNode) -> dict[str, object]:
    return {
        (f"{part.name} x{len(part.names)}" if part.names else part.name): outline(part)
        for part in node.parts
    }


def tree(*modules: str, kinds: Mapping[str, str] | None = None) -> ModuleNode:
    return module_tree([kernel(module, 10) for module in modules], kinds=kinds)


def find(node: ModuleNode, *names: str) -> ModuleNode:
    for name in names:
        [node] = [part for part in node.parts if part.name == name]
    return node


def test_time_adds_up_by_phase_and_what_has_no_module_stands_by_its_phase() -> None:
    found = module_tree(
        [
            kernel("net.a", 10),
            kernel("net.a", 20, "backward"),
            kernel("net", 5),
            kernel("", 7, "optimizer"),
        ],
        held={"net.a": 100, "net.b": 50},
    )

    assert outline(found) == {"net": {"a": {}, "b": {}}, "(optimizer)": {}}
    assert find(found, "net").figures == [15, 20, 0, 3, 150]
    assert find(found, "net", "a").figures == [10, 20, 0, 2, 100]
    assert find(found, "(optimizer)").time_ns == 7
    assert found.time_ns == 42


def test_the_page_is_given_microseconds_to_a_tenth() -> None:
    found = module_tree([kernel("net", 1260), kernel("net", 2040, "backward")], held={"net": 64})

    assert _Listed(10).json_of(found)["c"] == [{"n": "net", "v": [1.3, 2, 0, 2, 64]}]


def test_blocks_that_repeat_are_one_and_each_keeps_its_figures() -> None:
    found = module_tree(
        [
            kernel(f"net.blocks.{number}.{part}", 10 * number + own)
            for number in range(12)
            for own, part in enumerate(("attention", "mlp"), start=1)
        ]
    )

    assert outline(found) == {"net": {"blocks": {"* x12": {"attention": {}, "mlp": {}}}}}
    group = find(found, "net", "blocks", "*")
    assert group.figures == [sum(20 * number + 3 for number in range(12)), 0, 0, 24, 0]
    assert group.names == tuple(map(str, range(12)))
    assert group.instances[11] == [[223, 0, 0, 2, 0], [111, 0, 0, 1, 0], [112, 0, 0, 1, 0]]
    for most, num_left_out in ((36, 0), (35, 1)):
        listed = _Listed(most)
        listed_group = listed.json_of(group)
        assert (listed_group["x"], listed.num_left_out) == (12, num_left_out)
        assert len(listed_group.get("each", ())) == (0 if num_left_out else 12)


def test_the_parts_of_blocks_are_matched_by_name_not_by_order() -> None:
    found = module_tree(
        [kernel("n.0.a", 1), kernel("n.0.b", 2), kernel("n.1.b", 20), kernel("n.1.a", 10)]
    )

    group = find(found, "n", "*")
    assert find(group, "a").figures[0] == 11
    assert [[figures[0] for figures in each] for each in group.instances] == [
        [3, 1, 2],
        [30, 10, 20],
    ]


def test_blocks_of_another_make_are_a_group_of_their_own() -> None:
    dense = [f"net.{number}.mlp" for number in (0, 1)]
    sparse = [f"net.{number}.{part}" for number in (2, 3, 5) for part in ("router", "experts")]

    assert outline(tree(*dense, *sparse)) == {
        "net": {"0-1 x2": {"mlp": {}}, "2-3, 5 x3": {"router": {}, "experts": {}}}
    }


def test_groups_stand_in_groups() -> None:
    found = module_tree(
        [
            kernel(f"net.{layer}.experts.{expert}.up", 1 + expert)
            for layer in range(3)
            for expert in range(4)
        ]
    )

    assert outline(found) == {"net": {"* x3": {"experts": {"* x4": {"up": {}}}}}}
    experts = find(found, "net", "*", "experts", "*")
    assert [each[0][0] for each in experts.instances] == [3, 6, 9, 12]  # of all three layers
    assert [len(each) for each in find(found, "net", "*").instances] == [4, 4, 4]


def test_layers_with_different_numbers_of_parts_are_not_alike() -> None:
    few = [f"net.0.experts.{expert}.up" for expert in range(4)]
    many = [f"net.1.experts.{expert}.up" for expert in range(8)]

    assert set(outline(find(tree(*few, *many), "net"))) == {"0", "1"}


def test_unlike_parts_of_a_sequential_stay_apart() -> None:
    kinds = {"net.0": "Linear", "net.1": "GELU", "net.2": "Linear"}

    assert outline(tree("net.0", "net.1", "net.2", kinds=kinds)) == {
        "net": {"0": {}, "1": {}, "2": {}}
    }
    alike = dict.fromkeys(("net.0", "net.1", "net.2"), "Linear")
    assert outline(tree(*alike, kinds=alike)) == {"net": {"* x3": {}}}
    assert outline(tree("net.0", "net.1")) == {"net": {"0": {}, "1": {}}}


def test_without_a_script_modules_are_a_table_of_the_longest() -> None:
    kernels = [kernel(f"net.{number}", 1000) for number in range(3)]
    kernels += [kernel("head", 500), kernel("", 500, "optimizer"), kernel("late", 2_500_000)]

    text = _static_table(kernels, Detail(0, 3, 0))

    assert re.findall(r"<td[^>]*>([^<]*)</td>", text) == [
        "late", "1", "2.50 ms", "99.8%", "net.*", "3", "3.0 µs", "0.1%",
        "(optimizer)", "1", "0.5 µs", "0.0%",
    ]  # fmt: skip
    assert 'data-v="2500' in text
    assert len(re.findall("<tr>", _static_table([], Detail(0, 3, 0)))) == 1
    many = [kernel(chr(97 + number // 26) + chr(97 + number % 26), 1) for number in range(41)]
    assert len(re.findall("<tr>", _static_table(many, Detail(0, 99, 0)))) == 1 + 40


def test_the_tree_of_a_step_has_the_classes_of_its_modules_and_what_they_hold() -> None:
    spans = (
        HostSpan("module", "net", 0, 10, detail="Linear 2"),
        HostSpan("op", "head", 1, 2, detail="no class"),
    )
    step = replace(step_span(kernels=(0, 2)), first_host=0, last_host=2)
    timeline = Timeline(spans, (kernel("net", 1260), kernel("head", 40)), (step,), 2000)
    alive = [SimpleNamespace(module="net", phase="forward", num_bytes=64)]
    alive += [SimpleNamespace(module="", phase="backward", num_bytes=7)]
    found: Any = SimpleNamespace(timeline=timeline, memory=SimpleNamespace(alive=alive))

    page = view_of_modules(found, step, "tree-0", Detail(0, 3, 0))

    [data] = re.findall(r'id="tree-0">(.*?)</script>', page)
    assert json.loads(data)["root"]["c"] == [
        {"n": "net", "k": "Linear", "v": [1.3, 0, 0, 1, 64]},
        {"n": "head", "v": [0, 0, 0, 1, 0]},
        {"n": "(backward)", "v": [0, 0, 0, 0, 7]},
    ]
