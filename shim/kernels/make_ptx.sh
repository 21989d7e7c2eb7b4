#!/bin/sh
# Compiles the kernels to PTX: make_ptx.sh [FOLDER], by default beside their sources. Needs nvcc 13 ($NVCC).
# The instructions are those of PTX ISA 7.0 (CUDA 11, sm_80); the compiler would demand its own release's driver.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here}
for source in "$here"/*.cu; do
  ptx=$out/$(basename "$source" .cu).ptx
  "${NVCC:-nvcc}" -std=c++17 -O3 -arch=compute_80 -ptx -I "$here/../.." -o "$ptx.new" "$source"
  # Without comments, which name the compiler's build.
  sed -e '/^\/\//d' -e '/^$/d' -e 's/^\.version .*/.version 7.0/' -e 's/[ \t]*\/\/.*$//' "$ptx.new" > "$ptx"
  rm "$ptx.new"
done
