#!/bin/bash
# verl's own trainer: GRPO with FSDP2 and vLLM, which share the GPUs.
#   run.sh [--amem] FOLDER [OPTION...]      FOLDER: from made_up/make.py. OPTION: one of verl's
set -eu
here=$(cd "$(dirname "$0")" && pwd)
made_up=$here/../made_up
start=()
if [ "$1" = --amem ]; then
    shift
    start=(-m amem.ray run --group 'WorkerDict=trainer:regions' --group 'vLLMHttpServer={name}:heap')
fi
folder=$(realpath "$1")
shift
export HF_HUB_OFFLINE=1 CUBLAS_WORKSPACE_CONFIG=:4096:8 PYTHONHASHSEED=0 VLLM_USE_FLASHINFER_SAMPLER=0 VLLM_NO_USAGE_STATS=1
export VLLM_LOGGING_LEVEL=INFO VLLM_WORKER_MULTIPROC_METHOD=spawn RAY_DEDUP_LOGS=0 RAY_USAGE_STATS_ENABLED=0
export VERL_FILE_LOGGER_PATH=${VERL_FILE_LOGGER_PATH:-$folder/verl.jsonl}
export PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH}
# One request at a time, each with a seed of its own: two runs then make the same tokens.
exec python3 "${start[@]}" -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    data.train_files="$folder/verl.parquet" data.val_files="$folder/verl.parquet" data.train_batch_size=8 data.shuffle=False \
    data.max_prompt_length=32 data.max_response_length=64 data.dataloader_num_workers=0 \
    actor_rollout_ref.model.path="$folder/model" actor_rollout_ref.model.use_remove_padding=False \
    +actor_rollout_ref.model.override_config.attn_implementation=sdpa \
    actor_rollout_ref.actor.strategy=fsdp2 actor_rollout_ref.actor.optim.lr=1e-5 \
    actor_rollout_ref.actor.ppo_mini_batch_size=8 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16 \
    actor_rollout_ref.actor.use_torch_compile=False actor_rollout_ref.actor.fsdp_config.use_torch_compile=False \
    actor_rollout_ref.actor.fsdp_config.param_offload=True actor_rollout_ref.actor.fsdp_config.optimizer_offload=True \
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=4 actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.4 actor_rollout_ref.rollout.max_model_len=256 \
    actor_rollout_ref.rollout.max_num_seqs=1 actor_rollout_ref.rollout.agent.num_workers=1 \
    actor_rollout_ref.rollout.agent.default_agent_loop=seeded \
    actor_rollout_ref.rollout.agent.agent_loop_config_path="$here/seeded.yaml" \
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16 \
    reward.num_workers=1 reward.custom_reward_function.path="$made_up/rewards.py" reward.custom_reward_function.name=for_verl \
    trainer.nnodes=1 trainer.n_gpus_per_node="${GPUS:-1}" trainer.logger='["console","file"]' trainer.total_training_steps=6 \
    transfer_queue.backend.SimpleStorage.num_data_storage_units=1 \
    trainer.val_before_train=False trainer.test_freq=-1 trainer.save_freq=-1 trainer.resume_mode=disable \
    trainer.default_local_dir="$folder/verl" hydra.run.dir="$folder/hydra" "$@"
