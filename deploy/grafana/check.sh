#!/usr/bin/env bash
# Checks the board against Grafana's schema, as its own library has it, and the alerts with promtool. Needs a Python package index.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)

if [[ $# -gt 0 ]]; then
  echo "Usage: deploy/grafana/check.sh"
  [[ $1 == -h || $1 == --help ]] && exit 0
  exit 2
fi
"$here/board.py" | cmp - "$here/amem.json" || {
  echo "check.sh: amem.json is not what board.py writes: board.py > amem.json" >&2
  exit 1
}
promtool check rules "$here/alerts.yaml"
mkdir -p "$root/build"
work=$(mktemp -d "$root/build/grafana.XXXXXX")
trap 'rm -rf "$work"' EXIT
"$root/deploy/locks/install.sh" board "$work/venv"
"$work/venv/bin/python" "$here/read_board.py" "$here/amem.json"
