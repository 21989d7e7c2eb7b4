"""The engine's side: vllm.v1.executor, vllm.v1.engine.core, vllm.engine.arg_utils, vllm.LLM."""
from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import importlib
import multiprocessing
import os
import types
import uuid
from typing import Any

from vllm._shapes import since

_loaded: list[bool] = []


def load_general_plugins() -> None:
    """The entry point, where an installed package would have it. Once in each process."""
    if not _loaded:
        _loaded.append(True)
        if os.environ.get("VLLM_PLUGINS") in (None, "amem"):
            importlib.import_module("amem.vllm").register()


def _serve(config: Any, rank: int, pipe: Any) -> None:
    load_general_plugins()
    pipe.send((True, None))
    worker = None
    while True:
        method, args, kwargs = pipe.recv()
        try:
            if method == "init":
                worker = _worker_of(config, rank)
                answer = None
            else:
                answer = getattr(worker, method)(*args, **kwargs)
            pipe.send((True, answer))
        except Exception as error:  # noqa: BLE001
            pipe.send((False, str(error)))


def _worker_of(config: Any, rank: int) -> Any:
    module, _, name = config.parallel_config.worker_cls.rpartition(".")
    worker = getattr(importlib.import_module(module), name)(
        vllm_config=config, local_rank=rank, rank=rank, distributed_init_method=config.store, is_driver_worker=rank == 0)
    worker.init_device()
    worker.load_model()
    worker.initialize_cache()
    return worker


class Executor:
    """In this process, or with workers of their own, whose answers are read up to the first failure."""

    def __init__(self, vllm_config: Any) -> None:
        self.vllm_config = vllm_config
        self.sleeping_tags: set[str] = set()
        self.pipes: list[Any] = []
        size = vllm_config.parallel_config.tensor_parallel_size
        on_ray = vllm_config.parallel_config.distributed_executor_backend == "ray"
        if size == 1 and not on_ray:
            self.worker = _worker_of(vllm_config, 0)
            return
        here = dict(os.environ)
        if on_ray:  # its workers get few variables
            copied = ("VLLM_", *filter(None, os.environ.get("VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY", "").split(",")))
            for name in here:
                if name.startswith(("AMEM_", "LD_PRELOAD")) and not name.startswith(copied):
                    del os.environ[name]
        spawn: Any = multiprocessing.get_context(os.environ.get("VLLM_WORKER_MULTIPROC_METHOD", "fork"))
        for rank in range(size):
            ours, theirs = spawn.Pipe()
            spawn.Process(target=_serve, args=(vllm_config, rank, theirs), daemon=True).start()
            self.pipes.append(ours)
        os.environ.update(here)
        for pipe in self.pipes:
            assert pipe.poll(60), "a worker did not start"
            pipe.recv()
        self.collective_rpc("init")

    def collective_rpc(self, method: str, timeout: float | None = None, args: tuple[Any, ...] = (),
                       kwargs: dict[str, Any] | None = None) -> list[Any]:
        if not self.pipes:
            return [getattr(self.worker, method)(*args, **(kwargs or {}))]
        for pipe in self.pipes:
            pipe.send((method, args, kwargs or {}))
        answers = []
        for pipe in self.pipes:
            assert pipe.poll(120), f"no answer to {method}"
            good, answer = pipe.recv()
            if not good:
                raise RuntimeError(f"Worker failed with error '{answer}'")
            answers.append(answer)
        return answers

    @property
    def is_sleeping(self) -> bool:
        return bool(self.sleeping_tags)

    def sleep(self, level: int = 1) -> None:
        if "weights" in self.sleeping_tags or self.sleeping_tags and not since(31):
            return
        self.collective_rpc("sleep", kwargs=dict(level=level))
        self.sleeping_tags |= {"weights", "kv_cache"}

    def wake_up(self, tags: list[str] | None = None) -> None:
        if not self.is_sleeping or any(tag not in self.sleeping_tags for tag in tags or ()):
            return
        self.collective_rpc("wake_up", kwargs=dict(tags=tags))
        self.sleeping_tags -= set(tags or self.sleeping_tags)

    if since(31):
        def discard(self, tags: tuple[str, ...]) -> None:
            going = set(tags) - self.sleeping_tags
            if not going:
                return
            try:
                self.collective_rpc("discard", args=(tuple(going),))
            finally:
                self.sleeping_tags |= going


class EngineCore:
    def __init__(self, vllm_config: Any) -> None:
        load_general_plugins()
        self.vllm_config, self.paused = vllm_config, False
        self.model_executor = Executor(vllm_config)

    def sleep(self, level: int = 1, mode: str = "abort") -> concurrent.futures.Future[None] | None:
        self.paused = True
        if level < 1:
            return None
        if mode != "wait":
            self.model_executor.sleep(level)
            return None
        self.drained: concurrent.futures.Future[None] = concurrent.futures.Future()
        future: concurrent.futures.Future[None] = concurrent.futures.Future()

        def pause_complete(done: concurrent.futures.Future[None]) -> None:
            try:
                done.result()
                self.model_executor.sleep(level)
                future.set_result(None)
            except Exception as error:  # noqa: BLE001
                future.set_exception(error)

        self.drained.add_done_callback(pause_complete)
        return future

    def wake_up(self, tags: list[str] | None = None) -> bool | None:
        if tags is not None:
            tags = [tag for tag in tags if tag != "scheduling"]
        if tags is None or tags:
            self.model_executor.wake_up(tags)
        awake = not self.model_executor.is_sleeping
        if awake:
            self.resume_scheduler()
        return awake if since(31) else None

    if since(31):
        def release_kv_cache_memory(self) -> None:
            if not self.paused or self.model_executor.is_sleeping:
                raise RuntimeError("release_kv_cache_memory() requires a completed pause first, and all executor memory to be resident")
            self.model_executor.discard(("kv_cache",))

    def resume_scheduler(self) -> None:
        self.paused = False

    def is_sleeping(self) -> bool:
        return self.paused or self.model_executor.is_sleeping


@dataclasses.dataclass
class EngineArgs:
    model: str = ""
    enable_sleep_mode: bool = False
    worker_cls: str = "auto"
    distributed_executor_backend: str | None = None
    tensor_parallel_size: int = 1
    more: dict[str, Any] | None = None
    if since(30):
        enable_nccl_comm_suspend: bool = False
    if since(31):
        sleep_preserve_parameter_names: tuple[str, ...] = ()
    if since(32):
        sleep_mode_offload_cudagraph: bool = False
    if since(33):
        sleep_mode_backend: str = "cumem"

    def __post_init__(self) -> None:
        load_general_plugins()

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        parser.add_argument("--enable-sleep-mode", action=argparse.BooleanOptionalAction, default=False)
        parser.add_argument("--worker-cls", default="auto")
        if since(33):
            parser.add_argument("--sleep-mode-backend", default="cumem")
            parser.add_argument("--enable-nccl-comm-suspend", action=argparse.BooleanOptionalAction, default=False)
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> EngineArgs:
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: getattr(args, name) for name in names if hasattr(args, name)})

    def create_engine_config(self, usage_context: object = None) -> Any:
        # All engines' choice is the worker's class by then.
        worker = "vllm.v1.worker.gpu_worker.Worker" if self.worker_cls == "auto" else self.worker_cls
        names = ("enable_sleep_mode", "sleep_mode_backend", "enable_nccl_comm_suspend", "sleep_preserve_parameter_names",
                 "sleep_mode_offload_cudagraph")
        options = {"sleep_mode_backend": "cumem"} if since(25) else {}
        options |= {name: getattr(self, name) for name in names if name in {field.name for field in dataclasses.fields(self)}}
        return types.SimpleNamespace(
            more=self.more, store=f"file:///tmp/{uuid.uuid4().hex}", model_config=types.SimpleNamespace(**options),
            parallel_config=types.SimpleNamespace(worker_cls=worker, tensor_parallel_size=self.tensor_parallel_size,
                                                  distributed_executor_backend=self.distributed_executor_backend))


class LLM:
    def __init__(self, **options: Any) -> None:
        names = {field.name for field in dataclasses.fields(EngineArgs)}
        known = {name: value for name, value in options.items() if name in names}
        config = EngineArgs(**known, more={k: v for k, v in options.items() if k not in names}).create_engine_config()
        self.core = EngineCore(config)
        self.llm_engine = types.SimpleNamespace(engine_core=types.SimpleNamespace(shutdown=lambda: None))
        self.sleep, self.wake_up = self.core.sleep, self.core.wake_up
        self.release_kv_cache_memory = getattr(self.core, "release_kv_cache_memory", None)

    def collective_rpc(self, method: str, timeout: float | None = None, args: tuple[Any, ...] = (),
                       kwargs: dict[str, Any] | None = None) -> list[Any]:
        return self.core.model_executor.collective_rpc(method, timeout, args, kwargs)

    def generate(self, prompts: list[dict[str, list[int]]], sampling_params: Any = None, use_tqdm: bool = False) -> list[Any]:
        assert not self.core.is_sleeping(), "requests wait"
        outputs = []
        for prompt in prompts:
            tokens = self.collective_rpc("execute", args=(
                [each % 256 for each in prompt["prompt_token_ids"]], sampling_params.max_tokens))[0]
            outputs.append(types.SimpleNamespace(outputs=[types.SimpleNamespace(token_ids=tokens)]))
        return outputs
