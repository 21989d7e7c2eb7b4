"""Where programs look for the hook library's C interface."""
from amem._saver import BinaryWrapper

__all__ = ["BinaryWrapper"]
