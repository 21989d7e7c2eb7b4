#!/bin/sh
# sparse.ptx is what sparse.cu compiles to. 77: this compiler is not the one that made it.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
"${NVCC:-nvcc}" --version | grep -q 'release 13\.0' || exit 77
new=$(mktemp)
trap 'rm -f "$new"' EXIT
"$here/make_ptx.sh" "$new"
diff -u "$here/sparse.ptx" "$new"
