"""Chakra's messages as bytes, read again by Google's own library."""

from __future__ import annotations

from pathlib import Path

import pytest
from chakra_reader import CLASSES, attributes, kind, read_chakra
from hypothesis import given
from hypothesis import strategies as st

from neusight.output.chakra.wire import (
    SCHEMA_VERSION,
    Attribute,
    CommType,
    Node,
    NodeType,
    delimited,
    metadata_bytes,
    node_bytes,
    varint,
)

NODE = Node(
    number=2**40,
    name="aten::mm",
    node_type=NodeType.COMM_COLL,
    ctrl_deps=(0,),
    data_deps=(0, 1, 300),
    start_us=17,
    duration_us=2**33,
    attributes=(
        Attribute("is_cpu_op", "bool", 0),
        Attribute("comm_type", "int64", CommType.ALL_REDUCE),
        Attribute("comm_size", "uint64", 2**35),
        Attribute("comm_tag", "uint32", 7),
        Attribute("pg_name", "string", "3"),
    ),
)


@pytest.mark.parametrize(
    ("number", "encoded"), [(0, "00"), (1, "01"), (127, "7f"), (128, "8001"), (300, "ac02")]
)
def test_numbers_take_seven_bits_a_byte(number: int, encoded: str) -> None:
    assert varint(number).hex() == encoded


def test_a_node_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "one.0.et"
    about = Attribute("producer", "string", "a test")
    path.write_bytes(delimited(metadata_bytes([about])) + delimited(node_bytes(NODE)))

    metadata, (node,) = read_chakra(path)

    assert (metadata.version, attributes(metadata)) == (SCHEMA_VERSION, {"producer": "a test"})
    assert (node.id, node.name, kind(node)) == (2**40, "aten::mm", "COMM_COLL_NODE")
    assert (list(node.ctrl_deps), list(node.data_deps)) == ([0], [0, 1, 300])
    assert (node.start_time_micros, node.duration_micros) == (17, 2**33)
    assert attributes(node) == {
        "is_cpu_op": False,
        "comm_type": 0,
        "comm_size": 2**35,
        "comm_tag": 7,
        "pg_name": "3",
    }


@given(
    number=st.integers(0, 2**64 - 1),
    name=st.text(max_size=20),
    deps=st.lists(st.integers(0, 2**64 - 1), max_size=4),
    size=st.integers(0, 2**64 - 1),
)
def test_bytes_are_those_that_protocol_buffers_write(
    number: int, name: str, deps: list[int], size: int
) -> None:
    """Also its order of fields, so that equal traces are equal files everywhere."""
    made = Node(number, name, NodeType.COMP, (), tuple(deps), 0, number, (
        Attribute("is_cpu_op", "bool", 1), Attribute("tensor_size", "uint64", size),
    ))  # fmt: skip

    theirs = CLASSES["Node"](
        id=number, name=name, type=NodeType.COMP, data_deps=deps, duration_micros=number
    )
    theirs.attr.add(name="is_cpu_op", bool_val=True)
    theirs.attr.add(name="tensor_size", uint64_val=size)
    assert node_bytes(made) == theirs.SerializeToString(deterministic=True)
