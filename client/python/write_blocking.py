#!/usr/bin/env python3
"""Writes amem/broker.py and amem/cluster.py, whose calls block, from amem/aio/_broker.py and amem/aio/_cluster.py. Run it after a change
of those.

The blocking calls have the same arguments, results, errors and docstrings, except for the sentences below.
tests/python/test_blocking.py finds a file that is out of date.
"""
import argparse
import pathlib
import re
import sys

PACKAGE = pathlib.Path(__file__).resolve().parent / "amem"

MADE_FROM = '''
client/python/write_blocking.py makes this file of amem/aio/{source}.
"""
'''

BROKER = '''"""Broker: a connection to amemd's control socket, for controllers. It requires grpcio, but neither a GPU nor the shim.

    with amem.Broker() as broker:
        broker.pause("train")
        broker.resume("rollout", tags=["weights"])
        broker.pause(["engine0", "engine1"])  # one operation, all or none
        for progress in broker.swapping("rollout", "train"):
            print(progress.group, progress.phase)

cluster.py has the same calls for groups that span several nodes.
'''

CLUSTER = '''"""Cluster: groups that span several nodes, controlled as one (docs/nodes.md). It requires grpcio.

    with amem.Cluster(["node1:7070", "node2:7070"]) as cluster:
        cluster.swap("rollout", "train")
        for node, answer in cluster.status().items():
            print(node, answer.error or answer.value)

The broker of this node leads, or the broker at `address`.
'''

BOTH = [
    ("A plain function that the event loop calls for each step.", "A function that this thread calls for each step."),
    ("Prepares pause(). The first step of the iteration starts it.", "Starts pause() and does not wait."),
    ("Prepares resume(). The first step of the iteration starts it.", "Starts resume() and does not wait."),
    ("Prepares swap(). The first step of the iteration starts it.", "Starts swap() and does not wait."),
    ("An asynchronous iterator over", "An iterator over"),
    ("from amem.aio._calls import", "from amem._connection.calls import"),
    ("from amem.aio._transport import", "from amem._connection.transport import"),
]

# Each source: its module, what the module says of itself, and what else differs.
MODULES = {
    "_broker.py": ("broker.py", BROKER, [
        ("""    It has the methods of amem.Broker, with the same arguments, results and errors. Several tasks of one event loop may use it
    at the same time. A cancelled task, for example by asyncio.timeout(), stops waiting. Its operation continues in the broker.
    A coroutine checks its arguments when it begins. pausing(), resuming(), swapping() and watch() check them at once.
""", """    Several threads may use it at the same time. A child of fork() must not use it. An empty group name means all groups.

    All calls raise UnavailableError if there is no broker or the connection was lost. If that happens during an operation,
    groups() shows the state. All calls raise PermissionDeniedError if the socket belongs to another user, and
    InvalidArgumentError if the name of a group or tag is not valid.
"""),
        ("The watch begins when `async with` has entered it.", "The watch begins when this call returns."),
    ]),
    "_cluster.py": ("cluster.py", CLUSTER, [
        ("""    It has the methods of amem.Cluster, with the same arguments, results and errors. Several tasks of one event loop may use
    it at the same time. A cancelled task stops waiting. Its operation continues in the brokers.
""", """    Each operation covers the groups of all nodes. If one node fails, all nodes stay as they were (docs/nodes.md), and the
    error names the node. Several threads may use it at the same time. A child of fork() must not use it.
"""),
        ("from amem.aio._broker import", "from amem.broker import"),
        ("from collections.abc import Awaitable, Callable,", "from collections.abc import Callable,"),
        ("Awaitable[Answer]", "Answer"),
    ]),
}

_DEFINES = re.compile(r" *async def (__a)?.*[(,]$")


def aligned(text):
    """The arguments of a function stay below its bracket when "async " goes, and the "a" of __aexit__."""
    lines, shift = [], 0
    for line in text.splitlines(keepends=True):
        lines.append(line[shift:])
        if shift:
            shift = 0 if line.rstrip().endswith((":", "...")) else shift
        elif begins := _DEFINES.match(line.rstrip()):
            shift = len("async a" if begins[1] else "async ")
    return "".join(lines)


def sorted_imports(text):
    """Imports of the package, each in one line, by their modules."""
    lines = text.splitlines(keepends=True)
    ours = [number for number, line in enumerate(lines) if line.startswith("from amem") and not line.endswith("(\n")]
    first, last = ours[0], ours[-1] + 1
    return "".join(lines[:first] + sorted(lines[first:last], key=lambda line: line.split()[1]) + lines[last:])


def blocking(source, text):
    """The blocking module's text."""
    _, about, others = MODULES[source]
    _, _, code = text.partition('"""\nfrom __future__')  # behind what the source says of itself
    code = "from __future__" + code
    for theirs, ours in [*others, *BOTH]:
        if theirs not in code:
            sys.exit(f"write_blocking: amem/aio/{source} has no longer: {theirs}")
        code = code.replace(theirs, ours)
    code = re.sub(r"\b(async|await) ", "", aligned(code))
    code = re.sub(r"\b__a(enter|exit)__\b", r"__\1__", code)
    return about + MADE_FROM.format(source=source) + sorted_imports(code)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 if a file is out of date")
    parser.add_argument("--package", type=pathlib.Path, default=PACKAGE)
    options = parser.parse_args()
    for source, (module, _, _) in MODULES.items():
        text = blocking(source, (options.package / "aio" / source).read_text(encoding="utf-8"))
        path = options.package / module
        if not options.check:
            path.write_text(text, encoding="utf-8")
        elif path.read_text(encoding="utf-8") != text:
            sys.exit(f"write_blocking: {path} is not what amem/aio/{source} gives: run client/python/write_blocking.py")


if __name__ == "__main__":
    main()
