"""Calls amem.enable() for verl. The option external_lib names a module, which verl imports and does not call."""
from amem._enable import enable

enable()
