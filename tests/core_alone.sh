#!/usr/bin/env bash
# Builds amem without its add-ons, and runs the core's tests. See --help.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=deploy/watched.sh
source "$root/deploy/watched.sh"
names=$(awk '!/^#/ { print $1 }' "$root/addons/where.txt" | sort -u | tr '\n' ' ')

usage() {
  cat <<END
Usage: tests/core_alone.sh [--quick] [NAME | all]...
For each argument: copies what git knows of this tree, deletes the files of the add-on (addons/where.txt) or of all of them,
builds, and runs the tests. Without an argument: each add-on alone, and then all. Exit status 0 when all tests passed.
Add-ons: $names
  --quick   not optimised, and without the tests of whole programs (labels sim, python and integration)
Environment: AMEM_CMAKE_ARGS  more arguments for cmake's configuration
END
}

quick=0
chosen=()
for argument in "$@"; do
  case $argument in
    --quick) quick=1 ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      [[ " $names all " == *" $argument "* ]] || {
        usage >&2
        echo "core_alone.sh: there is no add-on \"$argument\"" >&2
        exit 2
      }
      chosen+=("$argument")
      ;;
  esac
done
# shellcheck disable=SC2206  # names are words
[[ ${#chosen[@]} -gt 0 ]] || chosen=($names all)

read -r -a cmake_args <<<"${AMEM_CMAKE_ARGS:-}"
targets=()
# Packages, wheels and pages are those of the whole product.
tests=(--exclude-regex '^(bench|checks|gpu|newest|packages)|^python.wheel')
if [[ $quick == 1 ]]; then
  cmake_args+=(-DCMAKE_C_FLAGS_RELWITHDEBINFO=-O0 -DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O0 -DAMEM_UNITY=ON)
  targets=(--target amemd amemctl amem_shim amem_client amem_python unit_tests)
  tests=(--label-regex unit --exclude-regex '^newest')
fi

tree=$root/build/core_alone
failed=()
for name in "${chosen[@]}"; do
  rm -rf "$tree/source"
  mkdir -p "$tree/source"
  git -C "$root" ls-files -z --cached --others --exclude-standard | (cd "$root" && xargs -0 ls -d 2>/dev/null) | tar -C "$root" -cf - -T - | tar -C "$tree/source" -xf -
  awk -v name="$name" '!/^#/ && (name == "all" || $1 == name) { for (i = 2; i <= NF; ++i) print $i }' "$root/addons/where.txt" |
    (cd "$tree/source" && xargs rm -rf)
  echo "core_alone.sh: building without ${name/#all/all add-ons}"
  if (
    cd "$tree/source"
    watched "$tree/configure.log" cmake --preset release "${cmake_args[@]}"
    watched "$tree/build.log" cmake --build --preset release "${targets[@]}"
  ) && ctest --test-dir "$tree/source/build/release" --output-on-failure --parallel "$(nproc)" "${tests[@]}" >"$tree/tests.log" 2>&1; then
    grep -E 'tests passed' "$tree/tests.log"
  else
    [[ ! -f $tree/tests.log ]] || tail -n 60 "$tree/tests.log"
    failed+=("$name")
  fi
done
[[ ${#failed[@]} -eq 0 ]] || {
  echo "core_alone.sh: failed without: ${failed[*]}" >&2
  exit 1
}
echo "core_alone.sh: OK"
