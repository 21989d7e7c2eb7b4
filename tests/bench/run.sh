#!/bin/sh
# Runs amem's benchmarks, all that this machine can run: run.sh [--quick] [--out DIR] [PART...]; --list names the parts.
#
# From a bundle (tests/gpu/make_bundle.sh) or an installation everything is found beside this script; in the source tree in
# build/release (--prefix BUILD_DIR: elsewhere). Writes bench.json, bench.md and bench.svg. Parts that need more GPUs are
# left out.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
if ! command -v "$python" >/dev/null; then
  echo "bench needs Python 3 (or PYTHON=/path/to/python3)" >&2
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
exec "$python" -B "$here/bench.py" ${prefix:+--prefix "$prefix"} "$@"
