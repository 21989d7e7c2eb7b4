# shellcheck shell=bash
# For vllm/run.sh, sglang/run.sh and jax/run.sh, which define leave (the GPU) and enter.

timed() {  # COMMAND: sets `took` to its seconds
    local began=${EPOCHREALTIME/[.,]/} micros
    "$@"
    micros=$((${EPOCHREALTIME/[.,]/} - began))
    printf -v took '%d.%03d' $((micros / 1000000)) $((micros / 1000 % 1000))
}

turn() {  # NUMBER
    local out used device=${CUDA_VISIBLE_DEVICES:-0}
    timed leave
    out=$took
    used=$(nvidia-smi --id="${device%%,*}" --query-gpu=memory.used --format=csv,noheader 2>/dev/null) || used=unknown
    timed enter
    echo "turn $1: left in $out s, GPU memory in use meanwhile: $used, returned in $took s"
}

serve_and_take_turns() {  # URL COMMAND: starts this server, which is to give one answer (`ask`) before and after each turn, and ends it
    local answer again number url=$1
    shift
    command -v curl >/dev/null || { echo "curl is missing; it asks the server" >&2; exit 2; }
    "$@" >&2 &
    server=$!
    trap 'kill $server 2>/dev/null || true; wait' EXIT
    until curl -sf "$url/health" >/dev/null; do
        kill -0 $server || exit 1
        sleep 0.5
    done
    answer=$(ask)
    echo "answer: $answer"
    for number in 1 2 3; do
        turn $number
        again=$(ask)
        if [ "$again" != "$answer" ]; then
            echo "another answer after turn $number: $again"
            exit 1
        fi
    done
    echo "3 turns, and the same answer after each"
}
