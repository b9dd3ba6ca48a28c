"""Chakra's messages as bytes: the few parts of protocol buffers that its files are made of.

Fields and their numbers are those of et_def.proto, version 0.0.4 (github.com/mlcommons/chakra). A
file is one GlobalMetadata and then Nodes, each after its length.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

SCHEMA_VERSION = "0.0.4"

#: Wire types: a number of seven bits a byte, and bytes after their length.
_VARINT, _BYTES = 0, 2
_CONTINUED = 0x80


class NodeType(IntEnum):
    """What a node is."""

    COMP = 4
    COMM_SEND = 5
    COMM_RECV = 6
    COMM_COLL = 7


class CommType(IntEnum):
    """What a collective does (CollectiveCommType)."""

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7


#: The field of AttributeProto that holds a value of each kind.
_VALUE_FIELDS = {"int64": 9, "uint32": 11, "uint64": 13, "bool": 27, "string": 29}


class Attribute(NamedTuple):
    """A named value of a node; `kind` is a type of protocol buffers, such as "uint64"."""

    name: str
    kind: str
    value: int | str


class Node(NamedTuple):
    """A piece of work; `data_deps` are the nodes that must have ended before it begins, and
    `ctrl_deps` those of them that launch it."""

    number: int
    name: str
    node_type: NodeType
    ctrl_deps: tuple[int, ...]
    data_deps: tuple[int, ...]
    start_us: int
    duration_us: int
    attributes: tuple[Attribute, ...]


def varint(number: int) -> bytes:
    """A number that is not negative, seven bits a byte, the lowest first.

    >>> varint(300).hex()
    'ac02'
    """
    encoded = bytearray()
    while number >= _CONTINUED:
        encoded.append(number % _CONTINUED | _CONTINUED)
        number //= _CONTINUED
    encoded.append(number)
    return bytes(encoded)


def delimited(message: bytes) -> bytes:
    """A message behind its length, as it lies in a file."""
    return varint(len(message)) + message


def metadata_bytes(attributes: Iterable[Attribute]) -> bytes:
    """GlobalMetadata: the version of the schema, and what else is to be known of the file."""
    return _text(1, SCHEMA_VERSION) + b"".join(_bytes(2, _attribute(item)) for item in attributes)


def node_bytes(node: Node) -> bytes:
    """A Node; as in protocol buffers a number that is zero is not written."""
    return b"".join(
        (
            _number(1, node.number),
            _text(2, node.name),
            _number(3, node.node_type),
            _numbers(4, node.ctrl_deps),
            _numbers(5, node.data_deps),
            _number(6, node.start_us),
            _number(7, node.duration_us),
            *(_bytes(10, _attribute(attribute)) for attribute in node.attributes),
        )
    )


def _attribute(attribute: Attribute) -> bytes:
    field = _VALUE_FIELDS[attribute.kind]
    if isinstance(attribute.value, str):
        return _text(1, attribute.name) + _bytes(field, attribute.value.encode())
    # One of several values: it is written also where it is zero.
    return _text(1, attribute.name) + varint(field << 3 | _VARINT) + varint(attribute.value)


def _number(field: int, value: int) -> bytes:
    return varint(field << 3 | _VARINT) + varint(value) if value else b""


def _numbers(field: int, values: tuple[int, ...]) -> bytes:
    return _bytes(field, b"".join(map(varint, values))) if values else b""


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode()) if value else b""


def _bytes(field: int, value: bytes) -> bytes:
    return varint(field << 3 | _BYTES) + delimited(value)
