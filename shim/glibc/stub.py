#!/usr/bin/env python3
"""Writes the source of a C library to link against: stub.py OLDEST SOURCE MAP READELF LIBRARY...

SOURCE has each function and variable of the LIBRARYs (the parts of this machine's glibc), without code, and MAP gives each of them the
newest version that glibc OLDEST has. What is linked to it needs no newer version; a name that glibc OLDEST does not have does not link.
"""
import re
import subprocess
import sys

TYPES = {"FUNC": "function", "IFUNC": "function", "OBJECT": "object", "TLS": "tls_object"}


def number(version):
    return tuple(map(int, version.split(".")))


def exported(readelf, library):
    """(name, version, type) of what the library exports under a version of glibc; the same name may have several."""
    text = subprocess.run([readelf, "--dyn-syms", "--wide", library], stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout
    line = re.compile(r"\s(\w+)\s+(?:GLOBAL|WEAK)\s+DEFAULT\s+\d+\s+(\w+)@@?GLIBC_([0-9.]+)\s*$", re.MULTILINE)
    for kind, name, version in line.findall(text):
        if kind in TYPES:
            yield name, version, TYPES[kind]


def main():
    if len(sys.argv) < 6:
        sys.exit(__doc__)
    oldest, source, versions, readelf, *libraries = sys.argv[1:]
    chosen = {}
    for library in libraries:
        for name, version, kind in exported(readelf, library):
            if number(version) <= number(oldest) and number(version) > number(chosen.get(name, ("0", ""))[0]):
                chosen[name] = (version, kind)
    if not chosen:
        sys.exit(f"{libraries} export nothing that glibc {oldest} has")
    with open(source, "w", encoding="utf-8") as out:
        for name, (_, kind) in sorted(chosen.items()):
            section = '.section .tdata,\\"awT\\",@progbits' if kind == "tls_object" else ".data" if kind == "object" else ".text"
            out.write(f'__asm__("{section}\\n.globl {name}\\n.type {name},@{kind}\\n{name}: .byte 0\\n.size {name},1\\n");\n')
    with open(versions, "w", encoding="utf-8") as out:
        for version in sorted({version for version, _ in chosen.values()}, key=number):
            names = sorted(name for name, (its, _) in chosen.items() if its == version)
            out.write(f"GLIBC_{version} {{ global: {'; '.join(names)}; }};\n")


if __name__ == "__main__":
    main()
