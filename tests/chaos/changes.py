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
from sim_node.node import Build, Node  # noqa: E402

KIB = 1 << 10
BLOCK = 64 * KIB
EVERY = 500  # cycles between two comparisons of all bytes


class Memory:
    def __init__(self, node, blocks, size):
        self.puppet = node.puppet(scope="heap", env={"AMEM_MODULES": "none", "AMEM_LOG": "warning"})
        self.size = size
        self.blocks = [self.puppet.ask(f"plain {size}")["id"] for _ in range(blocks)]
        self.flipped = {block: set() for block in self.blocks}
        for block in self.blocks:
            self.puppet.ask(f"fill {block} {block}")

    def change(self, rng):
        for block in self.blocks:
            offset = rng.randrange(self.size)
            self.puppet.ask(f"flip {block} {offset}")
            self.flipped[block] ^= {offset}

    def verify(self):
        """Changed once more, all bytes are as they were at first."""
        for block, offsets in self.flipped.items():
            listed = sorted(offsets)
            for _ in range(2):
                for begin in range(0, len(listed), 100):
                    self.puppet.ask(f"flip {block} {' '.join(map(str, listed[begin:begin + 100]))}")
                if _ == 0:
                    self.puppet.ask(f"verify {block} {block}")


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
        memory = Memory(node, arguments.blocks, arguments.kib * KIB)
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
            memory.change(rng)
        memory.verify()
        took = time.monotonic() - began
        print(f"seed {arguments.seed}: {arguments.cycles} cycles, {arguments.cycles * arguments.blocks} changed bytes, none missed "
              f"({took:.0f} s)")
    finally:
        node.close()


if __name__ == "__main__":
    main()
