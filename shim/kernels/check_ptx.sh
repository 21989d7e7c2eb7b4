#!/bin/sh
# The .ptx files are what the .cu files compile to. 77: this compiler is not the one that made them.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
"${NVCC:-nvcc}" --version | grep -q 'release 13\.0' || exit 77
new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT
"$here/make_ptx.sh" "$new"
for source in "$here"/*.cu; do
  ptx=$(basename "$source" .cu).ptx
  diff -u "$here/$ptx" "$new/$ptx"
done
