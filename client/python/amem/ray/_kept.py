"""Kept: an amemd that ends with its object, and at the latest with this process."""
from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from amem import _programs
from amem.errors import DeadlineExceededError, InternalError, ResourceExhaustedError, UnavailableError
from amem.messages import PoolStatus
from amem.ray import _supervisor

_LOOK = 0.05
_TAIL = 8  # lines of the log that an error has
_TO_END = 3 * _supervisor.PATIENCE + 5


class Kept:
    """An amemd that ends with this object. Any thread."""

    def __init__(self, directory: str, flags: Sequence[str]) -> None:
        """Starts amemd.

        It does not read a configuration file, because the file is for another broker of this machine. It uses the variables AMEM_...
        of this process.

        Args:
            directory: amemd's runtime directory. It must exist, and only this user may have access. It is removed when amemd ends.
            flags: The options of amemd, without --runtime-dir.

        Raises:
            NotFoundError: amemd is not installed.
            InternalError: amemd could not start.
        """
        supervisor = [sys.executable, "-I", "-S", _supervisor.__file__, directory]
        daemon = [str(_programs.path("amemd")), "--config", "/dev/null", "--runtime-dir", directory,
                  "--deadlines-end", f"{_supervisor.PATIENCE / 2:g}s", *flags]
        self.directory = directory
        self._lock = threading.Lock()
        self._said = ""
        self._log_tail = ""
        life, self._life = os.pipe2(os.O_CLOEXEC)
        self._reports, report = os.pipe2(os.O_CLOEXEC)
        # A shim that this process may have is for ranks.
        environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        try:
            # From here on the supervisor has the directory's end in its hands.
            subprocess.run([*supervisor, *daemon], stdin=life, stdout=report, env=environment, timeout=60, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise InternalError(f"amemd's supervisor could not start: {error}") from None
        finally:
            os.close(life)
            os.close(report)
        os.set_blocking(self._reports, False)

    def fault(self) -> str | None:
        """Why amemd does not run, with the last lines of its log. None: it runs, or has not started yet."""
        with self._lock:
            gone = not self._hear()
            words = [line.partition(" ") for line in self._said.splitlines()]
        for what, _, rest in words:
            if what == "cannot":
                return f"amemd could not start: {rest.removeprefix('start ')}"
            if what == "ended":
                self._log_tail = self._tail() or self._log_tail
                how = f"was killed by signal {-int(rest)}" if rest.startswith("-") else f"has ended with status {rest}"
                return f"amemd {how}" + (f". The last lines of its log:\n{self._log_tail}" if self._log_tail else "")
        return "amemd's supervisor has ended, and amemd ended with it" if gone else None

    def wait(self, timeout: float) -> None:
        """Waits until amemd serves and its pool is complete.

        DeadlineExceededError: it is not ready in time. InternalError: it has ended. The text has its last words.
        ResourceExhaustedError: the node has too little memory for the pool.
        """
        from amem.broker import Broker

        until = time.monotonic() + timeout
        with Broker(self.directory) as broker:
            while True:
                why = self.fault()
                if why is not None:
                    raise InternalError(why)
                try:
                    pool = broker.status().pool
                    if pool.error:
                        raise ResourceExhaustedError(f"the pool has {_part(pool)}: {pool.error}")
                    if pool.ready_bytes >= pool.configured_bytes - pool.elastic_bytes:
                        return
                    state = f"its pool has {_part(pool)}"
                except UnavailableError:
                    state = "it does not serve yet"
                if time.monotonic() >= until:
                    raise DeadlineExceededError(f"amemd was not ready within {timeout:g} s: {state}")
                time.sleep(_LOOK)

    def end(self) -> bool:
        """Ends amemd and its child processes, and removes the directory. Returns whether it was in time."""
        with self._lock:
            if self._life < 0:
                return True
            os.close(self._life)
            self._life = -1
        until = time.monotonic() + _TO_END
        while time.monotonic() < until:
            with self._lock:
                if not self._hear():
                    return True
            time.sleep(_LOOK)
        return False

    def _hear(self) -> bool:
        """Reads the supervisor's reports. Returns whether it still runs."""
        while True:
            try:
                said = os.read(self._reports, 4096)
            except BlockingIOError:
                return True
            if not said:
                return False
            self._said += said.decode(errors="replace")

    def _tail(self) -> str:
        try:
            text = pathlib.Path(self.directory, _supervisor.LOG).read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-_TAIL:])


def _part(pool: PoolStatus) -> str:
    return f"{pool.ready_bytes} of {pool.configured_bytes} bytes"
