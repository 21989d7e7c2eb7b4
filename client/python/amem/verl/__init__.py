"""verl: amem frees and restores the GPU memory that verl's trainers would copy to the CPU and back.

verl's param_offload and optimizer_offload still choose this memory. With
`actor_rollout_ref.model.external_lib=amem.verl.external_lib`, verl calls amem.enable().

docs/rl-frameworks.md is the manual. This module imports neither verl nor torch.
"""
from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from amem import _regions
from amem import megatron as _megatron
from amem.errors import FailedPreconditionError
from amem.frameworks import Framework, hook, replace
from amem.frameworks.phases import State, Tags, bring, idle, lent, reads, take
from amem.frameworks.tensors import left_to, parts

__all__ = ["Verl"]

_ENGINES = "verl.workers.engine.{}.transformer_impl"
_FSDP: dict[str, tuple[str, ...]] = {
    "offload_fsdp_model_to_cpu": ("model",), "load_fsdp_model_to_gpu": ("model",),
    "offload_fsdp_optimizer": ("optimizer",), "load_fsdp_optimizer": ("optimizer",)}
_MEGATRON: dict[str, tuple[str, ...]] = {
    "offload_megatron_model_to_cpu": ("models",), "load_megatron_model_to_gpu": ("models", "load_grad"),
    "offload_megatron_optimizer": ("optimizers",), "load_megatron_optimizer": ("optimizers",)}
# Engine, its class, and the functions that it moves memory with. torchtitan's imports those of FSDP by name.
_SERVED = (("fsdp", "FSDPEngine", _FSDP), ("torchtitan", "TorchTitanEngine", _FSDP), ("megatron", "MegatronEngine", _MEGATRON))
# What reads or writes parameters or the optimizer's state: methods of an engine, and functions of verl's that get a model.
_READERS: dict[str, tuple[str, ...]] = {
    "save_checkpoint": ("self", "local_path"), "load_checkpoint": ("self", "local_path"), "get_per_tensor_param": ("self",)}
_COPIES = {"verl.utils.megatron_utils": ("copy_megatron_model_to_cpu", "restore_megatron_model_from_cpu"),
           "verl.utils.fsdp_utils": ("fsdp1_sharded_save_to_cpu", "fsdp1_sharded_load_from_cpu", "fsdp2_sharded_save_to_cpu",
                                     "fsdp2_sharded_load_from_cpu")}
_TOUCHING = ("step",)
_OPTIMIZER_READERS = ("state_dict", "load_state_dict")
_logger = logging.getLogger("amem")
_tag = Tags("verl")
_nccl_paused = False
_read: weakref.WeakSet[Any] = weakref.WeakSet()  # models whose parameters verl is about to read
_leaving = False  # whether the __exit__() of verl's engine context runs now
_staying: weakref.WeakSet[Any] = weakref.WeakSet()  # models that verl has offloaded, and whose parameters are still on the GPU
_away: weakref.WeakSet[Any] = weakref.WeakSet()  # models whose parameters are paused
_turn = threading.RLock()  # of the parameters. A thread that reads them holds it, so that another one cannot pause them meanwhile
_verls: weakref.WeakSet[Any] = weakref.WeakSet()  # models and optimizers that verl's own functions move


def _must_be_missing(engine: str, error: ImportError) -> None:
    """Raises FailedPreconditionError unless an engine's libraries are not installed, such as Megatron: a trainer cannot have this engine."""
    if not isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "verl":
        raise FailedPreconditionError(f"{_ENGINES.format(engine)} cannot be imported: {error}") from error


def _chunks(model: Any) -> list[Any]:
    """Of what verl's functions call a model: a module, or the list of Megatron's chunks. The first numbers the tags of them all."""
    return model if isinstance(model, list) else [model]


def _models(engine: Any) -> list[Any]:
    """The engine's modules. Megatron's engine has a list of chunks: this is the first. An engine without a module has none."""
    module = getattr(engine, "module", None)
    return [] if module is None else _chunks(module)


def _is_megatron(chunks: list[Any]) -> bool:
    return all(hasattr(chunk, "expert_parallel_buffers") for chunk in chunks)  # of Megatron's DistributedDataParallel


def _in_turn(function: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(function)
    def called(*arguments: Any, **options: Any) -> None:
        with _turn:
            function(*arguments, **options)

    return called


# ---- in the place of verl's ----
def _tensors(model: Any) -> Iterable[Any]:
    for chunk in _chunks(model):
        for each in chunk.parameters():
            yield each.data
            yield getattr(each, "grad", None)
        if not isinstance(model, list):
            yield from chunk.buffers()


@_in_turn
def _offload_model(original: Callable[..., None], model: Any, *arguments: Any, **options: Any) -> None:
    chunks = _chunks(model)
    if chunks[0] in _read:
        return
    if chunks[0] in _verls or left_to("verl", _tag("params", chunks[0]), _tensors(model)):
        _verls.add(chunks[0])
        original(model, *arguments, **options)
        return
    params, grads = _tag("params", chunks[0]), _tag("grads", chunks[0])
    _regions.move(parts(_tensors(model)), params)
    if _is_megatron(chunks):
        _regions.move(_megatron.gradients(chunks), grads, keep=False)
        _forget_workspaces(chunks)
    idle()
    if _leaving:
        _staying.add(chunks[0])
        take([grads])
    else:
        _staying.discard(chunks[0])
        take([params, grads])
        _away.add(chunks[0])


def _forget_workspaces(chunks: list[Any]) -> None:
    """Of Transformer Engine, as verl does. They are copies of the parameters in fp8, which the next forward makes again."""
    forget = getattr(sys.modules.get("verl.utils.megatron_utils"), "_clear_te_fp8_weight_workspaces", lambda chunk: 0)  # of newer versions
    for each in chunks:
        forget(each)


@_in_turn
def _pause_staying(except_models: Iterable[Any] = ()) -> None:
    """Pauses the parameters in _staying, except those of some models. No GPU work that uses them is left: _offload_model() called idle()."""
    kept = {id(_chunks(each)[0]) for each in except_models}
    models = [each for each in _staying if id(each) not in kept]
    _staying.difference_update(models)
    take(sorted(_tag("params", each) for each in models))  # in the same order in each rank
    _away.update(models)


@_in_turn
def _bring_model(model: Any, grads: bool = True) -> None:
    first = _chunks(model)[0]
    _pause_staying([model])
    _staying.discard(first)
    _bring_nccl()
    bring([_tag("params", first)] + ([_tag("grads", first)] if grads else []))
    _away.discard(first)


def _load_model(original: Callable[..., None], model: Any, load_grad: bool = True, *arguments: Any, **options: Any) -> None:
    if _chunks(model)[0] in _verls:
        _pause_staying()
        _bring_nccl()
        original(model, *((load_grad, *arguments) if isinstance(model, list) else ()), **options)
    else:
        _bring_model(model, load_grad)


@contextlib.contextmanager
def _borrowed(first: Any) -> Iterator[bool]:
    """The parameters of a model that verl has offloaded, as State.borrowed() has other memory. `first`: its first chunk."""
    params, nccl = _tag("params", first), _nccl_paused

    def leave() -> None:
        idle()
        if first not in _away and first not in _staying:
            take([params, _tag("grads", first)])
            _away.add(first)
        if nccl:
            _take_nccl()

    if first in _away or first in _staying:
        with lent(params, lambda: _bring_model(first, grads=False) if first in _away else None, leave):
            yield True
    else:
        yield False


@contextlib.contextmanager
def _borrowed_in_turn(first: Any) -> Iterator[bool]:
    with _turn, _borrowed(first) as paused:
        yield paused


def _of_model(model: Any, *_: Any, **__: Any) -> list[contextlib.AbstractContextManager[bool]]:
    return [_borrowed_in_turn(_chunks(model)[0])]


def _of_engine(engine: Any, *_: Any, **__: Any) -> list[contextlib.AbstractContextManager[bool]]:
    states = [getattr(engine.optimizer, "_amem_state", None)]
    return [_borrowed_in_turn(each) for each in _models(engine)] + [each.borrowed() for each in states if each is not None]


def _read_parameters(original: Callable[..., Any], engine: Any, *arguments: Any, **options: Any) -> Any:
    """get_per_tensor_param() and get_per_tensor_param_shard(): the caller reads the parameters one by one when they have returned.

    verl copies each from where it is, or keeps the GPU's copy alive. A pause would take the memory away. So the parameters return before,
    and leave with the engine's next to("cpu"), or at the end of update_weights().
    """
    models = [each for each in _models(engine) if each not in _verls] if engine.is_param_offload_enabled else []
    for each in models:
        if each in _away or each in _staying:
            _bring_model(each, grads=False)
    _read.update(models)
    try:
        return original(engine, *arguments, **options)
    finally:
        _read.difference_update(models)


class _Optimizers:
    """verl's functions that move an optimizer: which memory, and which methods need it."""

    def __init__(self, tensors: Callable[[Any], list[Any]], ours: Callable[[Any], list[Any]], methods: tuple[str, ...],
                 readers: tuple[str, ...]) -> None:
        """`tensors`: the state of an optimizer; `ours`: as much of it as amem moves."""
        self._tensors, self._ours, self._methods, self._readers = tensors, ours, methods, readers

    def _state(self, optimizer: Any) -> State:
        if not hasattr(optimizer, "_amem_state"):
            tag = _tag("optimizer", optimizer)
            optimizer._amem_state = State([tag], optimizer, self._methods, self._readers,
                                          lambda: _regions.move(self._ours(optimizer), tag))
        state: State = optimizer._amem_state
        return state

    def offload(self, original: Callable[..., None], optimizer: Any, *arguments: Any, **options: Any) -> None:
        if optimizer in _verls or left_to("verl", _tag("optimizer", optimizer), self._tensors(optimizer)):
            _verls.add(optimizer)
            self._state(optimizer).here()
            original(optimizer, *arguments, **options)
        else:
            self._state(optimizer).leave()

    def load(self, original: Callable[..., None], optimizer: Any, *arguments: Any, **options: Any) -> None:
        if optimizer in _verls:
            original(optimizer, *arguments, **options)
        else:
            self._state(optimizer).come()


def _fsdp_state(optimizer: Any) -> list[Any]:
    return [each for state in optimizer.state.values() for each in state.values()]


def _functions(engine: str) -> list[Callable[..., Any]]:
    """In the order of the functions in _SERVED."""
    if engine == "megatron":
        optimizers = _Optimizers(_megatron.state_tensors, _megatron.optimizer_state, _megatron.TOUCHING, _megatron.READERS)
    else:
        optimizers = _Optimizers(_fsdp_state, lambda optimizer: parts(_fsdp_state(optimizer)), _TOUCHING, _OPTIMIZER_READERS)
    return [_offload_model, _load_model, optimizers.offload, optimizers.load]


# ---- NCCL's memory: paused from the end of an update of the rollout's weights to the next computation ----
def _bring_nccl() -> None:
    global _nccl_paused
    if _nccl_paused:
        bring(["nccl"])
        _nccl_paused = False


def _take_nccl() -> None:
    global _nccl_paused
    idle()
    take(["nccl"])
    _nccl_paused = True


async def _update_weights(original: Callable[..., Any], worker: Any, *arguments: Any, **options: Any) -> Any:
    models = _models(worker.actor.engine) if worker.actor is not None else []
    _pause_staying(models)
    _bring_nccl()
    with contextlib.ExitStack() as stack:  # not every mode offloads the parameters that it has read
        for each in models:
            stack.enter_context(_borrowed(each))  # without the turn, which other threads may need during the call
        answer = await original(worker, *arguments, **options)
    _pause_staying()
    if all(each.engine.is_param_offload_enabled for each in (worker.actor, worker.ref) if each is not None):
        _take_nccl()
    return answer


def _enter(original: Callable[..., Any], context: Any) -> Any:
    kind = type(context.engine)
    _say_who_moves(kind.__name__, kind.to.__module__)
    _pause_staying(_models(context.engine))
    _bring_nccl()
    return original(context)


@functools.lru_cache(maxsize=None)
def _say_who_moves(engine: str, module: str) -> None:
    """`module`: the module of the engine's to()."""
    if module in [_ENGINES.format(each) for each, *_ in _SERVED]:
        _logger.info("amem: amem moves the memory of verl's engine %s", engine)
    else:
        _logger.warning("amem: amem does not know verl's engine %s, which moves its memory itself, as without amem. amem knows %s",
                        engine, ", ".join(each for _, each, _ in _SERVED))


def _exit(original: Callable[..., Any], context: Any, *error: Any) -> Any:
    """Keeps the parameters on the GPU after a computation, until the rollout engine has them or another model computes.

    verl offloads the parameters when it leaves this context. It needs them again soon: it computes probabilities, runs the
    training step, and calls update_weights(). Between these only the models of this worker use the GPU.
    """
    global _leaving
    _leaving = not any(error)
    try:
        return original(context, *error)
    finally:
        _leaving = False


class Verl(Framework):
    """verl's trainers, with FSDP, torchtitan or Megatron."""

    name, title, distribution = "verl", "verl", "verl"
    modules = ("verl.workers.engine_workers", "verl.workers.engine.base")
    tried = (0, 9), (0, 9)
    purpose = "verl's trainer cannot free its GPU memory by amem"
    how_to_start = "Start the job with `python3 -m amem.ray run`, as docs/rl-frameworks.md says"

    def hooks(self) -> list[Callable[..., Any]]:
        """Finds the functions that amem needs of verl and of its engines that can be imported. It changes nothing.

        Returns:
            The results of hook().

        Raises:
            FailedPreconditionError: A function is missing, or has other parameters.
        """
        from verl.workers import engine_workers
        from verl.workers.engine import base

        found = [hook(engine_workers.ActorRolloutRefWorker, "update_weights", "self", "global_steps"),
                 hook(base.BaseEngineCtx, "__enter__", "self"), hook(base.BaseEngineCtx, "__exit__", "self")]
        others = len(found)
        for engine, kind, hooks in _SERVED:
            try:
                module = importlib.import_module(_ENGINES.format(engine))
            except ImportError as error:
                _must_be_missing(engine, error)
                continue
            found += [hook(module, name, *parameters) for name, parameters in hooks.items()]
            if kind not in vars(module):
                raise FailedPreconditionError(f"{module.__name__} has no {kind}, which amem needs. amem does not support this version. Use an "
                                              "older version, or a newer amem. `amemctl pause` and `swap` work with any version")
            found += [hook(vars(module)[kind], name, *parameters) for name, parameters in _READERS.items()]
        if len(found) == others:
            raise FailedPreconditionError("verl has no engine here that amem knows, with FSDP, torchtitan or Megatron")
        return found

    def install(self) -> None:
        """Replaces verl's functions that copy parameters, gradients and optimizers by amem's. A second call changes nothing.

        Raises:
            FailedPreconditionError: amem does not support this version, or this process lacks something.
            UnavailableError: There is no broker.
        """
        self.check()  # nothing is changed before all of it has been found
        from verl.workers import engine_workers
        from verl.workers.engine import base

        for engine, kind, hooks in _SERVED:
            try:
                module = importlib.import_module(_ENGINES.format(engine))
            except ImportError:  # hooks() has found the reason
                continue
            for name, function in zip(hooks, _functions(engine)):
                replace(module, name, function)
            owner = vars(module)[kind]
            for name in ("save_checkpoint", "load_checkpoint"):
                reads(owner, name, _of_engine)
            replace(owner, "get_per_tensor_param", _read_parameters)
            if hasattr(owner, "get_per_tensor_param_shard"):  # not every version has it
                replace(owner, "get_per_tensor_param_shard", _read_parameters)
        for place, names in _COPIES.items():
            utils = sys.modules.get(place)
            for name in names:
                if hasattr(utils, name):  # not every version has it
                    reads(utils, name, _of_model)
        replace(engine_workers.ActorRolloutRefWorker, "update_weights", _update_weights)
        replace(base.BaseEngineCtx, "__enter__", _enter)
        replace(base.BaseEngineCtx, "__exit__", _exit)
