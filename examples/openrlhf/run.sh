#!/bin/bash
# OpenRLHF's own trainer: Ray actors with DeepSpeed and vLLM, which share the GPUs.
#   run.sh [--amem] FOLDER [OPTION...]      FOLDER: from made_up/make.py. OPTION: one of OpenRLHF's
set -eu
here=$(cd "$(dirname "$0")" && pwd)
start=()
if [ "$1" = --amem ]; then
    shift
    start=(-m amem.ray run --group 'RolloutRayActor=engine{number}:heap' --group 'PolicyModelActor=actor:regions')
fi
folder=$(realpath "$1")
shift
gpus=${GPUS:-1}
export HF_HUB_OFFLINE=1 CUBLAS_WORKSPACE_CONFIG=:4096:8 PYTHONHASHSEED=0 VLLM_USE_FLASHINFER_SAMPLER=0 VLLM_NO_USAGE_STATS=1
export VLLM_LOGGING_LEVEL=INFO VLLM_WORKER_MULTIPROC_METHOD=spawn RAY_DEDUP_LOGS=0 RAY_USAGE_STATS_ENABLED=0
# One request at a time, each with a seed of its own: two runs then make the same tokens. OpenRLHF shuffles the prompts without a
# seed, so each step uses all eight. The batch size is nine, because an episode then ends with its step.
exec python3 "${start[@]}" -m openrlhf.cli.train_ppo_ray \
    --actor.model_name_or_path "$folder/model" --train.agent_func_path "$here/seeded.py" \
    --data.prompt_dataset "$folder/prompts/train.jsonl" --data.input_key prompt --data.label_key label \
    --algo.advantage.estimator group_norm --algo.kl.init_coef 0 --actor.adam.lr 1e-5 \
    --actor.num_gpus_per_node "$gpus" --ref.num_gpus_per_node "$gpus" --vllm.num_engines "$gpus" --vllm.tensor_parallel_size 1 \
    --train.colocate_all --vllm.enable_sleep --ds.enable_sleep --vllm.gpu_memory_utilization 0.4 --vllm.sync_backend nccl \
    --ds.zero_stage 2 --ds.attn_implementation sdpa --data.max_len 256 --rollout.max_new_tokens 64 \
    --data.max_samples 8 --rollout.batch_size 9 --rollout.n_samples_per_prompt 4 --rollout.micro_batch_size 16 \
    --train.batch_size 32 --train.micro_batch_size 16 --train.num_episodes 6 --train.seed 11 --logger.logging_steps 1 \
    --ckpt.output_dir "$folder/openrlhf" --ckpt.path "$folder/openrlhf-checkpoints" "$@"
