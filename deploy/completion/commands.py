"""What amemctl can be told, as its --help says it."""
import os
import re
import subprocess
from typing import NamedTuple


class Value(NamedTuple):
    """What follows an option, or stands by itself. `kind`: "group", "tag", "words", "file", "folder", or "text", of which nothing
    is known."""
    kind: str
    words: tuple = ()
    several: bool = False


class Option(NamedTuple):
    name: str
    help: str
    value: Value  # None: it takes none


class Command(NamedTuple):
    name: str
    help: str
    options: list
    values: list  # of what stands by itself, in its order
    runs: bool  # another program's command line follows "--"


KINDS = {"GROUP": "group", "NAME": "group", "IN": "group", "TAG": "tag", "DIR": "folder", "PATH": "file", "FILE": "file"}


def value_of(written):
    """Of "TAG ... Excludes: --except", "FORM:{auto,dense}", "NAME REQUIRED"; None: of nothing."""
    written = re.sub(r"\(Env:\w+\)|REQUIRED|(Needs|Excludes): \S+", "", written).strip()
    if not written:
        return None
    choices = re.search(r":\{([^}]*)\}", written)
    if choices:
        return Value("words", tuple(choices[1].split(",")))
    return Value(KINDS.get(written.split()[0], "text"), (), "..." in written)


def entries(text, heading):
    """Of one section: the first word, what follows it before the help, and the help."""
    section = re.search(rf"(?ms)^{heading}:\n(.*?)(?:\n\n|\Z)", text)
    lines = re.sub(r"\n {30}(?=\S)", "  ", section[1]) if section else ""
    for line in lines.splitlines():
        found = re.match(r"  (\S+) ?(.*?)(?:\s{2,}|(?<=^.{29})\s)(\S.*)$", line) or re.match(r"  (\S+) ?(.*)()$", line)
        yield found[1], found[2].strip(), found[3]


def options_of(text):
    return [Option(name.rpartition(",")[2], help, value_of(rest)) for name, rest, help in entries(text, "Options")]


def read(program):
    """The options of all commands, and the commands."""
    def said(*arguments):
        return subprocess.run([program, *arguments, "--help"], stdout=subprocess.PIPE, text=True, check=True, timeout=60,
                              env={"PATH": os.environ["PATH"]}).stdout

    top = said()
    commands = []
    for name, _, help in entries(top, "Subcommands"):
        text = said(name)
        values = [value_of(f"{word} {rest}") for word, rest, _ in entries(text, "Positionals")]
        own = [each for each in options_of(text) if each.name != "--help"]
        commands.append(Command(name, help, own, values, 'follows "--"' in text))
    return options_of(top), commands
