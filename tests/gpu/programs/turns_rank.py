#!/usr/bin/env python3
"""A program without PyTorch for groups that take turns: memory of known bytes on GPU 0, and work that changes it.

    amemctl run --group train --scope heap --stage night -- python3 turns_rank.py busy --mib 4096 --progress FILE --stop-file FILE
    python3 turns_rank.py fill --leave-mib 2048 --progress FILE --stop-file FILE        without amem
    python3 turns_rank.py churn --mib 20480 --progress FILE --stop-file FILE            the same: allocates and frees without end

busy works without end, and serve as often as the number in the file --work says. --lend shares memory besides by CUDA IPC, and --borrow
opens what another one lends. full serves, too: it has --mib of dense memory that changes in part, --zeros-mib of zeros, and --drop-mib that a
pause drops, in blocks of --block-mib; at each step it verifies all of it. train and rollout are the halves of an RL loop: each iteration of one needs what the other has computed, by
files in --folder. With --turns lease each takes its turns itself, with --turns told it waits for a file, and with --turns none it computes
at once. Their reports have checksums. All programs verify all bytes at the end. fill takes --mib of a GPU's memory, or with 0 all that is
free but for --leave-mib. Prints a JSON object. Exit status: 0 all right, 1 a check failed.
"""

import argparse
import ctypes
import faulthandler
import json
import os
import pathlib
import random
import subprocess
import sys
import time
import zlib

import bare_driver

MIB = 1 << 20
POLL_S = 0.005


class IpcHandle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]


class Driver(bare_driver.Driver):
    """Of device 0, for this thread."""

    def allocate(self, size):
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def free_bytes(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def set(self, address, word, size):
        self.call("cuMemsetD32_v2", ctypes.c_uint64(address), ctypes.c_uint(word), ctypes.c_size_t(size // 4))

    def copy(self, to, source, size):
        self.call("cuMemcpyDtoD_v2", ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(size))

    def read(self, address, size):
        data = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", data, ctypes.c_uint64(address), ctypes.c_size_t(size))
        return data.raw

    def wait(self):
        self.call("cuCtxSynchronize")

    def lend(self, address):
        handle = IpcHandle()
        self.call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(address))
        return bytes(handle)

    def borrow(self, handle):
        address = ctypes.c_uint64()
        lazily = ctypes.c_uint(1)
        self.call("cuIpcOpenMemHandle_v2", ctypes.byref(address), IpcHandle.from_buffer_copy(handle), lazily)
        return address.value


class Memory:
    """Pieces of two halves: the first has a word of the step, and the second what the next piece's first half had before."""

    def __init__(self, driver, mib, piece_mib=0):
        self.driver = driver
        self.piece = (piece_mib or (16 if mib >= 256 else 2)) * MIB
        self.half = self.piece // 2
        self.pieces = [driver.allocate(self.piece) for _ in range(mib * MIB // self.piece)]
        self.words = [[0, 0] for _ in self.pieces]
        for address in self.pieces:
            driver.set(address, 0, self.piece)
        self.step(0)

    def step(self, seed):
        for i, address in enumerate(self.pieces):
            after = (i + 1) % len(self.pieces)
            self.driver.copy(address + self.half, self.pieces[after], self.half)
            self.words[i][1] = self.words[after][0]
            self.words[i][0] = zlib.crc32(f"{seed} {i}".encode())
            self.driver.set(address, self.words[i][0], self.half)
        self.driver.wait()
        for i in random.sample(range(len(self.pieces)), min(4, len(self.pieces))):
            at = random.randrange(self.half // 4) * 4
            for number, word in enumerate(self.words[i]):
                found = int.from_bytes(self.driver.read(self.pieces[i] + number * self.half + at, 4), "little")
                if found != word:
                    sys.exit(f"FAILED: {found:#x} in half {number} of piece {i} at {at}, and not {word:#x}, after step {seed}")

    def verified(self, i):
        """The bytes of a piece that are there. Each of them is compared with what it must be."""
        data = self.driver.read(self.pieces[i], self.piece)
        if data != b"".join(word.to_bytes(4, "little") * (self.half // 4) for word in self.words[i]):
            sys.exit(f"FAILED: piece {i} has other bytes")
        return data

    def verify(self):
        for i in range(len(self.pieces)):
            self.verified(i)

    def checksum(self, pieces):
        crc = 0
        for i in pieces:
            crc = zlib.crc32(self.verified(i), crc)
        return crc


class Full:
    """What fills a GPU: dense memory, zeros, and memory that each pause drops and that the program fills again."""

    JUNK = 0xBADC0DE

    def __init__(self, driver, options):
        import amem  # of this role only
        self.driver = driver
        self.dense = Memory(driver, options.mib, options.block_mib)
        self.size = options.block_mib * MIB
        self.zeros = [driver.allocate(self.size) for _ in range(options.zeros_mib // options.block_mib)]
        with amem.region("scratch", keep=False):
            self.dropped = [driver.allocate(self.size) for _ in range(options.drop_mib // options.block_mib)]
        for address in self.zeros:
            driver.set(address, 0, self.size)
        self.fill()

    def fill(self):
        for address in self.dropped:
            self.driver.set(address, self.JUNK, self.size)
        self.driver.wait()

    def step(self, number):
        if number > 0:
            self.check(self.zeros, {0}, "zeros")
            self.check(self.dropped, {0, self.JUNK}, "dropped memory")
        if number % 4 == 0:  # all its bytes; that takes a second
            self.dense.verify()
        changed = number % len(self.dense.pieces)
        self.dense.words[changed][0] = zlib.crc32(f"{number}".encode())
        self.driver.set(self.dense.pieces[changed], self.dense.words[changed][0], self.dense.half)
        self.fill()

    def check(self, blocks, words, what):
        for i, address in enumerate(blocks):
            found = {int.from_bytes(self.driver.read(address + at, 4), "little")
                     for at in (0, random.randrange(self.size // 4) * 4, self.size - 4)}
            if len(found) > 1 or not found <= words:
                sys.exit(f"FAILED: {what}: block {i} has {sorted(map(hex, found))}")

    def verify(self):
        self.dense.verify()


class Shared:
    """Memory that one program lends and another one opens at its first step. Its bytes do not change."""

    WORD = 0x5EED1E55

    def __init__(self, driver, mib, lend, borrow):
        self.driver, self.size, self.borrow, self.address = driver, mib * MIB, borrow, None
        if lend:
            self.address = driver.allocate(self.size)
            driver.set(self.address, self.WORD, self.size)
            driver.wait()
            lend.write_bytes(driver.lend(self.address))

    def check(self):
        if self.address is None:
            self.address = self.driver.borrow(self.borrow.read_bytes())
        for at in (0, random.randrange(self.size // 4) * 4, self.size - 4):
            found = int.from_bytes(self.driver.read(self.address + at, 4), "little")
            if found != self.WORD:
                sys.exit(f"FAILED: {found:#x} in the shared memory at {at}")


def write_whole(path, text):
    new = path.with_name(path.name + ".new")
    new.write_text(str(text), encoding="ascii")
    new.rename(path)


def number_in(path):
    try:
        return int(path.read_text(encoding="ascii"))
    except FileNotFoundError:
        return 0


def wait_for(path):
    """The number in a file that somebody will write. No driver call: the group may be paused."""
    while not path.exists():
        time.sleep(POLL_S)
    return number_in(path)


def work(options, memory, shared):
    """busy, serve: the number of steps."""
    done = 0
    while not options.stop_file.exists():
        if options.role in ("serve", "full") and done >= number_in(options.work):
            time.sleep(POLL_S)
            continue
        memory.step(done)
        if shared:
            shared.check()
        done += 1
        write_whole(options.progress, done)
    return {"iterations": done}


def lease(*words):
    group = os.environ["AMEM_GROUP"]
    done = subprocess.run(["amemctl", "lease", group, *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"FAILED: amemctl lease {group}: {done.stderr.strip()}")


def half_of_a_loop(options, memory):
    """train, rollout: what each iteration gave."""
    mine, other = ("weights", "tokens") if options.role == "train" else ("tokens", "weights")
    if options.role == "train":
        write_whole(options.folder / "weights.0", 1)
    while not (options.folder / "go").exists():
        time.sleep(POLL_S)
    given = []
    for number in range(1, options.iterations + 1):
        seed = wait_for(options.folder / f"{other}.{number if options.role == 'train' else number - 1}")
        if options.turns == "lease":
            lease("--timeout", "100s")
        elif options.turns == "told":
            wait_for(options.folder / f"{options.role}.{number}")
        memory.step(seed)
        given.append(memory.checksum([number % len(memory.pieces)]))
        if number == options.iterations:
            final = memory.checksum(range(len(memory.pieces)))
        if options.turns == "lease":
            lease("--yield")
        write_whole(options.folder / f"{mine}.{number}", given[-1])
        write_whole(options.progress, number)
    while not options.stop_file.exists():
        time.sleep(POLL_S)
    return {"given": given, "final": final}


def fill(options, driver):
    left = driver.free_bytes() - options.leave_mib * MIB
    size = options.mib * MIB or left // (2 * MIB) * (2 * MIB)
    if size > 0:
        driver.allocate(size)
    write_whole(options.progress, 1)
    while not options.stop_file.exists():
        time.sleep(0.05)
    return {"mib": max(0, size) // MIB}


def churn(options, driver):
    rounds = 0
    while not options.stop_file.exists():
        driver.call("cuMemFree_v2", ctypes.c_uint64(driver.allocate(options.mib * MIB)))
        rounds += 1
        write_whole(options.progress, rounds)
    return {"rounds": rounds}


def main():
    options = parse(sys.argv[1:])
    faulthandler.enable()
    driver = Driver()
    if options.role == "fill":
        report = fill(options, driver)
    elif options.role == "churn":
        report = churn(options, driver)
    else:
        memory = Full(driver, options) if options.role == "full" else Memory(driver, options.mib)
        shared = Shared(driver, options.shared_mib, options.lend, options.borrow) if options.shared_mib else None
        write_whole(options.started, 1)
        if options.role in ("train", "rollout"):
            report = half_of_a_loop(options, memory)
        else:
            report = work(options, memory, shared)
            memory.verify()
    print(json.dumps({"program": "turns_rank", **report}), flush=True)


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("role", choices=("busy", "serve", "full", "train", "rollout", "fill", "churn"))
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--zeros-mib", type=int, default=0)
    parser.add_argument("--drop-mib", type=int, default=0)
    parser.add_argument("--block-mib", type=int, default=1024)
    parser.add_argument("--shared-mib", type=int, default=0, help="of memory beside --mib, with --lend or --borrow")
    parser.add_argument("--lend", type=pathlib.Path, help="file for the handle of memory that another program opens")
    parser.add_argument("--borrow", type=pathlib.Path, help="file with the handle of memory that another program lends")
    parser.add_argument("--leave-mib", type=int, default=0)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--turns", choices=("lease", "told", "none"), default="none")
    parser.add_argument("--folder", type=pathlib.Path, help="where train and rollout meet")
    parser.add_argument("--work", type=pathlib.Path, help="file with the number of steps that serve and full shall have done")
    parser.add_argument("--started", type=pathlib.Path, help="file that says that its memory is there")
    parser.add_argument("--progress", type=pathlib.Path, required=True, help="file for the number of steps so far")
    parser.add_argument("--stop-file", type=pathlib.Path, required=True, help="end as soon as this file exists")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
