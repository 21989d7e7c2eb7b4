#!/usr/bin/env python3
"""Measures which branches of daemon/ and shim/ the unit tests and the simulated worlds take, by file.

    tests/coverage.py                                  of this checkout; minutes
    tests/coverage.py --root DIR --csv before.csv      of another checkout, such as one of an older commit
    tests/coverage.py --before before.csv              and which files have fallen since

It builds build/coverage of the checkout without optimisation, and runs ctest with the label unit. gcovr counts. What exceptions do between two
statements is no branch. A test that fails is no error: it has taken its branches. Exit status 0; with --before 1 when a file has fallen.
"""
import argparse
import csv
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
TOOL = "gcovr==8.8"
FLAGS = "--coverage -O0 -g0"


def must(*command, **more):
    subprocess.run(list(map(str, command)), check=True, **more)


def measure(root, output, jobs):
    build = root / "build/coverage"
    must("cmake", "-S", root, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug", "-DAMEM_UNITY=ON", "-DAMEM_PRECOMPILE=OFF",
         *(f"-DCMAKE_{language}_FLAGS{kind}={flags}" for language in ("C", "CXX") for kind, flags in (("", FLAGS), ("_DEBUG", ""))),
         stdout=subprocess.DEVNULL)
    must("cmake", "--build", build, "--parallel", jobs, "--target", "unit_tests")
    for counts in build.rglob("*.gcda"):
        counts.unlink()
    subprocess.run(["ctest", "--test-dir", build, "--parallel", str(jobs), "-L", "unit", "-E", r"^(packages|newest|checks)\."], check=False)
    if not (build / "venv/bin/gcovr").is_file():
        must(sys.executable, "-m", "venv", build / "venv")
        must(build / "venv/bin/pip", "install", "--quiet", "--disable-pip-version-check", TOOL)
    must(build / "venv/bin/gcovr", "--root", root, build, "--exclude-throw-branches", "--exclude-unreachable-branches", "--filter",
         f"{root}/daemon/", "--filter", f"{root}/shim/", "--merge-mode-functions=separate", "--gcov-ignore-parse-errors=all", "-j", jobs,
         "--csv", output)


def read(path):
    """Of each file: branches, and those that were taken."""
    with open(path, encoding="utf-8", newline="") as file:
        return {row["filename"]: (int(row["branch_total"]), int(row["branch_covered"])) for row in csv.DictReader(file)}


def share(counts):
    total, taken = counts
    return taken / total if total else 1.0


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="another checkout than this one")
    parser.add_argument("--csv", type=pathlib.Path, help="the figures (default: build/coverage.csv of the checkout)")
    parser.add_argument("--before", type=pathlib.Path, help="figures to compare with")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="compilers and tests at once (default: %(default)s)")
    parser.add_argument("--only-compare", action="store_true", help="the figures are there already")
    arguments = parser.parse_args()
    output = (arguments.csv or arguments.root / "build/coverage.csv").resolve()
    if not arguments.only_compare:
        measure(arguments.root.resolve(), output, arguments.jobs)
    now = read(output)
    before = read(arguments.before) if arguments.before else {}
    fallen = {name for name, counts in now.items() if name in before and share(counts) < share(before[name])}
    for name, counts in sorted(now.items()):
        was = f"  before {share(before[name]):4.0%} of {before[name][0]}" if name in before else ""
        print(f"{share(counts):4.0%} of {counts[0]:5}  {name}{was}{'  FALLEN' if name in fallen else ''}")
    for folder in ("daemon", "shim"):
        for when, figures in (("before", before), ("now", now)):
            sums = [sum(each) for each in zip(*(counts for name, counts in figures.items() if name.startswith(f"{folder}/")))]
            if sums:
                print(f"{folder}, {when}: {share(sums):.1%} of {sums[0]}")
    return 1 if fallen else 0


if __name__ == "__main__":
    sys.exit(main())
