#!/usr/bin/env bash
# Finds words and phrases that amem's pages and comments do not use (lint.py says which and how; --help has the options). Needs a
# Python package index the first time.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)

lock=$(sha256sum "$root/deploy/locks/prose.txt")
tools=$root/build/prose/proselint-${lock:0:12}
if [[ ! -x $tools/bin/python ]]; then
  mkdir -p "$root/build/prose"
  work=$(mktemp -d "$root/build/prose/XXXXXX")
  trap 'rm -rf "$work"' EXIT
  "$root/deploy/locks/install.sh" prose "$work/venv"
  # Renamed at the end: a run that is cut off, or one beside it, leaves nothing half done.
  mv -T "$work/venv" "$tools" 2>/dev/null || [[ -x $tools/bin/python ]]
fi
"$tools/bin/python" -B "$here/lint.py" "$@"
