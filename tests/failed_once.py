#!/usr/bin/env python3
"""Names the tests that ctest has repeated: they failed at first, and passed then. Standard input, or a file: ctest's output."""
import re
import sys

TEST = re.compile(r"Test +#\d+: (\S+) .*?(\*\*\*|Passed)")


def failed_once(lines):
    """The names, in the order of their failures."""
    failed = {}
    for line in lines:
        match = TEST.search(line)
        if match is None:
            continue
        name, result = match.groups()
        if result == "***":
            failed.setdefault(name, False)
        elif name in failed:
            failed[name] = True
    return [name for name, passed in failed.items() if passed]


def main():
    with open(sys.argv[1], errors="replace") if len(sys.argv) > 1 else sys.stdin as log:
        names = failed_once(log)
    if names:
        print(f"WARNING: {len(names)} tests failed, and passed when they were repeated: {' '.join(names)}")


if __name__ == "__main__":
    main()
