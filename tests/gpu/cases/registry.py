"""The list of the cases of the GPU tests.

A case is a function that takes a Bench, returns a line of detail when it passes, and raises Failure or Skip.
"""

_FIRST = []
_LAST = []


def case(limit, last=False):
    """Registers a case with its time limit in seconds. They run in the order in which they are registered; `last`: after
    those of all modules."""
    def register(function):
        (_LAST if last else _FIRST).append((function.__name__, function, limit))
        return function
    return register


def all_cases():
    """(name, function, limit) in the order in which they run."""
    return _FIRST + _LAST
