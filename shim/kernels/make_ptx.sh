#!/bin/sh
# Compiles sparse.cu to PTX: make_ptx.sh [OUTPUT], by default sparse.ptx beside it. Needs nvcc 13 ($NVCC).
# The instructions are those of PTX ISA 7.0 (CUDA 11, sm_80); the compiler would demand its own release's driver.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/sparse.ptx}
"${NVCC:-nvcc}" -std=c++17 -O3 -arch=compute_80 -ptx -I "$here/../.." -o "$out.new" "$here/sparse.cu"
# Without comments, which name the compiler's build.
sed -e '/^\/\//d' -e '/^$/d' -e 's/^\.version .*/.version 7.0/' -e 's/[ \t]*\/\/.*$//' "$out.new" > "$out"
rm "$out.new"
