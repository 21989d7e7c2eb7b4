"""An interactive shell on a pseudo-terminal, as a person has it."""

import contextlib
import os
import pty
import select
import signal
import time

SLOWNESS = float(os.environ.get("AMEM_TEST_SLOWNESS", "1"))


class Terminal:
    PROMPT = "ready$ "

    def __init__(self, env):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], {**env, "PS1": self.PROMPT, "TERM": "dumb"})
        self.seen = ""  # what nobody has expected yet
        self.expect(self.PROMPT)

    def read(self, until):
        """What comes until then, a time of time.monotonic(). False: nothing."""
        if not select.select([self.fd], [], [], max(0, until - time.monotonic()))[0]:
            return False
        self.seen += os.read(self.fd, 4096).decode(errors="replace")
        return True

    def expect(self, text, deadline=30):
        """Waits for the text, and returns what comes before it."""
        until = time.monotonic() + deadline * SLOWNESS
        while text not in self.seen:
            if not self.read(until):
                raise AssertionError(f"no {text!r} within {deadline} s in {self.seen!r}")
        before, _, self.seen = self.seen.partition(text)
        return before

    def type(self, text):
        os.write(self.fd, text.encode())

    def types_until_answered(self, line):
        """Until a program reads it, and not the shell: then it comes once more than the terminal has echoed it."""
        for typed in range(1, 60):
            self.type(line + "\n")
            until = time.monotonic() + 0.5
            while self.read(until):
                pass
            if self.seen.count(line) > typed:
                return
        raise AssertionError(f"nobody answers: {self.seen!r}")

    def close(self):
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGHUP)
        os.close(self.fd)
        os.waitpid(self.pid, 0)
