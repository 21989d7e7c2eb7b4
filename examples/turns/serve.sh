#!/usr/bin/env bash
# Starts a `vllm serve` for each model, on the ports from 8001 on, as groups of the stage night (README.md), and stays until it is killed or
# a server ends. Then it ends all of them. FIRST_PORT is another first port. Arguments after -- are for every vllm.
set -euo pipefail

first=${FIRST_PORT:-8001}
models=()
while (($# > 0)) && [[ $1 != -- ]]; do
  models+=("$1")
  shift
done
[[ ${1:-} != -- ]] || shift
if ((${#models[@]} == 0)); then
  echo "usage: serve.sh MODEL... [-- OPTION OF VLLM...]" >&2
  exit 2
fi

servers=()
trap 'kill "${servers[@]}" 2>/dev/null || true; wait' EXIT
trap 'exit 0' TERM INT

for i in "${!models[@]}"; do
  group=vllm-$((i + 1)) port=$((first + i))
  # While a server loads, it has the GPU alone.
  if ((i > 0)); then amemctl pause "vllm-$i"; fi
  amemctl run --group "$group" --scope heap --required --stage night -- \
    vllm serve "${models[i]}" --port "$port" --gpu-memory-utilization 0.6 "$@" >"$group.log" 2>&1 </dev/null &
  servers+=($!)
  until curl -sf "localhost:$port/health" >/dev/null; do
    kill -0 "${servers[-1]}" 2>/dev/null || { echo "serve.sh: $group has ended, see $group.log" >&2; exit 1; }
    sleep 0.5
  done
  echo "$group serves ${models[i]} on port $port"
done
# The last server has started, too: this ends its first turn, if max_hold has not. amemd would wait for start_idle.
amemctl lease "vllm-${#models[@]}" --yield >/dev/null 2>&1 || true
# From here on amemd decides. Those that do not fit now stay paused until a request comes.
for ((i = 1; i < ${#models[@]}; i++)); do
  amemctl resume "vllm-$i" >/dev/null 2>&1 || true
done
echo "all take turns on the GPU"
status=0
wait -n || status=$?
echo "serve.sh: a server has ended with $status" >&2
exit 1
