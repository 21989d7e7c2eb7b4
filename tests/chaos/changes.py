#!/usr/bin/env python3
"""Changes one random byte between two pauses, again and again: each must be found. See --help.

A puppet on a simulated node has memory of its heap. Between two pauses it changes one random byte of each of its blocks. A pause must
copy exactly the blocks of 64 KiB with these bytes. Once in a while, and at the end, all bytes are compared.
"""
import argparse
import os
import random
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integration"))
from sim_node.flipped import FlippedMemory  # noqa: E402
from sim_node.node import Build, Node  # noqa: E402

KIB = 1 << 10
BLOCK = 64 * KIB
EVERY = 500  # cycles between two comparisons of all bytes


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build-dir", default="build/release")
    parser.add_argument("--cycles", type=int, default=100_000, help="pauses and resumes (default: %(default)s)")
    parser.add_argument("--blocks", type=int, default=1, help="allocations, of each of which a byte changes (default: %(default)s)")
    parser.add_argument("--kib", type=int, default=2048, help="size of each (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    build = os.path.abspath(arguments.build_dir)
    sys.path.insert(0, os.path.join(build, "python"))
    import amem  # noqa: PLC0415  (of the build)

    rng = random.Random(arguments.seed)
    node = Node(Build(build), tempfile.mkdtemp(prefix="amem-changes-", dir="/tmp"))
    try:
        node.start_broker("--log-level", "warning")
        memory = FlippedMemory(node, *[arguments.kib * KIB] * arguments.blocks, env={"AMEM_LOG": "warning"})
        broker = amem.Broker(runtime_dir=node.runtime_dir)
        began = time.monotonic()
        for cycle in range(arguments.cycles + 1):
            done = broker.pause("train")
            copied = sum(save.copied_bytes for save in done.saves)
            wanted = arguments.blocks * (BLOCK if cycle else arguments.kib * KIB)
            assert copied == wanted, f"seed {arguments.seed}, cycle {cycle}: copied {copied} bytes in place of {wanted}"
            broker.resume("train")
            if cycle % EVERY == 0:
                memory.verify()
            for block, size in memory.blocks.items():
                memory.flip(block, rng.randrange(size))
        memory.verify()
        took = time.monotonic() - began
        print(f"seed {arguments.seed}: {arguments.cycles} cycles, {arguments.cycles * arguments.blocks} changed bytes, none missed "
              f"({took:.0f} s)")
    finally:
        node.close()


if __name__ == "__main__":
    main()
