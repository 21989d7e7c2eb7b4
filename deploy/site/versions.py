#!/usr/bin/env python3
"""Lists the versions of the site that a directory has: versions.py DIRECTORY. The theme reads the list, and index.html leads to the newest."""
import json
import pathlib
import re
import sys

LEADS = """<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>amem</title><meta http-equiv="refresh" content="0; url={0}/index.html"></head>
<body><a href="{0}/index.html">amem {0}</a></body>
</html>
"""


def versions(directory):
    """From the newest to the oldest."""
    found = [path.parent.name for path in directory.glob("*/index.html") if re.fullmatch(r"\d+(\.\d+)*", path.parent.name)]
    return sorted(found, key=lambda name: [int(part) for part in name.split(".")], reverse=True)


def write(directory):
    found = versions(directory)
    listed = [{"version": name, "title": name, "aliases": ["latest"] if name == found[0] else []} for name in found]
    (directory / "versions.json").write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")
    (directory / "index.html").write_text(LEADS.format(found[0]), encoding="utf-8")


if __name__ == "__main__":
    write(pathlib.Path(sys.argv[1]))
