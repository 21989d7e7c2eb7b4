"""amem.enable(), for verl alone: what its external_lib names is a module, and verl calls nothing in it but imports it."""
from amem._enable import enable

enable()
