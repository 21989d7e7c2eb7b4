#!/bin/bash
# An SGLang server leaves the GPU three times and returns, and gives the same answer after each turn.
#   run.sh [--amem] FOLDER [OPTION...]     FOLDER: from made_up/make.py. OPTION: one of sglang.launch_server's
# PORT is another port than 30000.
set -euo pipefail
# shellcheck disable=SC1091
. "$(dirname "$0")/../made_up/turns.sh"
url=http://localhost:${PORT:-30000}
start=()
if [ "$1" = --amem ]; then
    shift
    start=(amemctl run --group engine0 --scope regions --)
fi
folder=$(realpath "$1")
shift
post() { curl -sf -X POST "$url/$1" -H 'Content-Type: application/json' -d "$2"; }
leave() { post release_memory_occupation '{}' >/dev/null; }
enter() { post resume_memory_occupation '{}' >/dev/null; }
ask() {
    post generate '{"text": "w1 w2 w3 w4", "sampling_params": {"temperature": 0, "max_new_tokens": 32, "ignore_eos": true}}' |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["text"])'
}
export HF_HUB_OFFLINE=1
serve_and_take_turns "$url" "${start[@]}" python3 -m sglang.launch_server --model-path "$folder/model" --enable-memory-saver \
    --enable-weights-cpu-backup --port "${PORT:-30000}" --mem-fraction-static 0.5 --random-seed 5 --attention-backend triton \
    --sampling-backend pytorch --grammar-backend none --disable-cuda-graph --disable-radix-cache "$@"
