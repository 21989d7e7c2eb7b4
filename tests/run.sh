#!/usr/bin/env bash
# Builds amem and runs every test that this machine can run. See --help.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=deploy/watched.sh
source "$root/deploy/watched.sh"

usage() {
  cat <<'END'
Usage: tests/run.sh [--quick] [--sanitizers | --only-sanitizers | --only PRESET] [--no-deps]
Installs what is needed (deploy/deps.sh), builds build/release and runs the tests with ctest, but for the few with the label
nightly, which tests/nightly.sh runs. Tests that need GPUs are shown as skipped where there are too few. Exit status 0 when
tests ran and none failed.
  --quick             the unit tests and those of the simulated driver alone: without integration tests and GPUs
  --sanitizers        then the same without GPUs under AddressSanitizer and UndefinedBehaviorSanitizer (build/asan) and
                      under ThreadSanitizer (build/tsan)
  --only-sanitizers   those alone
  --only PRESET       one build alone: release, asan or tsan
  --no-deps           do not look for packages: everything is installed
Environment: AMEM_CMAKE_ARGS  more arguments for cmake's configuration, e.g. -DAMEM_WERROR=ON
END
}

deps=1
quick=0
presets=(release)
while [[ $# -gt 0 ]]; do
  argument=$1
  case $argument in
    --quick) quick=1 ;;
    --sanitizers) presets=(release asan tsan) ;;
    --only-sanitizers) presets=(asan tsan) ;;
    --only)
      [[ ${2:-} =~ ^(release|asan|tsan)$ ]] || {
        echo "run.sh: --only takes release, asan or tsan, not \"${2:-}\"" >&2
        exit 2
      }
      presets=("$2")
      shift
      ;;
    --no-deps) deps=0 ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      usage >&2
      echo "run.sh: unknown argument: $argument" >&2
      exit 2
      ;;
  esac
  shift
done

cd "$root"
if [[ $deps == 1 ]]; then
  deploy/deps.sh
  # Without them newest.calls fails, and says so; all else can be tested.
  python3 tests/newest/headers.py </dev/null || echo "run.sh: not all of CUDA's headers are there (tests/newest/headers.txt)" >&2
fi
if [[ -z ${CMAKE_CXX_COMPILER_LAUNCHER:-}${CCACHE_DISABLE:-} ]] && command -v ccache >/dev/null; then
  export CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_C_COMPILER_LAUNCHER=ccache
fi
read -r -a cmake_args <<<"${AMEM_CMAKE_ARGS:-}"
mkdir -p build

# Less optimised, with less debug information than the release and several files as one: a third of the time to build them.
# Without integration tests the build takes far longer than the tests, so then not optimised at all.
optimised=-O1
[[ $quick == 0 ]] || optimised=-O0
sanitizer_args=(-DCMAKE_C_FLAGS_RELWITHDEBINFO="$optimised -g1" -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="$optimised -g1" -DAMEM_UNITY=ON)

build() {
  local args=("${cmake_args[@]}") target=()
  [[ $quick == 0 ]] || target=(--target unit_tests)
  [[ $1 == release ]] || args+=("${sanitizer_args[@]}")
  echo "run.sh: building build/$1 (minutes the first time)"
  watched "build/$1-configure.log" cmake --preset "$1" "${args[@]}"
  watched "build/$1.log" cmake --build --preset "$1" "${target[@]}"
}

# verify_asan_link_order: in the integration tests the shim is preloaded before the program's own sanitizer runtime.
# intercept_tls_get_addr: GCC 12's runtimes know how glibc before 2.25 allocated a thread's storage in a loaded library. A later
# one's, which comes from malloc, they take for such where it lies 16 bytes into a page, and the two words before it, which are
# somebody else's, for its size and address (google/sanitizers issue 1322). Then the leak check crashes, or ThreadSanitizer asks
# for shadow memory of 500 TB and ends. It sees what malloc allocates anyway.
export ASAN_OPTIONS=detect_stack_use_after_return=1:verify_asan_link_order=0:intercept_tls_get_addr=0:${ASAN_OPTIONS:-}
# What other libraries leave at exit is theirs.
export LSAN_OPTIONS=suppressions=$root/tests/leaks.supp:print_suppressions=0:${LSAN_OPTIONS:-}
export UBSAN_OPTIONS=print_stacktrace=1:${UBSAN_OPTIONS:-}
export TSAN_OPTIONS=suppressions=$root/tests/races.supp:ignore_noninstrumented_modules=1:halt_on_error=1:second_deadlock_stack=1:intercept_tls_get_addr=0:${TSAN_OPTIONS:-}

# run_tests PRESET: ctest's own summary is the last thing printed.
run_tests() {
  local preset=$1
  local log=build/$preset/tests.log
  # Two more than there are cores: tests of several processes wait a third of their time.
  local select=(--preset "$preset" --no-tests=error --parallel "$(($(nproc) + 2))")
  # A loaded CI machine gets a second try at tests that have deadlines; a test that fails twice fails, and one that failed once is named.
  [[ -z ${CI:-} ]] || select+=(--repeat until-pass:2)
  local without=nightly
  if [[ $preset != release ]]; then
    echo "run.sh: $preset: without tests on real GPUs (label gpu)"
    without='(nightly|gpu|bench)'
  fi
  select+=(-LE "^$without\$")
  if [[ $quick == 1 ]]; then
    echo "run.sh: --quick: without integration tests and those on GPUs"
    select+=(-L '^(unit|sim)$' -E '^(integration|chaos)[.]')
  fi
  local status=0
  ctest "${select[@]}" 2>&1 | tee "$log" || status=$?
  tests/failed_once.py "$log"
  if [[ $status == 0 ]] && ! grep -q ' Passed ' "$log"; then
    echo "run.sh: no test ran" >&2
    status=1
  fi
  return "$status"
}

if [[ " ${presets[*]} " == *" release "* && $quick == 0 ]]; then
  gpus=$( (nvidia-smi -L 2>/dev/null || true) | grep -c '^GPU ' || true)
  echo "run.sh: $gpus GPU(s) here$([[ $gpus -ge 1 ]] || echo ': tests that need one (gpu.*) will be skipped')"
fi
for preset in "${presets[@]}"; do
  build "$preset"
  run_tests "$preset"
done
