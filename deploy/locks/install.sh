#!/usr/bin/env bash
# Makes a virtual environment with what a lock file names: install.sh NAME FOLDER, for the packages of NAME.txt beside this script. Refuses
# what has another checksum. Needs a Python package index.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[[ $# -eq 2 && -f $here/$1.txt ]] || { echo "Usage: install.sh NAME FOLDER, with NAME of $(cd "$here" && echo *.txt)" >&2; exit 2; }
[[ -x $2/bin/python ]] || python3 -m venv "$2" || {
  echo "install.sh: error: python3 cannot make a virtual environment (deploy/deps.sh installs python3-venv)" >&2
  exit 1
}
timeout 1800 "$2/bin/python" -m pip --disable-pip-version-check install --quiet --require-hashes --only-binary :all: \
  --requirement "$here/$1.txt" </dev/null || {
  echo "install.sh: error: pip could not install what deploy/locks/$1.txt names (its error is shown): a Python package index has to be reachable," \
    "and to have these files unchanged" >&2
  exit 1
}
