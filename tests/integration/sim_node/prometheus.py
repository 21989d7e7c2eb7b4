"""Prometheus: a real one (Debian: prometheus), that scrapes the node every half second."""
from __future__ import annotations

import json
import os
import socket
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sim_node.child import Child, eventually

if TYPE_CHECKING:
    from sim_node.node import Node


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def get(url: str, deadline: float = 10, **headers: str) -> tuple[str, str]:
    """The body, and its content type."""
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=deadline) as answer:
        return answer.read().decode(), answer.headers["Content-Type"]


class Prometheus(Child):
    """`targets`: ports of 127.0.0.1 by the name of their job. `rules`: a file of alerts."""

    def __init__(self, node: Node, targets: Mapping[str, int], rules: str | None = None) -> None:
        self.port = free_port()
        config = {
            "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
            "rule_files": [rules] if rules else [],
            "scrape_configs": [{"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
                               for job, port in targets.items()],
        }
        path = os.path.join(node.dir, "prometheus.json")  # which is YAML too
        with open(path, "w") as file:
            json.dump(config, file)
        argv = ["prometheus", "--config.file", path, "--storage.tsdb.path", os.path.join(node.dir, "tsdb"),
                "--web.listen-address", f"127.0.0.1:{self.port}"]
        super().__init__("prometheus", argv, dict(os.environ), node.log_file("prometheus"))

    def ready(self) -> Prometheus:
        eventually(lambda: self._up(), what="prometheus scrapes", deadline=40)
        return self

    def _up(self) -> bool:
        try:
            up = self.query("up")
        except OSError:
            return False
        return bool(up) and all(float(each["value"][1]) == 1 for each in up)

    def ask(self, path: str, **fields: str) -> Any:
        body, _ = get(f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(fields)}")
        answer = json.loads(body)
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str) -> list[Any]:
        """An instant vector's samples. A query that is wrong is an error of HTTP."""
        samples: list[Any] = self.ask("query", query=expression)["result"]
        return samples

    def value(self, expression: str) -> float | None:
        """The one sample's; None: there is none."""
        samples = self.query(expression)
        assert len(samples) <= 1, samples
        return float(samples[0]["value"][1]) if samples else None

    def samples(self, expression: str) -> dict[tuple[tuple[str, str], ...], float]:
        """Values by labels, but those of the target."""
        return {tuple(sorted((name, value) for name, value in each["metric"].items()
                             if name not in ("__name__", "instance", "job"))): float(each["value"][1])
                for each in self.query(expression)}
