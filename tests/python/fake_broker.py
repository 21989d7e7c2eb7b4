"""A broker in this process that answers as it is told."""
import concurrent.futures
import os
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from amem import _endpoint, _wire


class FakeBroker:
    """`asked`: (method, request), without ListGroups, by which an operation finds out whether somebody is there. `answers`: messages by
    method. `end`: a status for every call. `during`: functions by method, which run before the answer."""

    def __init__(self, socket: str | os.PathLike[str]) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.answers: dict[str, Any] = {}
        self.end: tuple[grpc.StatusCode, str] | None = None
        self.during: dict[str, Callable[[grpc.ServicerContext], object]] = {}
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
        handlers = {}
        for method in _wire._service.methods:
            make = (grpc.unary_stream_rpc_method_handler if method.name in _wire.STREAMS
                    else grpc.unary_unary_rpc_method_handler)
            handlers[method.name] = make(
                self._answer(method), _wire.message_class(method.input_type).FromString,
                _wire.message_class(method.output_type).SerializeToString)
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("amem.v1.Broker", handlers),))
        self.server.add_insecure_port(_endpoint.grpc_target(str(socket)))
        self.server.start()

    def _answer(self, method: Any) -> Callable[[Any, Any], Any]:
        kind = _wire.message_class(method.output_type)

        def unary(request: Any, context: Any) -> Any:
            self._note(method.name, request, context)
            return kind(**self.answers.get(method.name, {}))

        def stream(request: Any, context: Any) -> Iterator[Any]:
            self._note(method.name, request, context)
            for fields in self.answers.get(method.name, []):
                yield kind(**fields)

        return stream if method.name in _wire.STREAMS else unary

    def _note(self, name: str, request: Any, context: Any) -> None:
        if name != "ListGroups":
            self.asked.append((name, request))
        if name in self.during:
            self.during[name](context)
        if self.end is not None:
            context.abort(*self.end)
