#!/bin/bash
# TRL's own GRPO script, with vLLM in the trainer's process.
#   run.sh [--amem] FOLDER [OPTION...]      FOLDER: from made_up/make.py. OPTION: one of TRL's
set -eu
made_up=$(cd "$(dirname "$0")/../made_up" && pwd)
start=()
if [ "$1" = --amem ]; then
    shift
    export AMEM_ON=1
    start=(amemctl run --group trl --scope regions --)
fi
folder=$(realpath "$1")
shift
export HF_HUB_OFFLINE=1 CUBLAS_WORKSPACE_CONFIG=:4096:8 VLLM_USE_FLASHINFER_SAMPLER=0 VLLM_NO_USAGE_STATS=1 VLLM_LOGGING_LEVEL=INFO
export PYTHONPATH=$made_up${PYTHONPATH:+:$PYTHONPATH}
exec "${start[@]}" python3 -m torch.distributed.run --standalone --nproc-per-node "${GPUS:-1}" -m trl.scripts.grpo \
    --model_name_or_path "$folder/model" --dtype bfloat16 --dataset_name "$folder/prompts" --reward_funcs rewards.for_trl \
    --use_vllm true --vllm_mode colocate --vllm_enable_sleep_mode true --vllm_gpu_memory_utilization 0.3 \
    --vllm_max_model_length 256 --max_completion_length 64 --num_generations 8 --per_device_train_batch_size 16 \
    --max_steps 6 --learning_rate 1e-5 --bf16 true --seed 11 --logging_steps 1 --disable_tqdm true --report_to none \
    --save_strategy steps --save_steps 6 --save_only_model true --output_dir "$folder/trl" "$@"
