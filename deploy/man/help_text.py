#!/usr/bin/env python3
"""The help of a program and of each of its commands as one text that help2man makes a page of: help_text.py PROGRAM --help."""
import os
import re
import subprocess
import sys


def said(*command):
    script = os.path.realpath(command[0]).endswith(".py")
    program = [sys.executable, "-B", command[0]] if script else [command[0]]
    # As wide as it likes to be, and nothing of this user's.
    return subprocess.run([*program, *command[1:]], stdout=subprocess.PIPE, text=True, check=True, timeout=60,
                          env={"PATH": os.environ["PATH"], "COLUMNS": "500"}).stdout


def section(name, command, text):
    """Of one command: its usage as the title, then all but what every command has."""
    what, _, rest = text.partition("\nUsage: ")
    usage, _, rest = rest.partition("\n")
    kept = [block for block in rest.split("\n\n") if "--help" not in block or "\n" in block.strip()]
    kept = [re.sub(r"(?m)^(Positionals|Options):\n|^  -h,\s*--help .*\n?", "", block.strip("\n")) for block in kept]
    kept = [block for block in kept if block.strip() and "amemctl --help" not in block]
    return "\n\n".join([f"{usage}:\n  {what.strip()}", *kept])


def main():
    program = sys.argv[1]
    top = said(program, "--help")
    top = re.sub(r"(?m)^(usage|options):", lambda found: found[0].capitalize(), top)  # of argparse
    names = re.findall(r"(?m)^  ([a-z-]+) ", top.partition("\nSubcommands:\n")[2].partition("\n\n")[0])
    text = top
    if names:
        text += "\n*Commands*\n\n" + "\n\n".join(section(name, program, said(program, name, "--help")) for name in names)
    # As help2man knows options: a space after a comma, two before the description.
    text = re.sub(r"(?m)^  -(\w),\s*--", r"  -\1, --", text)
    print(re.sub(r"(?m)^(  -.{25}\S) (?=\S)", r"\1  ", text))


main()
