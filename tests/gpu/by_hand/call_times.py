#!/usr/bin/env python3
"""How long single calls of the CUDA driver take, in a program and in all that it starts, such as amemd.

    call_times.py -- ../run.sh --quick hand_on_full

Makes a libcuda.so.1 that passes every call on to the driver's and times those that make, map, unmap and free memory. A call holds a lock
of the driver's for about as long as it takes, and all processes of the node wait for that lock. Prints a table: for each call how often it
was made, its mean and its longest time. It needs gcc and nm. The exit status is the program's.
"""

import argparse
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

TIMED = ("cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap", "cuMemSetAccess", "cuMemImportFromShareableHandle",
         "cuMemExportToShareableHandle", "cuMemAddressReserve", "cuMemAddressFree", "cuMemHostRegister_v2", "cuMemHostUnregister",
         "cuMemAlloc_v2", "cuMemFree_v2")
ROW = struct.Struct("QQQ")  # calls, nanoseconds of all, of the longest

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

extern void* real_calls[];
static const unsigned long places[] = {PLACES};
struct Row { _Atomic unsigned long calls, all, longest; };
static struct Row* rows;

__attribute__((constructor)) static void find(void) {
  void* driver = dlopen(DRIVER, RTLD_NOW | RTLD_LOCAL);
  if (driver == NULL) abort();
  /* Not by dlsym, where the shim would give its own. */
  const unsigned long base = ((struct link_map*)driver)->l_addr;
  for (unsigned long i = 0; i < sizeof places / sizeof *places; ++i) real_calls[i] = (void*)(base + places[i]);
  const int file = open(TABLE, O_RDWR | O_CLOEXEC);
  void* table = file < 0 ? MAP_FAILED : mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (table != MAP_FAILED) rows = table;
  if (file >= 0) close(file);
}

static unsigned long now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000UL + time.tv_nsec;
}

typedef unsigned long Word;
static Word timed(int row, int call, Word a, Word b, Word c, Word d, Word e, Word f) {
  const Word began = now();
  const Word result = ((Word(*)(Word, Word, Word, Word, Word, Word))real_calls[call])(a, b, c, d, e, f);
  const Word took = now() - began;
  if (rows == NULL) return result;
  atomic_fetch_add(&rows[row].calls, 1);
  atomic_fetch_add(&rows[row].all, took);
  Word longest = atomic_load(&rows[row].longest);
  while (took > longest && !atomic_compare_exchange_weak(&rows[row].longest, &longest, took)) {}
  return result;
}

/* Who asks for a function's address gets the one that is timed, too. */
extern void* const timed_calls[];
extern const int timed_at[];
static Word looked_up(int call, Word a, Word b, Word c, Word d, Word e, Word f) {
  const Word result = ((Word(*)(Word, Word, Word, Word, Word, Word))real_calls[call])(a, b, c, d, e, f);
  void** const found = (void**)b;
  for (int row = 0; (int)result == 0 && found != NULL && timed_calls[row] != NULL; ++row)
    if (*found == real_calls[timed_at[row]]) *found = timed_calls[row];
  return result;
}
"""


def calls_of(driver):
    """{name: where it lies in the library}"""
    listed = subprocess.run(["nm", "-D", "--defined-only", driver], capture_output=True, text=True, check=True).stdout
    symbols = (line.split() for line in listed.splitlines())
    return {name.split("@")[0]: int(place, 16) for place, kind, name in symbols if kind in "TW" and name.startswith("cu")}


def make_library(folder, driver, table):
    places = calls_of(driver)
    calls = list(places)
    rows = [call for call in TIMED if call in calls]
    source = [SOURCE.replace("PLACES", ", ".join(map(str, places.values()))).replace("DRIVER", f'"{driver}"')
              .replace("TABLE", f'"{table}"').replace("BYTES", str(len(rows) * ROW.size))]
    parameters = "Word a, Word b, Word c, Word d, Word e, Word f"
    source += [f"Word {call}({parameters}) {{ return timed({row}, {calls.index(call)}, a, b, c, d, e, f); }}" for row, call in enumerate(rows)]
    lookups = [call for call in calls if call.startswith("cuGetProcAddress")]
    source += [f"Word {call}({parameters}) {{ return looked_up({calls.index(call)}, a, b, c, d, e, f); }}" for call in lookups]
    source += ["void* const timed_calls[] = {" + ", ".join([*rows, "NULL"]) + "};",
               "const int timed_at[] = {" + ", ".join(str(calls.index(call)) for call in rows) + "};"]
    jumps = [".bss", ".globl real_calls", ".hidden real_calls", ".balign 8", "real_calls:", f".zero {8 * len(calls)}", ".text"]
    for at, call in enumerate(calls):
        if call not in (*rows, *lookups):
            jumps += [f".globl {call}", f".type {call}, @function", f"{call}: jmp *real_calls+{8 * at}(%rip)"]
    jumps.append('.section .note.GNU-stack,"",@progbits')
    (folder / "timed.c").write_text("\n".join(source) + "\n")
    (folder / "jumps.s").write_text("\n".join(jumps) + "\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", folder / "libcuda.so.1", "-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic", folder / "timed.c", folder / "jumps.s",
                    "-ldl"], check=True)
    return rows


def driver_file():
    """Where the loader finds the driver, as in LD_LIBRARY_PATH."""
    found = subprocess.run([sys.executable, "-c", "import ctypes; ctypes.CDLL('libcuda.so.1'); print(open('/proc/self/maps').read())"],
                           capture_output=True, text=True, check=True).stdout
    [file] = {line.split()[-1] for line in found.splitlines() if "/libcuda.so" in line}
    return pathlib.Path(file)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="+", help="after --")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="amem-call-times-") as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        table = folder / "table"
        rows = make_library(folder, driver_file(), table)
        table.write_bytes(bytes(len(rows) * ROW.size))
        table.chmod(0o666)
        paths = [str(folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        status = subprocess.run(options.command, env={**os.environ, "LD_LIBRARY_PATH": ":".join(paths)}, check=False).returncode
        print("| call | calls | mean, ms | longest, ms |\n| --- | --- | --- | --- |")
        for call, (calls, all_ns, longest_ns) in zip(rows, ROW.iter_unpack(table.read_bytes())):
            if calls > 0:
                print(f"| {call} | {calls} | {all_ns / calls / 1e6:.3f} | {longest_ns / 1e6:.1f} |")
    sys.exit(status)


main()
