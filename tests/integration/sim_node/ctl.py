"""Ctl: amemctl, its JSON and its exit codes."""
import json
import subprocess

from sim_node.child import Child, Died, patience

OK, FAILED, USAGE, UNREACHABLE, NOT_FOUND, WRONG_STATE, DEADLINE, RESOURCES, PERMISSION = range(9)


class Answer:
    def __init__(self, code, out, err):
        self.code = code
        self.out = out
        self.err = err

    @property
    def lines(self):
        """What was printed, a JSON value a line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def json(self):
        return self.lines[-1]

    @property
    def error(self):
        """The text of the error."""
        for line in self.err.splitlines():
            if line.startswith('{"error"'):
                return json.loads(line)["error"]["text"]
        return self.err

    def __repr__(self):
        return f"<exit code {self.code}, out {self.out!r}, err {self.err!r}>"


class Operation(Child):
    """A pause, resume, swap or watch under way."""

    def wait_phase(self, phase, ranks_done=0, deadline=20):
        """Returns when so many ranks have done their part of it; 0: when it has begun."""
        while True:
            progress = self.json_line(deadline)
            if progress["phase"] == phase and progress["ranks_done"] >= ranks_done:
                return

    def finish(self, deadline=40):
        code = self.wait(deadline)
        return Answer(code, self.output("out"), self.output("err"))


class Ctl:
    def __init__(self, node, prefix=()):
        self.node = node
        self._prefix = list(prefix)

    def by(self, prefix):
        """The same by another user: `prefix` is as_user()."""
        return Ctl(self.node, prefix)

    def _argv(self, arguments, json_output=True):
        globals_ = ["--runtime-dir", self.node.runtime_dir] + (["--json"] if json_output else [])
        return [str(each) for each in [*self._prefix, self._build().program("amemctl"), *globals_, *arguments]]

    def _build(self):
        return self.node.build.for_others() if self._prefix else self.node.build

    def _env(self):
        return self.node.env(build=self._build()) if self._prefix else self.node.env()

    def try_(self, *arguments, json_output=True, deadline=40):
        """Runs amemctl; whatever comes of it."""
        argv = self._argv(arguments, json_output)
        done = subprocess.run(argv, env=self._env(), capture_output=True, text=True, timeout=patience(deadline))
        with open(self.node.log_file("amemctl"), "a") as log:
            log.write(f"$ {' '.join(argv[1:])}\n{done.stdout}{done.stderr}-> {done.returncode}\n")
        return Answer(done.returncode, done.stdout, done.stderr)

    def __call__(self, *arguments, **options):
        """Runs amemctl, which must succeed."""
        answer = self.try_(*arguments, **options)
        assert answer.code == OK, f"amemctl {' '.join(map(str, arguments))}: {answer!r}"
        return answer

    def start(self, *arguments):
        """Runs amemctl in the background."""
        return self.node.adopt(Operation(f"amemctl {' '.join(map(str, arguments))}", self._argv(arguments),
                                         self._env(), self.node.log_file("amemctl-" + arguments[0])))

    def reachable(self):
        try:
            return self.try_("version", "--timeout", "1s").json["broker"] is not None
        except (Died, subprocess.TimeoutExpired):
            return False

    def status(self):
        return self("status").json

    def group(self, name):
        """What `groups` says of a group; None when there is no such group."""
        return next((each for each in self("groups").json["groups"] if each["name"] == name), None)

    def state(self, name):
        return self.group(name)["state"].removeprefix("GROUP_STATE_").lower()

    def devices(self):
        return sorted(self.status()["devices"], key=lambda each: each["ordinal"])

    def ranks(self, group):
        return sorted(self("ranks", group).json["ranks"], key=lambda each: each["rank"])
