#!/usr/bin/env python3
"""Pastes the commands of a page of the documentation into bash, in their order, and compares what they print with the page.

    tests/pasted.py docs/tutorial.md

Commands are the fenced blocks marked `sh`. A block marked `text` below is what they print on a terminal of 120 columns. In it `…` stands
for any text of a line, and for any number of lines where it is the whole line. How many blanks there are in a row does not matter. A block
without one prints nothing. Runs in the current folder. Exit status 0: everything was as the page says.
"""
from __future__ import annotations

import argparse
import dataclasses
import fcntl
import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

COLUMNS = 120
ANY = "…"
# Says that a block has ended, and how.
MARK = "\x1e"


class Different(Exception):
    """Something is not as the page says; the text says what."""


@dataclasses.dataclass
class Block:
    """Commands, and what they are to print."""

    line: int  # of the page
    commands: str
    expected: str = ""


def blocks(text: str) -> list[Block]:
    """The commands of a page."""
    found: list[Block] = []
    for each in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S):
        if each[1] == "sh":
            found.append(Block(text.count("\n", 0, each.start(2)) + 1, each[2]))
        elif each[1] == "text":
            found[-1].expected += each[2]
    return found


def matches(expected: str, printed: str) -> bool:
    """Whether that is what the page says."""
    pattern = ""
    for line in re.sub(" +", " ", expected).splitlines():
        pattern += r"(?:.*\n)*?" if line == ANY else ".*?".join(re.escape(part) for part in line.split(ANY)) + r"\n"
    return re.fullmatch(pattern, re.sub(" +", " ", printed)) is not None


def seen(raw: str) -> str:
    """What stays on the terminal of what was written to it."""
    lines = []
    for line in re.sub(r"\x1b\[[\d;]*m", "", raw).replace("\r\n", "\n").split("\n"):
        drawn = ""
        for again in line.split("\r"):  # from the line's beginning
            kept, erased, rest = again.partition("\x1b[K")
            drawn = kept + rest if erased else again + drawn[len(again):]
        lines.append(drawn.rstrip())
    return "\n".join(lines)


class Terminal:
    """A bash on a terminal, which is given one block after the other."""

    def __init__(self, folder: pathlib.Path, environment: dict[str, str]) -> None:
        self._mine, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
        self._shell = subprocess.Popen(["bash", "--norc"], cwd=folder, env=environment, text=True, stdin=subprocess.PIPE, stdout=theirs,
                                       stderr=theirs, start_new_session=True)
        os.close(theirs)
        self._rest = ""

    def paste(self, commands: str, seconds: float) -> tuple[str, int]:
        """(what is printed until they have ended, the exit status of the last). Different: they do not end."""
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"{commands.rstrip()}\nprintf '{MARK}%d\\n' $?\n")
        self._shell.stdin.flush()
        end = time.monotonic() + seconds
        while (found := re.search(MARK + r"(\d+)\r?\n", self._rest)) is None:
            ready, _, _ = select.select([self._mine], [], [], max(0.0, end - time.monotonic()))
            data = self._read() if ready else b""
            if not data:
                raise Different(f"has not ended {f'within {seconds:.0f} s' if not ready else 'when bash did'}; printed so far:\n"
                                f"{seen(self._rest)}")
            self._rest += data.decode(errors="replace")
        printed, self._rest = self._rest[:found.start()], self._rest[found.end():]
        return seen(printed), int(found[1])

    def _read(self) -> bytes:
        try:
            return os.read(self._mine, 1 << 16)
        except OSError:  # nobody has the terminal any more
            return b""

    def end(self) -> None:
        """With all that was started and is left."""
        try:
            os.killpg(self._shell.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._shell.wait()
        os.close(self._mine)


def paste(page: pathlib.Path, folder: pathlib.Path, environment: dict[str, str], seconds: float, first: int = 0, show: bool = False) -> int:
    """Pastes the page's blocks from a number on. Returns how many there were. Different: which one was not as the page says."""
    all_of_them = blocks(page.read_text(encoding="utf-8"))[first:]
    terminal = Terminal(folder, environment)
    try:
        for block in all_of_them:
            if show:
                print(f"$ {block.commands.rstrip()}", flush=True)
            where = f"{page.name}:{block.line}"
            try:
                printed, status = terminal.paste(block.commands, seconds)
            except Different as why:
                raise Different(f"{where}: {why}") from None
            if show:
                print(printed, end="", flush=True)
            if status != 0:
                raise Different(f"{where}: the last command ended with {status}; printed was:\n{printed}")
            if not matches(block.expected, printed):
                raise Different(f"{where}: is to print:\n{block.expected}\nbut printed:\n{printed}")
    finally:
        terminal.end()
    return len(all_of_them)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("page", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=3600, help="which each block may take (3600)")
    options = parser.parse_args()
    began = time.monotonic()
    try:
        count = paste(options.page, pathlib.Path.cwd(), dict(os.environ), options.seconds, show=True)
    except Different as why:
        print(f"FAILED: {why}", file=sys.stderr)
        return 1
    print(f"OK: {count} blocks of {options.page} in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
