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
  --quick   only the unit tests of amemd's logic, of the broker and of amemctl. Where build/release is built and this user may mount, a copy
            of it goes on in a mount namespace in which the copy of the tree is in this one's place. Else a build that is not optimised
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

if [[ -z ${CMAKE_CXX_COMPILER_LAUNCHER:-}${CCACHE_DISABLE:-} ]] && command -v ccache >/dev/null; then
  export CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_C_COMPILER_LAUNCHER=ccache
fi
read -r -a cmake_args <<<"${AMEM_CMAKE_ARGS:-}"
targets=()
continues=0
if [[ $quick == 1 ]]; then
  [[ ! -x $root/build/release/bin/broker_test ]] || ! unshare --mount true 2>/dev/null || continues=1
  [[ $continues == 1 ]] || cmake_args+=(-DCMAKE_C_FLAGS_RELWITHDEBINFO=-O0 -DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O0 -DAMEM_UNITY=ON)
  programs=(logic_test broker_test client_test client_broker_test)
  targets=(--target amemd amemctl amem_shim amem_client amem_python sim_cuda sim_nvml "${programs[@]}")
fi

tree=$root/build/core_alone

# COMMAND...: in the copy.
in_copy() {
  if [[ $continues == 1 ]]; then
    # shellcheck disable=SC2016  # the inner shell's
    unshare --mount bash -c 'mount --bind "$1" "$2" && cd "$2" && shift 2 && exec "$@"' bash "$tree/source" "$root" "$@"
  else
    (cd "$tree/source" && "$@")
  fi
}
# Checks, packages, wheels and pages are those of the whole product.
run_tests() {
  if [[ $quick == 0 ]]; then
    in_copy ctest --test-dir build/release --output-on-failure --parallel "$(nproc)" --exclude-regex '^(bench|checks|gpu|newest|packages)[.]|^python.wheel'
    return
  fi
  for program in "${programs[@]}"; do
    in_copy env LD_LIBRARY_PATH=build/release/lib/sim timeout 600 "build/release/bin/$program" --gtest_brief=1 || return 1
  done
}
build_and_test() {
  watched "$tree/configure.log" in_copy cmake --preset release "${cmake_args[@]}" &&
    watched "$tree/build.log" in_copy cmake --build --preset release "${targets[@]}" || return 1
  run_tests >"$tree/tests.log" 2>&1 || {
    tail -n 60 "$tree/tests.log"
    return 1
  }
  grep -E 'tests passed|PASSED' "$tree/tests.log"
}

failed=()
for name in "${chosen[@]}"; do
  rm -rf "$tree/source"
  mkdir -p "$tree/source"
  git -C "$root" ls-files -z --cached --others --exclude-standard | (cd "$root" && xargs -0 ls -d 2>/dev/null) | tar -C "$root" -cf - -T - | tar -C "$tree/source" -xf -
  awk -v name="$name" '!/^#/ && (name == "all" || $1 == name) { for (i = 2; i <= NF; ++i) print $i }' "$root/addons/where.txt" |
    (cd "$tree/source" && xargs rm -rf)
  if [[ $continues == 1 ]]; then
    # Programs would hide that nothing builds them any more.
    mkdir -p "$tree/source/build"
    tar -C "$root" --warning=no-file-ignored --exclude=build/release/bin --exclude=build/release/Testing -cf - build/release | tar -C "$tree/source" -xf -
  fi
  echo "core_alone.sh: building without ${name/#all/all add-ons}"
  (build_and_test) || failed+=("$name")
done
[[ ${#failed[@]} -eq 0 ]] || {
  echo "core_alone.sh: failed without: ${failed[*]}" >&2
  exit 1
}
echo "core_alone.sh: OK"
