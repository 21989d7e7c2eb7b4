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

command -v curl >/dev/null || { echo "serve.sh: curl is missing; it asks whether a server is there" >&2; exit 2; }

servers=()
trap 'kill "${servers[@]}" 2>/dev/null || true; wait' EXIT
trap 'exit 0' TERM INT

require_running() {
  local i
  for i in "${!servers[@]}"; do
    kill -0 "${servers[i]}" 2>/dev/null || { echo "serve.sh: vllm-$((i + 1)) has ended, see vllm-$((i + 1)).log" >&2; exit 1; }
  done
}

# amemd lets each load its model alone on the GPU, in the order in which they ask.
for i in "${!models[@]}"; do
  group=vllm-$((i + 1))
  amemctl run --group "$group" --scope heap --required --stage night -- \
    vllm serve "${models[i]}" --port $((first + i)) --gpu-memory-utilization 0.6 "$@" >"$group.log" 2>&1 </dev/null &
  servers+=($!)
  sleep 1
done
for i in "${!models[@]}"; do
  port=$((first + i))
  until curl -sf "localhost:$port/health" >/dev/null; do
    require_running
    sleep 0.5
  done
  echo "vllm-$((i + 1)) serves ${models[i]} on port $port"
done
# The last one has the GPU to itself for start_idle after it has loaded.
while amemctl turns night | grep -q ' starts '; do sleep 0.5; done
echo "all take turns on the GPU"
status=0
wait -n || status=$?
echo "serve.sh: a server has ended with $status" >&2
exit 1
