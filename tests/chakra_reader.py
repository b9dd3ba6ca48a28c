"""Chakra's files read with Google's own protocol buffers, from a schema written down here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Field: Any = descriptor_pb2.FieldDescriptorProto
_PACKAGE = "ChakraProtoMsg"
#: Of each message: name, number, type, whether it is repeated (et_def.proto of Chakra 0.0.4).
_MESSAGES = {
    "AttributeProto": [
        ("name", 1, "string", False),
        ("doc_string", 2, "string", False),
        ("double_val", 3, "double", False),
        ("float_val", 5, "float", False),
        ("int32_val", 7, "int32", False),
        ("int64_val", 9, "int64", False),
        ("uint32_val", 11, "uint32", False),
        ("uint64_val", 13, "uint64", False),
        ("bool_val", 27, "bool", False),
        ("string_val", 29, "string", False),
    ],
    "GlobalMetadata": [("version", 1, "string", False), ("attr", 2, "AttributeProto", True)],
    "IOInfo": [
        ("values", 1, "string", False),
        ("shapes", 2, "string", False),
        ("types", 3, "string", False),
    ],
    "Node": [
        ("id", 1, "uint64", False),
        ("name", 2, "string", False),
        ("type", 3, "NodeType", False),
        ("ctrl_deps", 4, "uint64", True),
        ("data_deps", 5, "uint64", True),
        ("start_time_micros", 6, "uint64", False),
        ("duration_micros", 7, "uint64", False),
        ("inputs", 8, "IOInfo", False),
        ("outputs", 9, "IOInfo", False),
        ("attr", 10, "AttributeProto", True),
    ],
}
_NODE_TYPES = (
    "INVALID_NODE", "METADATA_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE", "COMP_NODE",
    "COMM_SEND_NODE", "COMM_RECV_NODE", "COMM_COLL_NODE",
)  # fmt: skip
_NUM_ONEOF_FIELDS_BEFORE = 2


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="et_def", package=_PACKAGE, syntax="proto3")
    kinds = file.enum_type.add(name="NodeType")
    for number, name in enumerate(_NODE_TYPES):
        kinds.value.add(name=name, number=number)
    for message, fields in _MESSAGES.items():
        made = file.message_type.add(name=message)
        if message == "AttributeProto":
            made.oneof_decl.add(name="value")
        for name, number, kind, repeated in fields:
            field = made.field.add(name=name, number=number)
            field.label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
            if kind in _MESSAGES or kind == "NodeType":
                is_enum = kind == "NodeType"
                field.type = _Field.TYPE_ENUM if is_enum else _Field.TYPE_MESSAGE
                field.type_name = f".{_PACKAGE}.{kind}"
            else:
                field.type = getattr(_Field, f"TYPE_{kind.upper()}")
            if message == "AttributeProto" and number > _NUM_ONEOF_FIELDS_BEFORE:
                field.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in _MESSAGES
    }


CLASSES = _classes()


def read_chakra(path: Path) -> tuple[Any, list[Any]]:
    """The GlobalMetadata and the Nodes of a file, which must hold nothing that the schema lacks."""
    data, position = path.read_bytes(), 0
    messages: list[Any] = []
    while position < len(data):
        size = shift = 0
        while True:
            byte = data[position]
            position += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                break
        message = CLASSES["Node" if messages else "GlobalMetadata"]()
        assert message.ParseFromString(data[position : position + size]) == size
        # What the schema lacks would come back, too, but as unknown fields behind the others.
        known = type(message)()
        known.CopyFrom(message)
        known.DiscardUnknownFields()
        assert known.ByteSize() == size
        messages.append(message)
        position += size
    return messages[0], messages[1:]


def attributes(node: Any) -> dict[str, Any]:
    """Those of a node, by name."""
    return {item.name: getattr(item, item.WhichOneof("value")) for item in node.attr}


def kind(node: Any) -> str:
    """The name of its type."""
    return _NODE_TYPES[node.type]
