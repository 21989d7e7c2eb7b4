#!/usr/bin/env bash
# All tests beside three busy loops for each core, as often as asked for: what counts on time fails here.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cores=$(nproc)

usage() {
  cat <<'END'
Usage: tests/busy.sh [RUNS [ARGUMENTS OF CTEST...]]
Runs ctest --preset release RUNS times (default 10), four tests for each core at a time, beside three busy loops for each
core. build/release must be built. Prints what failed in which run; the output of each is build/release/busy-RUN.log.
Exit status 0 when no test failed in any run.
END
}

runs=${1:-10}
if [[ ! $runs =~ ^[1-9][0-9]*$ ]]; then
  usage
  [[ $runs == -h || $runs == --help ]] && exit 0
  exit 2
fi
shift || true

loops=()
end_loops() { kill "${loops[@]}" 2>/dev/null || true; }
trap end_loops EXIT
trap 'exit 130' INT TERM
for ((i = 0; i < 3 * cores; ++i)); do
  (while :; do :; done) &
  loops+=($!)
done

cd "$root"
failed_runs=0
for ((run = 1; run <= runs; ++run)); do
  log=build/release/busy-$run.log
  began=$SECONDS
  if ctest --preset release --no-tests=error --parallel "$((4 * cores))" "$@" >"$log" 2>&1; then
    echo "busy.sh: run $run of $runs: no failure in $((SECONDS - began)) s"
    continue
  fi
  failed_runs=$((failed_runs + 1))
  echo "busy.sh: run $run of $runs: failed in $((SECONDS - began)) s, $log:"
  # ctest's own list; without one it did not come so far.
  awk '/^The following tests FAILED:/ { listed = found = 1; next } listed && !/^[ \t]+[0-9]+ - / { listed = 0 }
    listed { print } END { exit !found }' "$log" || tail -n 20 "$log"
done
if [[ $failed_runs != 0 ]]; then
  echo "busy.sh: $failed_runs of $runs runs failed"
  exit 1
fi
echo "busy.sh: no test failed in $runs runs"
