"""Threads with little stack: what amem's part of a call may take of it."""
import subprocess

import pytest

from sim_node import patience
from sim_node.child import sanitized

KIB = 1024
ENOUGH_WITHOUT_AMEM = 32
MOST_OF_AMEM = 16


def shallow(node, kib, launcher=()):
    """amem-shallow on a thread with so much stack: what each of its calls took of it, by name."""
    environment = node.env({"AMEM_LOG": "debug", "AMEM_SCOPE": "heap"})
    done = subprocess.run([*launcher, node.build.program("amem-shallow"), str(kib)], env=environment, text=True,
                          capture_output=True, timeout=patience(30))
    assert done.returncode == 0, f"{kib} KiB of stack: {done.returncode}\n{done.stdout}\n{done.stderr}"
    took = {}
    for line in done.stdout.splitlines():
        name, result, stack = line.split("\t")
        assert result == "0", line
        took[name] = max(took.get(name, 0), int(stack))
    return took


def test_a_small_stack_is_enough(node):
    if sanitized(node.broker.pid):
        pytest.skip("sanitizers take more stack")
    without = shallow(node, ENOUGH_WITHOUT_AMEM)
    of_amem = shallow(node, ENOUGH_WITHOUT_AMEM + MOST_OF_AMEM, node.launcher("train"))
    assert {"cuMemAlloc", "amem_shim_pause"} <= set(of_amem), of_amem
    too_much = {name: stack for name, stack in of_amem.items() if stack - without.get(name, 0) > MOST_OF_AMEM * KIB}
    assert not too_much, f"bytes of stack that calls take: {too_much}; without amem: {without}"
