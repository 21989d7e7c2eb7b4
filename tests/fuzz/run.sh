#!/usr/bin/env bash
# Builds the fuzz targets and runs them. See --help.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

usage() {
  cat <<'END'
Usage: tests/fuzz/run.sh [SECONDS | --hours N | --coverage] [--jobs N] [TARGET...]
Builds build/fuzz with clang and runs each target (all: none named) for so long, 60 seconds if nothing is said, with the
corpus of the tree and what earlier runs have found in build/fuzz/corpus. Exit status 0: no finding; 1: findings, which
are in build/fuzz/findings; 2: wrong usage.
  --hours N    each target for N hours
  --coverage   runs each corpus once instead, and prints how much it reaches of the code that the target is about
  --jobs N     so many targets at the same time; else as many as there are cores
Environment: AMEM_CMAKE_ARGS  more arguments for cmake's configuration, e.g. -DAMEM_WERROR=ON
END
}

die() {
  echo "fuzz/run.sh: $*" >&2
  exit 2
}

number() {
  [[ ${1:-} =~ ^[1-9][0-9]{0,6}$ ]] || die "\"${1:-}\" is no number from 1 to 9999999"
  echo "$1"
}

cd "$root"
seconds=60
coverage=0
jobs=$(nproc)
targets=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --hours)
      seconds=$(($(number "${2:-}") * 3600))
      shift
      ;;
    --jobs)
      jobs=$(number "${2:-}")
      shift
      ;;
    --coverage) coverage=1 ;;
    -h | --help)
      usage
      exit 0
      ;;
    [0-9]*) seconds=$(number "$1") ;;
    *)
      [[ -d tests/fuzz/corpus/$1 ]] || die "no target \"$1\"; there are: $(cd tests/fuzz/corpus && echo *)"
      targets+=("$1")
      ;;
  esac
  shift
done
if [[ ${#targets[@]} -eq 0 ]]; then
  targets=(tests/fuzz/corpus/*)
  targets=("${targets[@]##*/}")
fi

read -r -a cmake_args <<<"${AMEM_CMAKE_ARGS:-}"
command -v clang++ >/dev/null || die "clang is missing: deploy/deps.sh --dev installs it"

# Quiet; the end of the log when it fails.
build() {
  local log=build/fuzz/build.log
  mkdir -p build/fuzz
  echo "fuzz/run.sh: building build/fuzz (minutes the first time)"
  { cmake --preset fuzz "${cmake_args[@]}" && cmake --build --preset fuzz; } >"$log" 2>&1 || {
    tail -n 60 "$log"
    exit 1
  }
}

# What a target is about: the files whose coverage counts.
about() {
  case $1 in
    ticket) echo common/ticket.cpp ;;
    config) echo daemon/settings/config.cpp daemon/settings/arguments.cpp daemon/base/units.cpp ;;
    elf) echo addons/tools/diagnosis/elf_file.h addons/tools/diagnosis/program.cpp addons/tools/diagnosis/nccl_library.cpp ;;
    control) echo daemon/control/tasks.cpp daemon/broker daemon/operations daemon/phases daemon/plans ;;
    session) echo common/packet.cpp daemon/sessions daemon/broker daemon/operations daemon/phases daemon/plans daemon/memory ;;
  esac
}

build
mkdir -p build/fuzz/findings build/fuzz/logs
for target in "${targets[@]}"; do mkdir -p "build/fuzz/corpus/$target"; done
# libFuzzer ends its process at once, so nobody there removes what a target has made.
TMPDIR=$(mktemp -d)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
export ASAN_OPTIONS=detect_stack_use_after_return=1:${ASAN_OPTIONS:-}
export UBSAN_OPTIONS=print_stacktrace=1:${UBSAN_OPTIONS:-}

if [[ $coverage == 1 ]]; then
  printf '%-10s %8s %16s %20s\n' target inputs functions edges
  for target in "${targets[@]}"; do
    folders=("build/fuzz/corpus/$target" "tests/fuzz/corpus/$target")
    log=build/fuzz/logs/$target.coverage
    "build/fuzz/bin/fuzz_$target" -runs=0 -print_coverage=1 "${folders[@]}" >"$log" 2>&1 </dev/null || {
      tail -n 20 "$log"
      echo "fuzz/run.sh: $target: an input of the corpus is a finding; $log has all of it" >&2
      exit 1
    }
    # COVERED_FUNC: hits: 4 edges: 2/8 amem::unpack(...) /path/common/ticket.cpp:27
    awk -v files="$(about "$target")" -v target="$target" -v inputs="$(find "${folders[@]}" -type f | wc -l)" '
      BEGIN { count = split(files, about, " ") }
      /COVERED_FUNC: hits:/ {
        for (i = 1; i <= count; ++i) {
          if (!index($NF, "/" about[i])) continue
          split($5, edge, "/")
          reached += edge[1]; edges += edge[2]; ++functions
          if ($1 == "COVERED_FUNC:") ++called
          break
        }
      }
      END {
        printf "%-10s %8d %16s %20s\n", target, inputs, called + 0 "/" functions, reached + 0 "/" edges
      }' "$log"
  done
  echo "Edges count the checks of the sanitizers, too, which nothing must ever reach."
  exit 0
fi

# fuzz TARGET: the last of its log says how far it came.
fuzz() {
  local target=$1 log=build/fuzz/logs/$1.log status=0
  # An input takes milliseconds. One that takes a minute hangs, also on a machine that does much else.
  "build/fuzz/bin/fuzz_$target" -max_total_time="$seconds" -rss_limit_mb=2048 -malloc_limit_mb=1024 -timeout=60 -report_slow_units=60 -max_len=8192 \
    -print_final_stats=1 -artifact_prefix="build/fuzz/findings/$target-" "build/fuzz/corpus/$target" "tests/fuzz/corpus/$target" \
    >"$log" 2>&1 </dev/null || status=$?
  if [[ $status != 0 ]]; then
    grep -m 1 -A 30 -E 'ERROR:|runtime error:|does not hold' "$log" || tail -n 40 "$log"
    echo "fuzz/run.sh: $target: a finding; $log has all of it, build/fuzz/findings the input"
    return 1
  fi
  echo "fuzz/run.sh: $target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs in $seconds s, no finding"
}
export -f fuzz
export seconds
printf '%s\0' "${targets[@]}" | xargs -0 -P "$jobs" -I{} bash -c 'fuzz {}' || exit 1
