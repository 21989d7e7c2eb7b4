"""What amemctl can be told, of the JSON of amem_describe."""
import json
from typing import NamedTuple


class Value(NamedTuple):
    """What follows an option, or stands by itself. `kind`: "group", "tag", "words", "file", "folder", or "text", of which nothing
    is known."""
    kind: str
    words: tuple = ()
    several: bool = False


class Option(NamedTuple):
    name: str
    names: tuple  # with the short one, where there is one
    help: str
    value: Value  # None: it takes none


class Command(NamedTuple):
    name: str
    help: str
    options: list
    values: list  # of what stands by itself, in its order
    runs: bool  # another program's command line follows "--"


KINDS = {"GROUP": "group", "NAME": "group", "IN": "group", "TAG": "tag", "DIR": "folder", "PATH": "file", "FILE": "file"}


def value_of(option):
    if option["flag"]:
        return None
    if option["choices"]:
        return Value("words", tuple(option["choices"]))
    return Value(KINDS.get(option["names"][0] if option["positional"] else option["type"], "text"), (), option["several"])


def options_of(command):
    return [Option(each["names"][-1], tuple(each["names"]), each["description"], value_of(each)) for each in command["options"] if not each["positional"]]


def read(path):
    """The options of all commands, and the commands."""
    with open(path, encoding="utf-8") as file:
        top = json.load(file)["amemctl"]
    return options_of(top), [
        Command(each["name"], each["description"], [option for option in options_of(each) if option.name != "--help"],
                [value_of(option) for option in each["options"] if option["positional"]], 'after "--"' in each["footer"])
        for each in top["commands"]]
