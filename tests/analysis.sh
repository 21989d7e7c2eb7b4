#!/usr/bin/env bash
# One of the three checks that are a build of minutes each. See --help.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'HELP'
Usage: tests/analysis.sh asan | tsan | clang
Runs one check:
  asan   the unit tests under AddressSanitizer and UndefinedBehaviorSanitizer
  tsan   the unit tests under ThreadSanitizer
  clang  clang-tidy over the pure logic, and a build with clang whose fuzz targets run for a minute
Needs build/release and deploy/deps.sh --dev. Every warning is an error. Exit status 0 when nothing was found.
HELP
}

case ${1:-} in
  asan | tsan | clang) chosen=$1 ;;
  -h | --help)
    usage
    exit 0
    ;;
  *)
    echo "analysis.sh: asan, tsan or clang, not \"${1:-}\"" >&2
    exit 2
    ;;
esac
export AMEM_CMAKE_ARGS="${AMEM_CMAKE_ARGS:-} -DAMEM_WERROR=ON"
echo "analysis.sh: $chosen"

if [[ $chosen != clang ]]; then
  tests/run.sh --only "$chosen" --quick --no-deps </dev/null >build/sanitizers.log 2>&1 ||
    { tail -n 80 build/sanitizers.log; exit 1; }
  grep -E 'tests passed|run.sh:' build/sanitizers.log
  exit 0
fi

# The pure logic; the whole tree would take longer than everything else here. This configuration has a command for each file, and uses
# the generated headers of build/release. The removed options are GCC's.
cmake --preset release -B build/tidy -DAMEM_PRECOMPILE=OFF -DAMEM_UNITY=OFF >build/tidy.log || { cat build/tidy.log; exit 1; }
sed -i -E 's/ (-Wno-(restrict|stringop-[a-z]+)|--param=[a-z-]+=[0-9]+)//g; s|/build/tidy/generated|/build/release/generated|g' build/tidy/compile_commands.json
git ls-files -- daemon/{base/{log_limit,units},fleet/{conductor,fleet_cut},memory/{allocations,block_map,extents,packing,reach,shortage},{phases,plans,transactions}/*}.cpp shim/{base/{options,region},blocks/{kept_segments,peer_access,slab_book,slab_sizes,small_blocks},memory/allocation_table,copies/sparse_count,scratch/fifos}.cpp |
  xargs -P "$(nproc)" -n 2 clang-tidy --quiet --warnings-as-errors='*' -p build/tidy
# All targets side by side for a minute.
tests/fuzz/run.sh 60 --jobs 9 </dev/null
