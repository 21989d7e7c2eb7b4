#!/usr/bin/env python3
"""Makes a Debian changelog of CHANGELOG.md: changelog.py --revision 1~deb12 --maintainer "Name <address>" CHANGELOG.md FILE.gz

What is not released yet has the date of SOURCE_DATE_EPOCH, else of today.
"""
import argparse
import datetime
import gzip
import os
import pathlib
import re
import sys
import textwrap
import time


def entries(text, version):
    """(version, date, lines) of each section, newest first; what is unreleased is that of the version that is built."""
    parts = re.split(r"(?m)^## \[?(Unreleased|\d[\w.]*)\]?(?: - (\d{4}-\d\d-\d\d))?[^\n]*\n", text)
    for name, date, body in zip(parts[1::3], parts[2::3], parts[3::3]):
        items = re.findall(r"(?ms)^- (.*?)(?=^[-#]|^$|\Z)", body)
        if items:
            yield version if name == "Unreleased" else name, date, [" ".join(item.split()) for item in items]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--revision", required=True)
    parser.add_argument("--maintainer", required=True)
    parser.add_argument("changelog", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    options = parser.parse_args()
    version = (options.changelog.parent / "VERSION").read_text(encoding="utf-8").strip()
    built = datetime.datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", time.time())), datetime.timezone.utc)

    found = list(entries(options.changelog.read_text(encoding="utf-8"), version))
    if not found or found[0][0] != version:
        sys.exit(f"{options.changelog}: its newest section is of {found[0][0] if found else 'no version'}, the file VERSION has {version}")
    if len(found) > 1 and found[1][0] == version:  # more since that version was described, and VERSION is not raised yet
        found[:2] = [(version, None, found[0][2] + found[1][2])]
    text = ""
    for name, date, items in found:
        when = datetime.datetime.fromisoformat(date + "T12:00:00+00:00") if date else built
        text += f"amem ({name}-{options.revision}) stable; urgency=medium\n\n"
        text += "".join(textwrap.fill(item, 78, initial_indent="  * ", subsequent_indent="    ") + "\n" for item in items)
        text += f"\n -- {options.maintainer}  {when:%a, %d %b %Y %H:%M:%S +0000}\n\n"
    # No name and no time in the header: the same text gives the same bytes.
    with options.output.open("wb") as file, gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=9, mtime=0) as packed:
        packed.write(text.encode())


main()
