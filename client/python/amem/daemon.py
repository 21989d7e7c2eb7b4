"""`python -m amem.daemon [arguments]`: becomes the amemd of this package. `--help` lists its arguments."""
from __future__ import annotations

from typing import NoReturn

from amem._programs import become


def main() -> NoReturn:
    """The command amemd."""
    become("amemd")


if __name__ == "__main__":
    main()
