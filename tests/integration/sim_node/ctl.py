"""Ctl: amemctl, its JSON and its exit codes."""
from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sim_node.child import Child, Died, patience

if TYPE_CHECKING:
    from sim_node.node import Build, Node

OK, FAILED, USAGE, UNREACHABLE, NOT_FOUND, WRONG_STATE, DEADLINE, RESOURCES, PERMISSION = range(9)


class Answer:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def lines(self) -> list[Any]:
        """What was printed, a JSON value a line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def json(self) -> Any:
        return self.lines[-1]

    @property
    def error(self) -> str:
        """The text of the error."""
        for line in self.err.splitlines():
            if line.startswith('{"error"'):
                return str(json.loads(line)["error"]["text"])
        return self.err

    def __repr__(self) -> str:
        return f"<exit code {self.code}, out {self.out!r}, err {self.err!r}>"


class Operation(Child):
    """A pause, resume, swap or watch under way."""

    def wait_phase(self, phase: str, ranks_done: int = 0, deadline: float = 20) -> None:
        """Returns when so many ranks have done their part of it; 0: when it has begun."""
        while True:
            progress = self.json_line(deadline)
            if progress["phase"] == phase and progress["ranks_done"] >= ranks_done:
                return

    def finish(self, deadline: float = 40) -> Answer:
        code = self.wait(deadline)
        return Answer(code, self.output("out"), self.output("err"))


class Ctl:
    def __init__(self, node: Node, prefix: Sequence[str] = ()) -> None:
        self.node = node
        self._prefix = list(prefix)

    def by(self, prefix: Sequence[str]) -> Ctl:
        """The same by another user: `prefix` is as_user()."""
        return Ctl(self.node, prefix)

    def _argv(self, arguments: Sequence[object], json_output: bool = True) -> list[str]:
        globals_ = ["--runtime-dir", self.node.runtime_dir] + (["--json"] if json_output else [])
        return [str(each) for each in [*self._prefix, self._build().program("amemctl"), *globals_, *arguments]]

    def _build(self) -> Build:
        return self.node.build.for_others() if self._prefix else self.node.build

    def _env(self) -> dict[str, str]:
        return self.node.env(build=self._build()) if self._prefix else self.node.env()

    def try_(self, *arguments: object, json_output: bool = True, deadline: float = 40) -> Answer:
        """Runs amemctl; whatever comes of it."""
        argv = self._argv(arguments, json_output)
        done = subprocess.run(argv, env=self._env(), capture_output=True, text=True, timeout=patience(deadline))
        with open(self.node.log_file("amemctl"), "a") as log:
            log.write(f"$ {' '.join(argv[1:])}\n{done.stdout}{done.stderr}-> {done.returncode}\n")
        return Answer(done.returncode, done.stdout, done.stderr)

    def __call__(self, *arguments: object, **options: Any) -> Answer:
        """Runs amemctl, which must succeed."""
        answer = self.try_(*arguments, **options)
        assert answer.code == OK, f"amemctl {' '.join(map(str, arguments))}: {answer!r}"
        return answer

    def start(self, *arguments: object) -> Operation:
        """Runs amemctl in the background."""
        return self.node.adopt(Operation(f"amemctl {' '.join(map(str, arguments))}", self._argv(arguments),
                                         self._env(), self.node.log_file(f"amemctl-{arguments[0]}")))

    def reachable(self) -> bool:
        try:
            return self.try_("version", "--timeout", "1s").json["broker"] is not None
        except (Died, subprocess.TimeoutExpired):
            return False

    def status(self) -> Any:
        return self("status").json

    def group(self, name: str) -> Any:
        """What `groups` says of a group; None when there is no such group."""
        return next((each for each in self("groups").json["groups"] if each["name"] == name), None)

    def states(self) -> dict[str, str]:
        """By group, at one moment."""
        return {each["name"]: str(each["state"]).removeprefix("GROUP_STATE_").lower() for each in self("groups").json["groups"]}

    def state(self, name: str) -> str:
        return self.states()[name]

    def devices(self) -> list[Any]:
        return sorted(self.status()["devices"], key=lambda each: int(each["ordinal"]))

    def ranks(self, group: str) -> list[Any]:
        return sorted(self("ranks", group).json["ranks"], key=lambda each: int(each["rank"]))
