#!/usr/bin/env bash
# Runs every check that needs no GPU and that CI does not run. See --help.
set -euo pipefail

usage() {
  cat <<'END'
Usage: tests/nightly.sh [--folder DIR] [--list | --only STEP...]
Builds build/release, runs one step after another, and prints a table: step, result, seconds, and the command that repeats the step.
Ctrl-C or kill ends it and what it has started. The next call goes on with the steps that have no result for this commit, with the seed of
the step that was interrupted. When all have a result, it repeats those that have not passed.
  --list           only prints the table, with limits, with the results for this commit so far, and with the changes that steps fit
  --only STEP...   these steps, also if they have passed; with new seeds
  --folder DIR     keeps results and logs: DIR/COMMIT/STEP.{result,log}, and the table as DIR/COMMIT/report. Default: build/nightly.
                   What is not committed counts as another commit.
Some steps need root, a package archive or a Python package index, and fail with a sentence where there is none.
Exit status 0 when all steps have passed, 1 when not, 2 for wrong usage, 130 or 143 when it was ended.
END
}

# One step a line: its name, its limit as timeout(1) takes it, and its command. A line with # says after which changes the steps below it are of
# use. `build` comes first, and runs each time. SEED is the time in milliseconds. DIST is a folder of the commit, for packages.
steps() {
  cat <<'END_OF_STEPS'
build             2h  deploy/deps.sh --dev && tests/newest/headers.py && cmake --preset release -DAMEM_WERROR=ON && cmake --build --preset release
# driver table, forms, places, fast paths
pairs             2h  tests/matrix.py
# stages and turns
stages            2h  build/release/bin/stage_traces --seed SEED --count 50000 --jobs $(nproc)
turns             1h  build/release/bin/turn_traces --seed SEED --count 200000
# broker, operations, phases, transactions, record, recovery
histories         4h  build/release/bin/histories --seed SEED --count 500000 --jobs $(nproc)
worlds            2h  build/release/bin/explore --jobs $(nproc) --faults 1 deep makes-open joins partial-open partial-swap guests turns set swap retain-turns retain-swap && build/release/bin/explore --jobs $(nproc) --faults 2 pause inside discard tags partial partial-deep partial-waves makes makes-tag waves swap-set in-turn deep-inside deep-set deep-swap deep-in-turn retain retain-tags retain-waves handed spares
restarts          1h  build/release/bin/explore --jobs $(nproc) --faults 0 restart-deep-swap restart-makes-open restart-joins restart-guests restart-partial-swap restart-partial-waves restart-turns restart-set restart-swap restart-waves restart-handed restart-spares restart-swap-set restart-in-turn restart-retain restart-retain-turns && build/release/bin/explore --jobs $(nproc) --faults 1 restart-pause restart-inside nodes-three
chaos             1h  tests/chaos/chaos.py --seed SEED --seconds 900
chaos_broker      1h  tests/chaos/chaos.py --seed SEED --rounds 1000 --kinds broker,fault
comeback          1h  tests/chaos/comeback.py --kills 10
changes           1h  /usr/bin/python3 tests/chaos/changes.py --seed SEED
growth            1h  tests/chaos/growth.py
# several nodes
orders            1h  build/release/bin/explore --orders 100000 --seed SEED
lost_nodes        3h  AMEM_NODE_KILLS=1000 AMEM_NODE_SILENCES=200 /usr/bin/python3 -m pytest tests/integration/nodes/test_lost_nodes.py
lost_leaders      1h  AMEM_NODE_COUNT=16 AMEM_NODE_LEADER_KILLS=50 /usr/bin/python3 -m pytest -s tests/integration/nodes/test_lost_nodes.py -k leader
quiet_nodes       1h  AMEM_NODE_QUIET=60,600 /usr/bin/python3 -m pytest -s tests/integration/nodes/test_nodes.py -k quiet
many_nodes        1h  AMEM_NODES=64 AMEM_NODE_RANKS=4 AMEM_NODE_SWAPS=40 /usr/bin/python3 -m pytest -s tests/integration/nodes/test_many_nodes.py
ray               1h  tests/python/on_ray/environment.sh && build/ray/bin/python -m pytest tests/python/on_ray
controllers       2h  tests/python/on_ray/environment.sh --controllers && build/ray/bin/python -m pytest tests/python/on_ray/controllers.py
# threads, lifetimes, and what reads packets, files or requests
asan              2h  tests/analysis.sh asan
tsan              2h  tests/analysis.sh tsan
clang             2h  tests/analysis.sh clang
fuzz              3h  tests/fuzz/run.sh 600
# folders, or what the core knows of add-ons
core_alone        4h  tests/core_alone.sh
# installed files, packages, services, image
rpm               1h  /usr/bin/python3 -m pytest --build-dir build/release tests/packages/test_life.py -k rpm
slow              1h  ctest --preset release -L nightly --output-on-failure
root              2h  deploy/packages.sh DIST && tests/packages/root.sh DIST
systemd           2h  deploy/packages.sh DIST && tests/packages/systemd.sh DIST
image             2h  tests/packages/image.sh
fresh             4h  tests/fresh.sh
reproducible      4h  tests/packages/reproducible.sh
# tests or their timing: one that fails only in `busy` waits for a time, or has too short a deadline
busy              2h  tests/busy.sh 3
mutants           4h  tests/mutants/sample.py --count 30 --seed SEED --results build/mutants/SEED.jsonl
# nothing: versions of others that are newer
newest            1h  tests/newest/check.py
# the longest, for a release
sanitizers        8h  tests/run.sh --only-sanitizers --no-deps
old_glibc         4h  deploy/static.sh && for SYSTEM in rhel9 ubuntu22.04; do deploy/packages.sh --for $SYSTEM DIST || exit; done && deploy/wheel.sh --static DIST && tests/packages/old_glibc.sh DIST
static           12h  tests/packages/reproducible.sh --static
END_OF_STEPS
}

fail() {
  echo "nightly.sh: $*" >&2
  exit 1
}

wrong() {
  usage >&2
  echo "nightly.sh: $*" >&2
  exit 2
}

names=() about='' && declare -A limits commands headings
while read -r name limit command; do
  if [[ $name == "#" ]]; then
    about="# $limit $command"
    continue
  fi
  headings[$name]=$about
  about=''
  names+=("$name")
  limits[$name]=$limit
  commands[$name]=$command
done < <(steps)

list=0 folder='' chosen=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --list) list=1 ;;
    --folder)
      [[ -n ${2:-} ]] || wrong "--folder needs a folder"
      folder=$(realpath -m "$2")
      shift
      ;;
    --only)
      while [[ $# -gt 1 && $2 != -* ]]; do
        [[ -n ${commands[$2]:-} ]] || wrong "no step \"$2\"; there are: ${names[*]}"
        chosen+=("$2")
        shift
      done
      [[ ${#chosen[@]} -gt 0 ]] || wrong "--only needs a step"
      ;;
    -h | --help)
      usage
      exit 0
      ;;
    *) wrong "unknown argument: $1" ;;
  esac
  shift
done

cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=${folder:-$PWD/build/nightly}
# Nothing that a step writes may count as a change of the checkout.
export PYTHONDONTWRITEBYTECODE=1 PYTEST_ADDOPTS="-p no:cacheprovider ${PYTEST_ADDOPTS:-}"
export AMEM_CMAKE_ARGS="${AMEM_CMAKE_ARGS:-} -DAMEM_WERROR=ON"
if [[ -z ${CMAKE_CXX_COMPILER_LAUNCHER:-}${CCACHE_DISABLE:-} ]] && command -v ccache >/dev/null; then
  export CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_C_COMPILER_LAUNCHER=ccache
fi

# The commit, and a digest of what is not committed.
tree() {
  local changes=''
  if [[ -n $(git status --porcelain) ]]; then
    changes=-$({ git diff --binary HEAD && git ls-files --others --exclude-standard -z | xargs -0 -r sha256sum; } | sha256sum | head -c 8)
  fi
  echo "$(git rev-parse --short=12 HEAD)$changes"
}
key=$(tree) || fail "this is no checkout, so nothing says of which commit a result is"
results=$folder/$key

# result STEP: passed, FAILED or late, and the seconds; "- -" if there is none.
result() {
  cat "$results/$1.result" 2>/dev/null || echo "- -"
}

passed() {
  [[ $(result "$1") == passed* ]]
}

# table STEP...: also with the limits if these are asked for.
table() {
  local name state seconds command
  printf '%-14s%s %-7s %7s  %s\n' step "$([[ $list == 0 ]] || printf ' %5s' limit)" result seconds command
  for name in "$@"; do
    read -r state seconds < <(result "$name")
    command=$(cat "$results/$name.command" 2>/dev/null || echo "${commands[$name]}")
    [[ $list == 0 || -z ${headings[$name]} ]] || echo "${headings[$name]}"
    printf '%-14s%s %-7s %7s  %s\n' "$name" "$([[ $list == 0 ]] || printf ' %5s' "${limits[$name]}")" "$state" "$seconds" "$command"
  done
}

if [[ $list == 1 ]]; then
  table "${names[@]}"
  exit 0
fi

mkdir -p "$results" build
# Two at once would build in the same folders.
exec {lock}>build/nightly.lock
flock --nonblock "$lock" || fail "another one works in this checkout"

child='' shown=("${names[@]}")
report() {
  table "${shown[@]}" >"$results/report"
  echo
  cat "$results/report"
  echo "nightly.sh: the logs are $results/STEP.log"
}

ended() {
  trap '' INT TERM HUP
  if [[ -n $child ]]; then
    # The group, too: timeout does not yet pass a signal on in the first moment. There may be no group before that.
    kill -TERM -- "-$child" 2>/dev/null || kill -TERM "$child" 2>/dev/null || true
    wait "$child" || true
  fi
  report
  exit "$1"
}
trap 'ended 130' INT
trap 'ended 143' TERM HUP

# run STEP: whether it has passed. timeout ends all processes of the step's group, also when nightly.sh is killed. A shell's background jobs ignore
# SIGINT, which programs under test must not.
run() {
  local name=$1 status=0 began=$SECONDS outcome command dist
  local file=$results/$name
  [[ -f $file.command ]] || {
    command=${commands[$name]//SEED/$(date +%s%3N)}
    dist=$(printf %q "$results/packages")
    echo "${command//DIST/"$dist"}" >"$file.command"
  }
  command=$(<"$file.command")
  rm -f "$file.result"
  echo "nightly.sh: $name, at most ${limits[$name]}: $command"
  env --default-signal setpriv --pdeathsig TERM timeout --kill-after=60 "${limits[$name]}" bash -c "$command" </dev/null >"$file.log" 2>&1 {lock}>&- &
  child=$!
  wait "$child" || status=$?
  child=''
  [[ $(tree) == "$key" ]] || fail "the checkout has changed while $name ran, so that its result is of neither commit. The next call begins anew"
  case $status in
    0) outcome=passed ;;
    124) outcome=late ;;
    *) outcome=FAILED ;;
  esac
  echo "$outcome $((SECONDS - began))" >"$file.new"
  mv "$file.new" "$file.result"
  echo "nightly.sh: $name: $(<"$file.result") s"
  [[ $outcome == passed ]] || { tail -n 20 "$file.log" && return 1; }
}

pending=()
for name in "${names[@]:1}"; do
  if [[ ${#chosen[@]} -gt 0 ]]; then
    [[ " ${chosen[*]} " != *" $name "* ]] || pending+=("$name")
  elif [[ $(result "$name") == "- -" ]]; then
    pending+=("$name")
  fi
done
[[ ${#chosen[@]} -eq 0 ]] || shown=("${names[0]}" "${pending[@]}")
if [[ ${#pending[@]} -eq 0 && ${#chosen[@]} -eq 0 ]]; then
  for name in "${names[@]:1}"; do passed "$name" || pending+=("$name"); done
fi
if [[ ${#pending[@]} -gt 0 || ${#chosen[@]} -gt 0 ]]; then
  run build || { report && exit 1; }
fi
for name in "${pending[@]}"; do
  # What was interrupted goes on with its seed.
  [[ $(result "$name") == "- -" ]] || rm "$results/$name.command"
  run "$name" || true
done
report
for name in "${shown[@]}"; do passed "$name" || exit 1; done
