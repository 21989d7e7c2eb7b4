"""The control API's messages and calls, made at run time from a compiled broker.proto.

protoc's Python stubs work only with some versions of protobuf, and the program may need another one. They also register
broker.proto for the whole process. A descriptor works with each version. It is in its own pool here, so it does not collide with
other stubs of this file. This protobuf shares nothing with a libprotobuf in the same process, such as libamem_client's.
"""
from __future__ import annotations

import importlib.resources
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "amem.v1"

_pool = descriptor_pool.DescriptorPool()


def _load() -> Any:
    data = importlib.resources.files("amem").joinpath("_broker.binpb").read_bytes()
    files = descriptor_pb2.FileDescriptorSet.FromString(data)
    for file in files.file:
        _pool.AddSerializedFile(file.SerializeToString())
    return _pool.FindServiceByName(f"{PACKAGE}.Broker")


_service = _load()


def message_class(descriptor: Any) -> Any:
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(descriptor)
    return message_factory.MessageFactory(_pool).GetPrototype(descriptor)  # protobuf before 4.22


def descriptor_of(name: str) -> Any:
    """The descriptor of a message, for tests."""
    return _pool.FindMessageTypeByName(f"{PACKAGE}.{name}")


class Calls:
    """The service's methods by name. Each takes the fields of the request and options of gRPC."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._methods = {method.name: self._bind(method) for method in _service.methods}

    def _bind(self, method: Any) -> tuple[Any, Any]:
        request = message_class(method.input_type)
        kind = self._channel.unary_stream if method.name in STREAMS else self._channel.unary_unary
        call = kind(f"/{PACKAGE}.Broker/{method.name}", request_serializer=request.SerializeToString,
                    response_deserializer=message_class(method.output_type).FromString)
        return request, call

    def __call__(self, name: str, fields: dict[str, Any], **options: Any) -> Any:
        request, call = self._methods[name]
        return call(request(**fields), **options)


# Descriptors say which methods stream only in newer versions of protobuf.
STREAMS = frozenset(("ListAllocations", "Pause", "Resume", "Swap", "Watch"))
