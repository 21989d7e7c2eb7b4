"""What amem needs of other projects: functions by file, class and first parameters, and the versions that it takes.

The package client/python/amem asks for these at run time; test_check.py sees that the two agree."""
import collections
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLIENT = ROOT / "client" / "python" / "amem"

Hook = collections.namedtuple("Hook", "file owner name parameters")
# `taken_by`: the file of amem's with OLDEST and NEWEST; none: any version. `binaries`: their names of driver calls are read.
Project = collections.namedtuple("Project", "package hooks taken_by binaries headers", defaults=((), None, False, False))


def _hooks(file, owner, **functions):
    return tuple(Hook(file, owner, name, parameters) for name, parameters in functions.items())


_ENGINES = "verl/workers/engine"
PROJECTS = (
    Project("vllm", (
        *_hooks("vllm/engine/arg_utils.py", "EngineArgs", add_cli_args=("parser",), from_cli_args=("cls", "args"),
                create_engine_config=("self",)),
        *_hooks("vllm/v1/worker/gpu_worker.py", "Worker", __init__=("self", "vllm_config"), sleep=("self", "level"), wake_up=("self", "tags")),
        *_hooks("vllm/device_allocator/cumem.py", "CuMemAllocator", get_instance=(), use_memory_pool=("self", "tag"))), "vllm.py", True),
    Project("sglang", (
        *_hooks("sglang/srt/managers/scheduler_components/weight_updater.py", "SchedulerWeightUpdaterManager",
                release_memory_occupation=("self", "recv_req"), resume_memory_occupation=("self", "recv_req")),), "sglang/__init__.py"),
    Project("torch", (
        *_hooks("torch/cuda/memory.py", "MemPool", __init__=("self", "allocator")),
        *_hooks("torch/cuda/memory.py", None, use_mem_pool=("pool",), empty_cache=())), None, True),
    Project("nvidia-nccl-cu13", (), None, True),
    Project("trl", (), None),
    Project("verl", (
        *_hooks("verl/workers/engine_workers.py", "ActorRolloutRefWorker", update_weights=("self", "global_steps")),
        *_hooks(f"{_ENGINES}/base.py", "BaseEngineCtx", __enter__=("self",))), "verl/__init__.py"),
    Project("megatron-core", (
        *_hooks("megatron/core/distributed/distributed_data_parallel.py", "DistributedDataParallel",
                offload_grad_buffers=("self", "synchronize", "empty_cache"), restore_grad_buffers=("self", "synchronize")),
        *_hooks("megatron/core/optimizer/optimizer.py", "MegatronOptimizer", offload_to_cpu=("self",), restore_from_cpu=("self",)),
        *_hooks("megatron/core/optimizer/optimizer.py", "ChainedOptimizer", offload_to_cpu=("self",), restore_from_cpu=("self",))),
            "megatron/__init__.py"),
    Project("nvidia-cuda-runtime", (), None, True, True),
)


def window(project):
    """The oldest and newest version that amem takes, as tuples; nothing: any."""
    if project.taken_by is None:
        return None
    text = (CLIENT / project.taken_by).read_text(encoding="utf-8")
    found = re.search(r"^OLDEST, NEWEST = \(([\d, ]+)\), \(([\d, ]+)\)", text, re.MULTILINE)
    return tuple(tuple(int(part) for part in group.split(",") if part.strip()) for group in found.groups())
