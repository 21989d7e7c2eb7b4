#!/bin/sh
# Runs amem's tests on real GPUs: run.sh [--quick] [--gpus N] [--pool SIZE] [CASE...]; --list names the cases.
#
# From a bundle (make_bundle.sh) or an installation everything is found beside this script; in the source tree in
# build/release (--prefix BUILD_DIR: elsewhere). One line per case, exit status 0 when none failed, 77 when there are too few
# GPUs. When OUT names a directory, results and logs are kept there.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
if ! command -v "$python" >/dev/null; then
  echo "run.sh needs Python 3 (or PYTHON=/path/to/python3)" >&2
  exit 2
fi
# share/amem/gpu-tests is three levels below the installation's prefix.
for candidate in "$here/../../.." "$here/../../build/release"; do
  if [ -x "$candidate/bin/amemd" ]; then
    prefix=$candidate
    break
  fi
done
# A --prefix among the arguments comes later and wins.
exec "$python" "$here/cases/run_cases.py" ${prefix:+--prefix "$prefix"} "$@"
