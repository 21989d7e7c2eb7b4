#!/usr/bin/env python3
"""Makes a manual page of its hand-written part: page.py COMMAND_LINES CONFIGURATION VERSION NAME.SECTION.in NAME.SECTION.gz

"@COMMAND_LINE@" becomes what the program takes, of the JSON of amem_describe. "@SETTINGS@" and "@STAGES@" become the tables of
docs/configuration.md. The date is that of SOURCE_DATE_EPOCH, else today.
"""
import gzip
import json
import os
import pathlib
import re
import sys
import time

ESCAPES = str.maketrans({"\\": "\\e", "-": "\\-", "'": "\\(aq", "`": "\\(ga", "^": "\\(ha", "~": "\\(ti"})


def roff(text):
    return ("\\&" if text.startswith(".") else "") + text.translate(ESCAPES)


def usage(name, options, *more):
    values = [(each, each["names"][0] + "..." * each["several"]) for each in options if each["positional"]]
    return roff(" ".join([name, "[OPTIONS]", *(value if each["required"] else f"[{value}]" for each, value in values), *more]))


def entry(option):
    names = ", ".join(f"\\fB{roff(name)}\\fR" for name in option["names"])
    value = option["type"] + "=" * bool(option["default"]) + option["default"] + " ..." * option["several"]
    notes = ["Required"] * option["required"]
    notes += [f"Environment variable: {option['environment']}"] * bool(option["environment"])
    notes += [f"Only with {name}" for name in option["needs"]] + [f"Not with {name}" for name in option["excludes"]]
    return [".TP", names if option["flag"] else f"{names}{'' if option['positional'] else ' '}\\fI{roff(value)}\\fR",
            roff(". ".join([option["description"], *notes]))]


def footer(text):
    """Its parts are "Title:", then lines. One with a gap of two spaces is an entry of a list."""
    for part in text.split("\n\n"):
        title, *lines = part.splitlines()
        title = title.rstrip(":").upper()
        yield '.SH "EXIT STATUS"' if title == "EXIT CODES" else f'.SH "{title}"'
        for line in lines:
            term, gap, meaning = line.strip().partition("  ")
            yield from [".TP", roff(term), roff(meaning)] if gap else [roff(term)]


def command_line(program):
    options, commands = program["options"], program["commands"]
    yield from [".SH SYNOPSIS", usage(program["name"], options, *["COMMAND"] * bool(commands))]
    yield from [".SH DESCRIPTION", roff(program["description"]), ".SH OPTIONS"]
    for option in options:
        yield from entry(option)
    group = None
    for command in commands:
        if command["group"] != group:
            group = command["group"]
            yield f'.SH "COMMANDS: {roff(group.upper())}"'
        yield from [f".SS {usage(program['name'] + ' ' + command['name'], command['options'])}", roff(command["description"])]
        # The last line of each footer says where the options for all commands are.
        for line in command["footer"].splitlines()[:-1]:
            # What is indented is to be typed.
            yield from [".RS", ".EX", roff(line.strip()), ".EE", ".RE"] if line.startswith(" ") else [".PP", roff(line)]
        for option in command["options"]:
            if "--help" not in option["names"]:
                yield from entry(option)
    if program["footer"]:
        yield from footer(program["footer"])


def prose(markdown):
    """Of a cell of a table: links become their texts, and code becomes bold."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", markdown)
    text = text[:1].upper() + text[1:]
    return "".join(f"\\fB{roff(part)}\\fR" if i % 2 else roff(part) for i, part in enumerate(text.split("`"))).replace("\\fB\\&", "\\fB")


def rows(page, before, after):
    """Key, default and meaning of each row of the table between two headings of a page."""
    for line in page.partition(f"\n{before}\n")[2].partition(f"\n{after}\n")[0].splitlines():
        if line.startswith("| `"):
            key, default, meaning = (cell.strip() for cell in re.split(r"(?<!\\)\|", line[1:-1]))
            yield key.strip("`"), default.replace("see below", "`/run/amem`, if it exists or for root"), meaning


def settings(table):
    """One subsection for each table of the file."""
    last = None
    for key, default, meaning in table:
        section = key.rpartition(".")[0]
        if section != last:
            yield f".SS [{section}]" if section else '.SS "Outside of a table"'
            last = section
        yield from entry_of_key(key.rpartition(".")[2], default, meaning)
        yield roff(f"Variable AMEM_{key.replace('.', '_').upper()}, option --{key.replace('.', '-').replace('_', '-')}.")


def entry_of_key(key, default, meaning):
    text = prose(meaning)
    yield from [".TP", f"\\fB{roff(key)}\\fR", text + "." * (not text.endswith((".", "\\fR."))),
                f"Default: {prose(default)}." if default else "There is no default."]


def main():
    command_lines, configuration, version, source, page = sys.argv[1:]
    program = json.loads(pathlib.Path(command_lines).read_text(encoding="utf-8")).get(pathlib.Path(source).name.partition(".")[0])
    date = time.strftime("%Y-%m-%d", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))))
    text = pathlib.Path(source).read_text(encoding="utf-8").replace("@DATE@", date).replace("@VERSION@", version)
    if program:
        text = text.replace("@COMMAND_LINE@", "\n".join(command_line(program)))
    if "@SETTINGS@" in text:
        known = pathlib.Path(configuration).read_text(encoding="utf-8")
        stages = (line for row in rows(known, "### Stages", "## The runtime directory") for line in entry_of_key(*row))
        text = text.replace("@SETTINGS@", "\n".join(settings(rows(known, "## amemd", "### Stages")))).replace("@STAGES@", "\n".join(stages))
    pathlib.Path(page).write_bytes(gzip.compress(text.encode(), 9, mtime=0))


main()
