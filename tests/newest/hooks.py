"""What amem needs of other projects: functions by file, class and first parameters, and the versions that it takes.

The package client/python/amem asks for these at run time; test_check.py sees that none is missing here."""
import collections
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLIENT = ROOT / "client" / "python" / "amem"

# `file`: where amem asks for it. That file may import it from another. `optional`: older versions lack it, and amem does without.
Hook = collections.namedtuple("Hook", "file owner name parameters optional", defaults=(False,))
# `taken_by`: the file of amem's with `tried`, the versions that it was tried with or read for; none: any version. `binaries`: their names of driver calls are read.
# `repository`: where a project is that no package index has.
Project = collections.namedtuple("Project", "package hooks taken_by binaries headers repository", defaults=((), None, False, False, None))


def _hooks(file, owner, optional=False, **functions):
    return tuple(Hook(file, owner, name, parameters, optional) for name, parameters in functions.items())


def _trainer(name):
    """Of slime, and of Miles, which began as a copy of it."""
    return tuple(Hook(f"{name}/{file}.py", None, function, ())
                 for file in ("utils/reloadable_process_group", "backends/megatron_utils/actor")
                 for function in ("destroy_process_groups", "reload_process_groups"))


_ENGINES = "verl/workers/engine"
_VERL_READERS = {"save_checkpoint": ("self", "local_path"), "load_checkpoint": ("self", "local_path"), "get_per_tensor_param": ("self",)}
PROJECTS = (
    Project("vllm", (
        *_hooks("vllm/engine/arg_utils.py", "EngineArgs", add_cli_args=("parser",), from_cli_args=("cls", "args"),
                create_engine_config=("self",)),
        *_hooks("vllm/v1/engine/core.py", "EngineCore", sleep=("self", "level", "mode"), is_sleeping=("self",), resume_scheduler=("self",)),
        *_hooks("vllm/v1/executor/abstract.py", "Executor", sleep=("self", "level"), wake_up=("self", "tags"),
                collective_rpc=("self", "method", "timeout", "args", "kwargs")),
        *_hooks("vllm/v1/worker/gpu_worker.py", "Worker", __init__=("self", "vllm_config"), init_device=("self",),
                sleep=("self", "level"), wake_up=("self", "tags"), shutdown=("self",)),
        *_hooks("vllm/device_allocator/cumem.py", "CuMemAllocator", get_instance=(), use_memory_pool=("self", "tag")),
        *_hooks("vllm/v1/executor/abstract.py", "Executor", True, discard=("self", "tags")),
        *_hooks("vllm/v1/worker/gpu_worker.py", "Worker", True, discard=("self", "tags")),
        *_hooks("vllm/device_allocator/sleep_mode_backend.py", "CuMemBackend", True, suspend=("self", "level"), resume=("self", "tags"),
                discard=("self", "tags")),
        *_hooks("vllm/device_allocator/sleep_mode_backend.py", "SleepModeBackendFactory", True, _registry=(),
                register_backend=("cls", "name", "module_path", "class_name")),
        *_hooks("vllm/v1/worker/gpu_worker.py", None, True, has_kv_transfer_group=(), get_kv_transfer_group=())), "vllm/__init__.py", True),
    Project("sglang", (
        *_hooks("sglang/srt/plugins/hook_registry.py", "HookRegistry", register=("cls", "target", "hook", "hook_type")),
        *_hooks("sglang/srt/plugins/hook_registry.py", "HookType", AROUND=()),
        *_hooks("sglang/srt/utils/torch_memory_saver_adapter.py", "TorchMemorySaverAdapter", create=("enable",)),
        *_hooks("sglang/srt/managers/scheduler_components/weight_updater.py", "SchedulerWeightUpdaterManager",
                release_memory_occupation=("self", "recv_req"), resume_memory_occupation=("self", "recv_req")),), "sglang/__init__.py"),
    Project("torch", (
        *_hooks("torch/cuda/memory.py", "MemPool", __init__=("self", "allocator")),
        *_hooks("torch/cuda/memory.py", None, use_mem_pool=("pool",), empty_cache=()),
        *_hooks("torch/distributed/distributed_c10d.py", None, _add_ephemeral_timeout_for_all_pgs=("timeout",)),
        *_hooks("torch/distributed/distributed_c10d.py", None, True, _world=())), None, True),
    Project("nvidia-nccl-cu13", (), None, True),
    Project("trl", (), None),
    Project("verl", (
        *_hooks("verl/workers/engine_workers.py", "ActorRolloutRefWorker", update_weights=("self", "global_steps")),
        *_hooks(f"{_ENGINES}/base.py", "BaseEngineCtx", __enter__=("self",), __exit__=("self",)),
        *(hook for engine, owner in (("fsdp", "FSDPEngine"), ("torchtitan", "TorchTitanEngine"), ("megatron", "MegatronEngine"))
          for optional, functions in ((False, _VERL_READERS), (True, {"get_per_tensor_param_shard": ("self",)}))
          for hook in _hooks(f"{_ENGINES}/{engine}/transformer_impl.py", owner, optional, **functions)),
        *(hook for engine in ("fsdp", "torchtitan")
          for hook in _hooks(f"{_ENGINES}/{engine}/transformer_impl.py", None, offload_fsdp_model_to_cpu=("model",),
                             load_fsdp_model_to_gpu=("model",), offload_fsdp_optimizer=("optimizer",), load_fsdp_optimizer=("optimizer",))),
        *_hooks(f"{_ENGINES}/megatron/transformer_impl.py", None, offload_megatron_model_to_cpu=("models",),
                load_megatron_model_to_gpu=("models", "load_grad"), offload_megatron_optimizer=("optimizers",),
                load_megatron_optimizer=("optimizers",)),
        *_hooks("verl/utils/megatron_utils.py", None, True, copy_megatron_model_to_cpu=("models",),
                restore_megatron_model_from_cpu=("models",), _clear_te_fp8_weight_workspaces=("model_chunk",)),
        *_hooks("verl/utils/fsdp_utils.py", None, True, fsdp1_sharded_save_to_cpu=("model",), fsdp1_sharded_load_from_cpu=("model",),
                fsdp2_sharded_save_to_cpu=("model",), fsdp2_sharded_load_from_cpu=("model",))), "verl/__init__.py"),
    Project("deepspeed", (
        *(hook for file, owner in (("stage_1_and_2", "DeepSpeedZeroOptimizer"), ("stage3", "DeepSpeedZeroOptimizer_Stage3"))
          for hook in _hooks(f"deepspeed/runtime/zero/{file}.py", owner, offload_states=("self", "include", "device"),
                             reload_states=("self",), step=("self",), state_dict=("self",), load_state_dict=("self", "state_dict_list"))),
        *_hooks("deepspeed/runtime/engine.py", "DeepSpeedEngine", save_checkpoint=("self", "save_dir"), load_checkpoint=("self", "load_dir"),
                module_state_dict=("self",), save_16bit_model=("self", "save_dir"))),
            "deepspeed/__init__.py", repository="https://github.com/deepspeedai/DeepSpeed"),
    Project("ray", (
        *_hooks("ray/__init__.py", None, init=(), shutdown=()),
        *_hooks("ray/actor.py", "ActorClass", options=("self",), remote=("self",)))),
    Project("slime", _trainer("slime"), "slime/__init__.py", repository="https://github.com/THUDM/slime"),
    Project("miles", _trainer("miles"), repository="https://github.com/radixark/miles"),
    Project("megatron-core", (
        *_hooks("megatron/core/distributed/distributed_data_parallel.py", "DistributedDataParallel",
                offload_grad_buffers=("self", "synchronize", "empty_cache"), restore_grad_buffers=("self", "synchronize")),
        *_hooks("megatron/core/optimizer/optimizer.py", "MegatronOptimizer", offload_to_cpu=("self",), restore_from_cpu=("self",)),
        *_hooks("megatron/core/optimizer/optimizer.py", "ChainedOptimizer", offload_to_cpu=("self",), restore_from_cpu=("self",))),
            "megatron/__init__.py"),
    Project("nvidia-cuda-runtime", (), None, True, True),
)


def window(project):
    """The oldest and newest version that amem was tried with or read for, as tuples; nothing: any."""
    if project.taken_by is None:
        return None
    text = (CLIENT / project.taken_by).read_text(encoding="utf-8")
    found = re.search(r"^    tried = \(([\d, ]+)\), \(([\d, ]+)\)$", text, re.MULTILINE)
    return tuple(tuple(int(part) for part in group.split(",") if part.strip()) for group in found.groups())
