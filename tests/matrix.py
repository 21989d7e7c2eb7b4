#!/usr/bin/env python3
"""Runs integration tests again with another driver, another form of saved bytes, or without a fast path.

    tests/matrix.py             the full matrix: every driver and everything else once, in pairs; some half an hour on two cores
    tests/matrix.py NAME...     these; driver-12.4+form-dense is both at once
    tests/matrix.py --list      says which there are, and which tests each runs

Needs a build (tests/run.sh makes build/release). tests/integration/sim_node/combinations.py has what each sets. Exit status 0 when all
tests passed, 1 when one failed, 2 for wrong usage.
"""
import argparse
import os
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests/integration"))
from failed_once import failed_once  # noqa: E402
from sim_node.combinations import COMBINATIONS, settings_of  # noqa: E402

# By the name, or its first word: what depends on it.
TESTS = {
    "driver": ("bypass", "cycle", "graphs", "inside", "ipc", "linked", "multicast", "unknown_calls"),
    "form": ("paused_memory", "cycle", "frees", "inside", "loop", "traces"),  # small_pool is about the default form
    "form-xor": ("comeback", "frees", "paused_memory", "swap", "waves"),
    "place": ("comeback", "deep", "swap", "unchanged", "waves"),
    "phase": ("comeback", "inside", "swap", "waves"),
    "spares": ("comeback", "cycle", "deep", "deep_ends", "deep_proof", "deep_states", "fork", "graphs", "guests", "heap", "inside", "ipc", "local",
               "loop", "slabs", "swap", "unchanged", "unmap_ahead", "waves"),
    "without": ("cycle", "frees", "inside", "loop", "scopes", "traces"),
    "plain": ("cycle", "inside", "loop", "traces"),
}


def tests_of(combination):
    return sorted({test for name in combination.split("+") for test in TESTS.get(name) or TESTS[name.split("-")[0]]})


def pairs():
    """The full matrix: a version of the driver together with something else, until each of both has had its turn."""
    drivers = [name for name in COMBINATIONS if name.startswith("driver-")]
    others = [name for name in COMBINATIONS if name not in drivers]
    return [f"{drivers[i % len(drivers)]}+{others[i % len(others)]}" for i in range(max(len(drivers), len(others)))]


def run(name, build, parallel):
    """Whether all tests of the combination passed."""
    pattern = rf"^integration\.({'|'.join(tests_of(name))})$"
    command = ["ctest", "--test-dir", build, "--output-on-failure", "--no-tests=error", "--parallel", str(parallel), "-R", pattern]
    if os.environ.get("CI"):  # as tests/run.sh does
        command += ["--repeat", "until-pass:2"]
    began = time.monotonic()
    print(f"matrix.py: {name}: {' '.join(f'{key}={value}' for key, value in settings_of(name).items())}", flush=True)
    lines = []
    with subprocess.Popen(command, env={**os.environ, "AMEM_TEST_COMBINATION": name}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                          errors="replace") as tests:
        for line in tests.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    status = tests.returncode
    for repeated in failed_once(lines):
        print(f"matrix.py: WARNING: {name}: {repeated} failed, and passed when it was repeated")
    print(f"matrix.py: {name}: {'passed' if status == 0 else 'FAILED'} in {time.monotonic() - began:.0f} s", flush=True)
    return status == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--list", action="store_true", help="say which there are")
    parser.add_argument("--build-dir", default="build/release")
    parser.add_argument("--parallel", type=int, default=(os.cpu_count() or 1) + 1, help="tests at a time")
    arguments = parser.parse_args()
    for name in arguments.names:
        settings_of(name)
    if arguments.list:
        for name in [*COMBINATIONS, *pairs()]:
            print(f"{name:30} {' '.join(tests_of(name))}")
        return 0
    names = arguments.names or pairs()
    failed = [name for name in names if not run(name, os.path.join(ROOT, arguments.build_dir), arguments.parallel)]
    print(f"matrix.py: {len(names) - len(failed)} of {len(names)} combinations passed" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
