#!/usr/bin/env python3
"""Makes a large wheel small enough to be carried to a machine with GPUs and without a package index: strip_wheel.py --help.

A library with CUDA code has it for many architectures, in fat binaries. What is of others than --arch is overwritten with zeros, which
compress to nothing; the headers stay, so that the CUDA runtime still finds its way. Headers of C++ and static libraries are left out. The
result is an archive in pieces of --limit MiB: `cat PIECES | tar -xJ -C FOLDER`, and FOLDER goes into PYTHONPATH. NVIDIA's packages that
the wheel needs are looked for in FOLDER/nvidia, where links to those of the machine may be.

A library that runs so has less than it was released with: say so beside what it shows.
"""
import argparse
import fnmatch
import io
import os
import struct
import subprocess
import sys
import tarfile
import zipfile

FATBIN = struct.Struct("<IHHQ")  # magic, version, size of this header, bytes behind it
MAGIC, VERSION = 0xBA55ED50, 1
ENTRY = struct.Struct("<HHIQ")  # kind, version, size of this header, bytes behind it
ARCHITECTURE = struct.Struct("<I")
ARCHITECTURE_AT = 28  # in an entry's header
LEFT_OUT = ("*/include/*", "*.a", "*.pyi", "*.h", "*.hpp", "*.cuh", "torch/bin/protoc*")


def clear_others(library, keep):
    """Overwrites the code of other architectures. `library`: a bytearray. Gives bytes by architecture, as they were."""
    found, at, magic = {}, 0, struct.pack("<I", MAGIC)
    while (at := library.find(magic, at)) >= 0:
        if at + FATBIN.size > len(library):
            break
        _, version, header, size = FATBIN.unpack_from(library, at)
        end = at + header + size
        if version != VERSION or header != FATBIN.size or end > len(library):
            at += len(magic)  # these bytes are something else
            continue
        entry = at + header
        while entry + ARCHITECTURE_AT + ARCHITECTURE.size <= end:
            _, _, header, size = ENTRY.unpack_from(library, entry)
            if header == 0 or entry + header + size > end:
                break
            architecture, = ARCHITECTURE.unpack_from(library, entry + ARCHITECTURE_AT)
            found[architecture] = found.get(architecture, 0) + size
            if architecture != keep:
                library[entry + header:entry + header + size] = bytes(size)
            entry += header + size
        at = end
    return found


def is_left_out(name, patterns):
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def write(wheel, archive, keep, patterns):
    """Writes the wheel's files into a tar archive; gives a line for each library with CUDA code."""
    lines = []
    with zipfile.ZipFile(wheel) as files, tarfile.open(fileobj=archive, mode="w|") as out:
        for info in files.infolist():
            if info.is_dir() or is_left_out(info.filename, patterns):
                continue
            content = bytearray(files.read(info))
            if content[:4] == b"\x7fELF" and (found := clear_others(content, keep)):
                others = sum(size for architecture, size in found.items() if architecture != keep)
                lines.append(f"{info.filename}: {found.get(keep, 0) >> 20} MiB of {keep}, {others >> 20} MiB of {sorted(set(found) - {keep})} cleared")
            member = tarfile.TarInfo(info.filename)
            member.size, member.mode = len(content), (info.external_attr >> 16) & 0o777 or 0o644
            out.addfile(member, io.BytesIO(content))
    return lines


def split(path, limit):
    """Into PATH.00, PATH.01 and so on; gives their names."""
    names = []
    with open(path, "rb") as whole:
        while piece := whole.read(limit):
            names.append(f"{path}.{len(names):02}")
            with open(names[-1], "wb") as file:
                file.write(piece)
    os.unlink(path)
    return names


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel")
    parser.add_argument("archive", help="PATH.tar.xz; the pieces are PATH.tar.xz.00, .01, ...")
    parser.add_argument("--arch", type=int, default=90, help="compute capability whose code stays (90)")
    parser.add_argument("--leave-out", action="append", default=[], metavar="PATTERN", help="files that are not wanted either")
    parser.add_argument("--limit", type=int, default=40, metavar="MIB", help="most of a piece (40)")
    options = parser.parse_args(arguments)
    with open(options.archive, "wb") as file, subprocess.Popen(
            ["xz", "-T0", "-3", "-c"], stdin=subprocess.PIPE, stdout=file) as xz:
        lines = write(options.wheel, xz.stdin, options.arch, [*LEFT_OUT, *options.leave_out])
        xz.stdin.close()
    if xz.returncode != 0:
        sys.exit("strip_wheel.py: xz failed")
    print("\n".join(lines))
    for name in split(options.archive, options.limit << 20):
        print(f"{name}: {os.path.getsize(name) >> 20} MiB")


if __name__ == "__main__":
    main(sys.argv[1:])
