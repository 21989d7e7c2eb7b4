#!/usr/bin/env python3
"""What our libraries show to others, by nm and by abidw; and the files that say what it is to be: exports.py --update build/release
writes them again, for the commit of the change. docs/packages.md says what may change in which version."""
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
ABI = ROOT / "client" / "abi" / "libamem_client.so.0.abi"
LISTS = {"libamem_client.so": ROOT / "client" / "abi" / "symbols.txt", "libamem_shim.so": ROOT / "shim" / "symbols.txt"}


def exported(library):
    out = subprocess.run(["nm", "-D", "--defined-only", "--format=posix", str(library)], stdout=subprocess.PIPE, text=True, check=True,
                         timeout=60).stdout
    return sorted(line.split()[0] for line in out.splitlines() if line.split()[1] != "A")  # A: a version's name


def write_abi(library, path):
    """Of what the header says alone: what a program cannot see of a type is no ABI."""
    subprocess.run(["abidw", "--headers-dir", str(ROOT / "client" / "include" / "amem"), "--drop-private-types", "--no-corpus-path",
                    "--no-comp-dir-path", "--no-show-locs", "--no-elf-needed", "--exported-interfaces-only", "--type-id-style", "hash",
                    "--out-file", str(path), str(library)], check=True, timeout=60)


def main():
    if len(sys.argv) != 3 or sys.argv[1] != "--update":
        sys.exit(__doc__)
    libraries = pathlib.Path(sys.argv[2]) / "lib"
    for library, path in LISTS.items():
        path.write_text("".join(symbol + "\n" for symbol in exported(libraries / library)), encoding="utf-8")
    write_abi(libraries / "libamem_client.so", ABI)


if __name__ == "__main__":
    main()
