#!/usr/bin/env python3
"""Writes amem/messages.py: the enums and answers of proto/amem/v1/broker.proto, with its comments. Run it after a change of that file.

Needs protoc and Python's protobuf, which deploy/deps.sh installs. tests/python/test_messages.py finds a messages.py that is out of date.
"""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROTO = ROOT / "proto" / "amem" / "v1" / "broker.proto"
MODULE = pathlib.Path(__file__).resolve().parent / "amem" / "messages.py"
WIDTH = 140
HEADER = '''"""The answers of a Broker as dataclasses, and the enums. They have the names of proto/amem/v1/broker.proto.

Sizes are bytes. The names of times have their unit. If a newer broker sends an enum value that this package does not know,
the field is UNSPECIFIED. Plain values; any thread.
"""
# client/python/write_messages.py makes this file of broker.proto.
from __future__ import annotations

import dataclasses
import enum

from amem._connection.from_wire import from_wire as from_wire
'''
# Other types have no answer so far.
TYPES = {
    FieldDescriptorProto.TYPE_BOOL: "bool", FieldDescriptorProto.TYPE_STRING: "str", FieldDescriptorProto.TYPE_INT32: "int",
    FieldDescriptorProto.TYPE_INT64: "int", FieldDescriptorProto.TYPE_UINT32: "int", FieldDescriptorProto.TYPE_UINT64: "int"}
NAMED = FieldDescriptorProto.TYPE_MESSAGE, FieldDescriptorProto.TYPE_ENUM
# A place in a file is a path of the numbers of fields of its descriptor, and indices.
ENUMS, MESSAGES = FileDescriptorProto.ENUM_TYPE_FIELD_NUMBER, FileDescriptorProto.MESSAGE_TYPE_FIELD_NUMBER
VALUES, FIELDS = descriptor_pb2.EnumDescriptorProto.VALUE_FIELD_NUMBER, descriptor_pb2.DescriptorProto.FIELD_FIELD_NUMBER


class Schema:
    """A compiled .proto with its comments."""

    def __init__(self, file):
        self.places = {each.name: (ENUMS, index) for index, each in enumerate(file.enum_type)}
        self.places |= {each.name: (MESSAGES, index) for index, each in enumerate(file.message_type)}
        self.kinds = {each.name: each for each in (*file.enum_type, *file.message_type)}
        self.answers = [name_of(method.output_type) for service in file.service for method in service.method]
        self.comments = {tuple(each.path): each for each in file.source_code_info.location}

    def comment(self, what, *place):
        found = self.comments[place]
        before, behind = (" ".join(each.split()) for each in (found.leading_comments, found.trailing_comments))
        if before and behind:
            sys.exit(f"write_messages: {what} has a comment above it and one behind it. The comment above may be the second line of a "
                     "comment behind the previous field: protoc supports only one line there.")
        text = before or behind
        if '"""' in text or "\\" in text:
            sys.exit(f"write_messages: the comment of {what} cannot be part of a docstring: {text}")
        return text

    def answered(self):
        """All enums, which requests have, too, and the messages that answers are made of, in the order of the file; not those that
        only hold a list of others."""
        found, left = set(), list(self.answers)
        while left:
            name = left.pop()
            if name not in found:
                found.add(name)
                left += [name_of(each.type_name) for each in getattr(self.kinds[name], "field", ()) if each.type in NAMED]
        wanted = {*found, *(name for name, place in self.places.items() if place[0] == ENUMS)}
        return [kind for name, kind in self.kinds.items() if name in wanted and not name.endswith("Response")]

    def definition(self, kind):
        """The lines of a class."""
        place = self.places[kind.name]
        lines, members = [], []
        if place[0] == ENUMS:
            prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", kind.name).upper() + "_"
            for index, value in enumerate(kind.value):
                name = value.name.removeprefix(prefix)
                members.append((name, self.comment(f"{kind.name}.{name}", *place, VALUES, index)))
                lines.append(f"    {name} = {value.number}")
            head = [f"class {kind.name}(enum.IntEnum):"]
        else:
            for index, field in enumerate(kind.field):
                members.append((field.name, self.comment(f"{kind.name}.{field.name}", *place, FIELDS, index)))
                lines.append(f"    {field.name}: {type_of(kind, field)}")
            head = ["@dataclasses.dataclass(frozen=True)", f"class {kind.name}:"]
        return [*head, *docstring(self.comment(kind.name, *place), members), "", *lines]


def name_of(full_name):
    return full_name.rpartition(".")[2]


def type_of(message, field):
    name = name_of(field.type_name) if field.type in NAMED else TYPES.get(field.type)
    if name is None or field.HasField("oneof_index"):
        sys.exit(f"write_messages: {message.name}.{field.name} has a type that write_messages.py does not support. Add it there")
    return f"tuple[{name}, ...]" if field.label == field.LABEL_REPEATED else name


def docstring(text, members):
    """`members`: names with what is said of each. The form is Google's; mkdocstrings makes tables of it."""
    lines = [*textwrap.wrap(text, WIDTH - 4), "", "Attributes:"]
    for name, about in members:
        lines += textwrap.wrap(f"{name}: {about}", WIDTH - 4, initial_indent=" " * 4, subsequent_indent=" " * 8)
    lines[0] = '"""' + lines[0]
    return [f"    {line}".rstrip() for line in (*lines, '"""')]


def module(proto):
    """The text of messages.py for a .proto."""
    with tempfile.TemporaryDirectory() as scratch:
        compiled = pathlib.Path(scratch) / "compiled"
        subprocess.run(["protoc", "-I", proto.parent, "--include_source_info", f"--descriptor_set_out={compiled}", proto], check=True,
                       timeout=60)
        schema = Schema(descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes()).file[0])
    return HEADER + "".join("\n\n" + "\n".join(schema.definition(kind)) + "\n" for kind in schema.answered())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 if the file is out of date")
    parser.add_argument("--proto", type=pathlib.Path, default=PROTO)
    parser.add_argument("--module", type=pathlib.Path, default=MODULE)
    options = parser.parse_args()
    text = module(options.proto)
    if not options.check:
        options.module.write_text(text, encoding="utf-8")
    elif options.module.read_text(encoding="utf-8") != text:
        sys.exit(f"write_messages: {options.module} is not what {options.proto} gives: run client/python/write_messages.py")


if __name__ == "__main__":
    main()
