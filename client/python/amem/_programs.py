"""The programs in the wheel. This process becomes the program, which keeps its process id, its signals and its exit status."""
from __future__ import annotations

import os
import pathlib
import shutil
import signal
import sys
from typing import NoReturn

from amem.errors import NotFoundError


def path(name: str) -> pathlib.Path:
    """The path of a program: amem/bin/NAME, else the one in PATH if the package has none. NotFoundError: there is none."""
    own = pathlib.Path(__file__).parent / "bin" / name
    found = str(own) if own.is_file() else shutil.which(name)
    if found is None:
        raise NotFoundError(
            f"there is no {own}, and no {name} in PATH. Install the wheel, which contains it (docs/python.md)")
    return pathlib.Path(found)


def become(name: str, elsewhere: bool = False) -> NoReturn:
    """Runs amem/bin/NAME with this process's arguments. Exit status 1, after an error: it does not exist, or cannot run.

    `elsewhere`: if the package has no such program, run the one in PATH. The console script of that name must not use it,
    because it would find itself.
    """
    own = pathlib.Path(__file__).parent / "bin" / name
    found = shutil.which(name) if elsewhere and not own.is_file() else None
    program = pathlib.Path(found) if found else own
    if not program.is_file():
        sys.exit(
            f"{name}: there is no {program}, because this package amem was installed without its programs. Install the wheel, "
            f"which contains them (docs/python.md), or call a {name} that is installed elsewhere by its path")
    # Python ignores these, and what is ignored stays so in the program and in all that it starts.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execv(program, [name, *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"{name}: cannot run {program}: {error.strerror}")


def amemctl() -> NoReturn:
    """The command amemctl."""
    become("amemctl")
