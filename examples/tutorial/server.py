#!/usr/bin/env python3
"""Plays an inference server: it reads all of its weights on the GPU for each request. docs/tutorial.md explains it.

If a request comes while its group is paused, it answers after the resume. It listens on 127.0.0.1, port 8765 or TUTORIAL_PORT.
"""
from __future__ import annotations

import http.server
import os
import signal
import sys
import urllib.parse

from memory import allocate

import amem

PORT = int(os.environ.get("TUTORIAL_PORT", "8765"))
LAYERS, LAYER_BYTES = 10, 16 << 20
FIRST = 42  # the weights: layer 0 is full of this number, layer 1 of the next one


class Server(http.server.HTTPServer):
    """Answers one request at a time."""

    def __init__(self) -> None:
        self.weights = [allocate(LAYER_BYTES) for _ in range(LAYERS)]
        for at, layer in enumerate(self.weights):
            layer.fill(FIRST + at)
        super().__init__(("127.0.0.1", PORT), Handler)

    def answer(self, question: str) -> str:
        """Reads all weights."""
        wrong = [at for at, layer in enumerate(self.weights) if not layer.holds(FIRST + at)]
        found = f"layers {wrong} are wrong" if wrong else "every byte of the weights is right"
        return f"you asked {question!r}: {found}"


class Handler(http.server.BaseHTTPRequestHandler):
    """GET /QUESTION"""

    server: Server

    def do_GET(self) -> None:  # noqa: N802: the library's name
        text = self.server.answer(urllib.parse.unquote(self.path[1:])).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing."""


if __name__ == "__main__":
    amem.enable()
    try:
        server = Server()
    except RuntimeError as error:
        sys.exit(f"server: {error}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    print("server: ready", flush=True)
    server.serve_forever()
