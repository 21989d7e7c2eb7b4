"""`python -m amem [arguments]`: becomes the amemctl of this installation. `--help` lists its commands."""
from __future__ import annotations

from typing import NoReturn

from amem._programs import become


def main() -> NoReturn:
    """Becomes amemctl with this process's arguments: the amemctl of the wheel, else the one in PATH."""
    become("amemctl", elsewhere=True)


if __name__ == "__main__":
    main()
