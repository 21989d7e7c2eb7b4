#!/bin/bash
# A training in JAX, which amemctl pauses and resumes three times with --amem.
#   run.sh [--amem] FOLDER [OPTION...]     FOLDER: gets train.log. OPTION: one of train.py's
set -euo pipefail
here=$(dirname "$0")
# shellcheck disable=SC1091
. "$here/../made_up/turns.sh"
start=()
turns=()
if [ "$1" = --amem ]; then
    shift
    start=(amemctl run --group train --scope heap --)
    turns=(1 2 3)
fi
mkdir -p "$1"
log=$1/train.log
: >"$log"  # before it is read
shift
leave() { amemctl pause train; }
enter() { amemctl resume train; }
export XLA_PYTHON_CLIENT_PREALLOCATE=false XLA_FLAGS="--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0 ${XLA_FLAGS:-}"
"${start[@]}" python3 "$here/train.py" "$@" >"$log" &
train=$!
trap 'kill $train 2>/dev/null || true; wait' EXIT
lines() { wc -l <"$log"; }
for number in "${turns[@]}"; do
    seen=$(lines)
    until [ "$(lines)" -gt "$seen" ]; do  # it trains between two turns
        kill -0 $train || exit 1
        sleep 0.05
    done
    turn "$number"
done
wait $train
cat "$log"
