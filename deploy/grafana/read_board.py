"""Grafana's own library (grafana-foundation-sdk) reads a board and writes it again: read_board.py FILE. What it does not know, or knows
otherwise, is printed, a line each; exit status 0 when there is nothing of that."""
import json
import sys

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard


def faults(given, read, path="board"):
    if isinstance(given, dict) and isinstance(read, dict):
        for name, value in given.items():
            if name in read:
                yield from faults(value, read[name], f"{path}.{name}")
            else:
                yield f"{path}.{name}: Grafana knows no such field"
    elif isinstance(given, list) and isinstance(read, list) and len(given) == len(read):
        for number, (one, other) in enumerate(zip(given, read)):
            yield from faults(one, other, f"{path}[{number}]")
    elif given != read:
        yield f"{path}: Grafana reads {read!r} where {given!r} is written"


register_default_plugins()
with open(sys.argv[1], encoding="utf-8") as file:
    board = json.load(file)
found = list(faults(board, json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(board)))))
print("\n".join(found) if found else f"Grafana's library reads all of {sys.argv[1]}")
sys.exit(1 if found else 0)
