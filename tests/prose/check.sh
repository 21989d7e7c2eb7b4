#!/usr/bin/env bash
# Finds words and phrases that amem's pages do not use (lint.py says which and how; --help has the options). Needs a Python package index
# the first time.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)

version=$(sed -n 's/^proselint==//p' "$root/deploy/constraints.txt")
tools=$root/build/prose/proselint-$version
if [[ ! -x $tools/bin/python ]]; then
  mkdir -p "$root/build/prose"
  work=$(mktemp -d "$root/build/prose/XXXXXX")
  trap 'rm -rf "$work"' EXIT
  python3 -m venv "$work/venv"
  timeout 600 "$work/venv/bin/python" -m pip --disable-pip-version-check install --quiet --constraint "$root/deploy/constraints.txt" \
    proselint </dev/null || {
    echo "check.sh: pip could not fetch proselint (its error is shown): a Python package index has to be reachable" >&2
    exit 1
  }
  # Renamed at the end: a run that is cut off, or one beside it, leaves nothing half done.
  mv -T "$work/venv" "$tools" 2>/dev/null || [[ -x $tools/bin/python ]]
fi
"$tools/bin/python" -B "$here/lint.py" "$@"
