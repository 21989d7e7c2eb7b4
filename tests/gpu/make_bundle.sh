#!/bin/bash
# Makes a folder that holds amem, its GPU tests and every library they need but the C and C++ runtime, so that they run
# on a machine with GPUs that has nothing of ours installed and a distribution at least as new as this one.
#
#   tests/gpu/make_bundle.sh [DIRECTORY]        default: .gpu/amem, which git ignores
#   BUILD_DIR=DIR tests/gpu/make_bundle.sh      takes an existing build instead of making the release preset
#
# There: DIRECTORY/share/amem/gpu-tests/run.sh
set -euo pipefail

source_dir=$(cd "$(dirname "$0")/../.." && pwd)
target=$(realpath -m "${1:-$source_dir/.gpu/amem}")
bundle=$target.new  # takes the target's place when all is well
limit_mib=${LIMIT_MIB:-64}

for tool in cmake patchelf strip ldd python3; do
  if ! command -v "$tool" >/dev/null; then
    echo "make_bundle.sh needs $tool (Debian, Ubuntu: apt-get install cmake patchelf binutils libc-bin python3)" >&2
    exit 2
  fi
done

if [ -n "${BUILD_DIR:-}" ]; then
  build=$(realpath "$BUILD_DIR")
else
  build=$source_dir/build/release
  (cd "$source_dir" && cmake --preset release && cmake --build --preset release)
fi

# A folder of some other kind is not ours to delete.
if [ -e "$target" ] && [ ! -x "$target/share/amem/gpu-tests/run.sh" ]; then
  echo "$target exists and is no bundle; remove it first" >&2
  exit 2
fi
rm -rf "$bundle"
trap 'rm -rf "$bundle"' EXIT
cmake --install "$build" --prefix "$bundle" >/dev/null
cmake --install "$build" --prefix "$bundle" --component gpu_tests >/dev/null
# The package amem must be importable: the programs under PyTorch use it.
PYTHONPATH=$bundle/python PYTHONDONTWRITEBYTECODE=1 python3 -c "import amem, amem.compat"
# Only what runs: headers, static libraries and the like stay behind.
rm -rf "$bundle/include" "$bundle"/lib/cmake "$bundle"/lib/pkgconfig
find "$bundle" -name '*.a' -delete
# A multiarch library directory would not be where the programs' RUNPATH looks.
for dir in "$bundle"/lib/*-linux-gnu; do
  [ -d "$dir" ] || continue
  cp -a "$dir"/. "$bundle/lib/"
  rm -rf "$dir"
done
rm -rf "$bundle/lib/cmake" "$bundle/lib/pkgconfig"

elf_files() {
  find "$1" -type f \( -perm -u+x -o -name '*.so*' \) -exec sh -c \
    'head -c4 "$1" | grep -q "^.ELF"' _ {} \; -print
}

# The C and C++ runtime comes from the machine: it must fit its kernel and its CUDA libraries, and newer ones serve
# older programs.
from_the_machine='^(linux-vdso|ld-linux.*|libc|libm|libdl|librt|libpthread|libresolv|libutil|libstdc\+\+|libgcc_s)\.so'

mkdir -p "$bundle/lib/bundled"
missing=0
while read -r file; do
  while read -r name path; do
    [[ $name =~ $from_the_machine ]] && continue
    if [ "$path" = missing ]; then
      echo "$file needs $name, which is not on this machine" >&2
      missing=1
    elif [ ! -e "$bundle/lib/bundled/$name" ] && [ ! -e "$bundle/lib/$name" ]; then
      cp -L "$path" "$bundle/lib/bundled/$name"
      chmod u+w "$bundle/lib/bundled/$name"
    fi
  done < <(LD_LIBRARY_PATH="$bundle/lib" ldd "$file" 2>/dev/null |
             awk '/=> not found/ {print $1, "missing"} /=> \// {print $1, $3}')
done < <(elf_files "$bundle")
[ $missing -eq 0 ] || exit 1

while read -r file; do
  strip --strip-unneeded "$file"
  case $file in
    # A stranger's process loads the shim: it depends on nothing of ours and gets no search path.
    */libamem_shim.so*)
      patchelf --remove-rpath "$file"
      if readelf -d "$file" | awk '/NEEDED/ {gsub(/[][]/, "", $5); print $5}' | grep -Evq "$from_the_machine"; then
        echo "libamem_shim.so needs more than the C runtime" >&2
        exit 1
      fi
      ;;
    */lib/bundled/*) patchelf --set-rpath "\$ORIGIN" "$file" ;;
    */lib/*) patchelf --set-rpath "\$ORIGIN:\$ORIGIN/bundled" "$file" ;;
    *) patchelf --set-rpath "\$ORIGIN/../lib:\$ORIGIN/../lib/bundled" "$file" ;;
  esac
done < <(elf_files "$bundle")

# Nothing but the bundle may be left to find.
while read -r file; do
  if ldd "$file" 2>/dev/null | awk -v bundle="$bundle/" '
      / => / && index($3, bundle) != 1 {print $1}' | grep -Ev "$from_the_machine"; then
    echo "$file finds the libraries above outside the bundle" >&2
    exit 1
  fi
done < <(elf_files "$bundle")

for program in bin/amemd bin/amem-holder bin/amem-checkpoint bin/amemctl bin/amem_nccl_cycle bin/amem_call_bench bin/amem_launch_bench bin/amem_memory_bench \
               lib/libamem_shim.so share/amem/gpu-tests/run.sh share/amem/gpu-tests/cases/run_cases.py \
               share/amem/gpu-tests/programs/torch_cycle.py share/amem/gpu-tests/by_hand/proof.py share/amem/bench/run.sh \
               python/amem/_version.py python/amem/_broker.binpb; do
  if [ ! -e "$bundle/$program" ]; then
    echo "the bundle has no $program" >&2
    exit 1
  fi
done

echo "$target"
find "$bundle" -type f -printf '%s\t%P\n' | sort -rn | awk -F'\t' '
  {total += $1; if (NR <= 15) printf "  %8.2f MiB  %s\n", $1 / 1048576, $2; else rest += $1}
  END {if (NR > 15) printf "  %8.2f MiB  %d smaller files\n", rest / 1048576, NR - 15
       printf "  %8.2f MiB  in all\n", total / 1048576}'
used_kib=$(du -sk --apparent-size "$bundle" | cut -f1)
if [ "$used_kib" -ge $((limit_mib << 10)) ]; then
  echo "the bundle is larger than $limit_mib MiB" >&2
  exit 1
fi
rm -rf "$target"
mv "$bundle" "$target"
