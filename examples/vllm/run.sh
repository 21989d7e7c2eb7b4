#!/bin/bash
# vllm serve leaves the GPU three times and returns, and gives the same answer after each turn.
#   run.sh [--amem|--operator] FOLDER [OPTION...]     FOLDER: from made_up/make.py. OPTION: one of vllm serve's
# Without an option and with --amem the server sleeps, with --operator amemctl pauses it. PORT is another port than 8000.
set -euo pipefail
# shellcheck disable=SC1091
. "$(dirname "$0")/../made_up/turns.sh"
url=http://localhost:${PORT:-8000}
start=()
mode=(--enable-sleep-mode)
leave() { curl -sf -o /dev/null -X POST "$url/sleep?level=1"; }
enter() { curl -sf -o /dev/null -X POST "$url/wake_up"; }
case $1 in
--amem)
    export AMEM_ON=1
    start=(amemctl run --group A --scope heap --required --)
    shift
    ;;
--operator)
    start=(amemctl run --group A --scope heap --)
    mode=()
    leave() { amemctl pause A; }
    enter() { amemctl resume A; }
    shift
    ;;
esac
folder=$(realpath "$1")
shift
ask() {
    curl -sf "$url/v1/completions" -H 'Content-Type: application/json' -d '{"model": "made-up", "prompt": "w1 w2 w3 w4",
        "max_tokens": 32, "temperature": 0, "ignore_eos": true, "return_token_ids": true}' |
        python3 -c 'import json, sys; print(*json.load(sys.stdin)["choices"][0]["token_ids"])'
}
export VLLM_SERVER_DEV_MODE=1 HF_HUB_OFFLINE=1 VLLM_USE_FLASHINFER_SAMPLER=0 VLLM_NO_USAGE_STATS=1
serve_and_take_turns "$url" "${start[@]}" vllm serve "$folder/model" "${mode[@]}" --served-model-name made-up --port "${PORT:-8000}" \
    --max-model-len 256 --gpu-memory-utilization 0.5 --seed 0 --generation-config vllm --no-enable-prefix-caching "$@"
