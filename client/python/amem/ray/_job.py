"""Makes actors of a Ray job ranks, for programs that know nothing of amem. Actors of some classes get the environment of a rank.

The driver and each worker process of the job change `remote` and `options` of ray.actor.ActorClass. In the driver, the command
`python3 -m amem.ray run` does that. In a worker, Ray calls begin_worker() (worker_process_setup_hook of the job's runtime_env). So a
framework may make an actor in any process.

An actor gets the environment when it is made, because its process cannot change it later. The shim reads AMEM_GROUP and AMEM_SCOPE
once, at the first lookup of a driver call (shim/runtime/runtime.h), and LD_PRELOAD counts only at the start of a process. Child
processes of the actor inherit the environment from its process. Actors that it makes inherit it from its runtime_env, which vLLM also
passes to its Ray workers.
"""
from __future__ import annotations

import collections
import logging
import os
import threading
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray.actor import ActorClass

from amem import _enable, _launcher
from amem.errors import FailedPreconditionError
from amem.frameworks import hook, replace
from amem.ray._rank_class import option
from amem.ray._rules import SEPARATOR, Rule, parse

RULES = "AMEM_RAY_GROUPS"
"""The variable with the job's rules, in the form of `--group`. The command sets it in the environment of the job."""

_HOOK = "worker_process_setup_hook"
_BEGIN_WORKER = f"{__name__}.begin_worker"
_REQUIRED = "AMEM_REQUIRED"
_MOST_ACTORS = 10_000  # that Ray's state API reports
_ASK_S = 10

_lock = threading.Lock()
_rules: tuple[Rule, ...] = ()
_counts: collections.Counter[Rule] = collections.Counter()  # actors that this process has made
_told: set[tuple[str, str]] = set()  # classes and groups
_ended = False


def begin_worker() -> None:
    """Ray calls it first in each worker process of the job. With AMEM_ON=require it raises the errors of amem.enable()."""
    _install(parse(os.environ[RULES].split(SEPARATOR)))
    _enable.switch_on()


def begin_driver(rules: tuple[Rule, ...], runtime_dir: str | None, required: bool) -> None:
    """Makes ray.init() in this process start a job with these rules. ray.init() raises if the job already has a setup hook."""
    variables = {RULES: SEPARATOR.join(map(str, rules))}
    if runtime_dir is not None:
        variables["AMEM_RUNTIME_DIR"] = os.path.abspath(runtime_dir)
    if required:
        variables[_REQUIRED] = "1"  # only the shim reads it, so nothing changes where there is none

    def init(original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        address = (arguments[0] if arguments else options.get("address")) or os.environ.get("RAY_ADDRESS")
        if str(address).startswith("ray://"):
            # Its actors are made elsewhere, by other classes than Ray's own.
            raise FailedPreconditionError(f"amem.ray cannot serve a driver that uses Ray's client ({address}). Start the driver on the "
                                          "cluster: `ray job submit -- python3 -m amem.ray run ...`, or set RAY_ADDRESS to the address "
                                          "of the cluster itself")
        return original(*arguments, **{**options, "runtime_env": _job_environment(options.get("runtime_env"), variables)})

    def shutdown(original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        tell_unmatched()
        return original(*arguments, **options)

    _install(rules)
    replace(ray, "init", init)
    replace(ray, "shutdown", shutdown)


def _job_environment(given: Mapping[str, Any] | None, variables: Mapping[str, str]) -> dict[str, Any]:
    so_far = dict(given or {})
    other = so_far.get(_HOOK)
    if other not in (None, _BEGIN_WORKER):
        raise FailedPreconditionError(f"the job's runtime_env has the {_HOOK} {other!r}, and amem requires its own. Ray supports only "
                                      "one: remove the job's, or start the ranks with amem.ray.Cluster (docs/ray.md)")
    return {**so_far, _HOOK: _BEGIN_WORKER, "env_vars": {**(so_far.get("env_vars") or {}), **variables}}


# ---- actors that this process makes ----
def _install(rules: tuple[Rule, ...]) -> None:
    global _rules
    _rules = rules
    hook(ray, "init")
    hook(ray, "shutdown")
    hook(ActorClass, "options", "self")
    hook(ActorClass, "remote", "self")
    replace(ActorClass, "options", _options)
    replace(ActorClass, "remote", _remote)


class _Options:
    """The result of ActorClass.options(). Each actor that it makes gets its own group, if the rule asks for that."""

    def __init__(self, made: Callable[..., Any], actor_class: Any, given: Mapping[str, Any], rule: Rule) -> None:
        self._made = made
        self._actor_class = actor_class
        self._given = given
        self._rule = rule

    def remote(self, /, *arguments: Any, **named: Any) -> Any:
        given = _rank_options(self._actor_class, self._given, self._rule)
        return self._made(self._actor_class, **given).remote(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._made(self._actor_class, **self._given), name)


def _options(original: Callable[..., Any], actor_class: Any, /, **given: Any) -> Any:
    rule = _rule_of(_class_name(actor_class))
    return original(actor_class, **given) if rule is None else _Options(original, actor_class, given, rule)


def _remote(original: Callable[..., Any], actor_class: Any, /, *arguments: Any, **named: Any) -> Any:
    if _rule_of(_class_name(actor_class)) is None:
        return original(actor_class, *arguments, **named)
    return actor_class.options().remote(*arguments, **named)


def _class_name(actor_class: Any) -> str:
    """The name of the class. Empty: an actor class of another language."""
    return getattr(getattr(actor_class, "__ray_actor_class__", None), "__name__", "")


def _rule_of(class_name: str) -> Rule | None:
    return next((rule for rule in _rules if rule.matches(class_name)), None)


def _rank_options(actor_class: Any, given: Mapping[str, Any], rule: Rule) -> dict[str, Any]:
    so_far = option(actor_class, given, "runtime_env") or {}
    variables = so_far.get("env_vars") or {}
    class_name = _class_name(actor_class)
    actor_name = option(actor_class, given, "name")
    if "AMEM_GROUP" in variables:  # who makes the actor has chosen
        _counts[rule] += 1
        return dict(given)
    if not ray.is_initialized():
        ray.init()  # as Ray itself does in the next moment
    base = {**(ray.get_runtime_context().runtime_env.get("env_vars") or {}), **variables}
    required = base.get(_REQUIRED) == "1"
    group = rule.group_of(class_name, actor_name, _number(rule, actor_name), _job_name())
    # No runtime directory: each node has its own, unless the job's environment names one.
    rank = _launcher.rank_variables(group, rule.scope, None, _launcher.shim_path(), required, base)
    rank[_enable.SWITCH] = base.get(_enable.SWITCH) or ("require" if required else "1")
    _tell(class_name, group, rule)
    return {**given, "runtime_env": {**so_far, "env_vars": {**variables, **rank}}}


def _job_name() -> str:
    """Ray's job id with a sum of the cluster's address: each cluster counts its jobs from 1, and a node may have several."""
    context = ray.get_runtime_context()
    return f"{context.get_job_id()}-{zlib.crc32(context.gcs_address.encode()) & 0xffff:04x}"


def _number(rule: Rule, actor_name: str | None) -> int:
    """The next number of the rule's actors. Several processes of a job may make actors, so the cluster keeps the numbers in use."""
    while True:
        with _lock:
            number = _counts[rule]
            _counts[rule] += 1
        if not rule.has_number(actor_name):
            return number
        try:
            from ray.experimental.internal_kv import _internal_kv_put

            taken = _internal_kv_put(f"amem:{_job_name()}:{rule}:{number}", b"", overwrite=False, namespace=b"amem")
        except Exception as error:
            raise FailedPreconditionError(f'the rule "{rule}" numbers its actors, and Ray {ray.__version__} cannot keep the numbers '
                                          f"({type(error).__name__}: {error}). Use {{name}}, and give the actors names") from error
        if not taken:
            return number


def _tell(class_name: str, group: str, rule: Rule) -> None:
    with _lock:
        if (class_name, group) in _told:
            return
        _told.add((class_name, group))
    _enable.say(logging.INFO, f'{class_name}: group "{group}", scope {rule.scope}')


# ---- the end of the job ----
def tell_unmatched() -> None:
    """Logs each rule that matched no actor of the job. Never raises. Call it in the driver before ray.shutdown()."""
    global _ended
    missing = [rule for rule in _rules if not _counts[rule]]
    if _ended or not missing or not ray.is_initialized():
        return
    _ended = True
    try:
        made = _classes_of_job()
    except Exception as error:  # noqa: BLE001: there may be no dashboard
        names = ", ".join(rule.classes for rule in missing)
        _enable.say(logging.INFO, f"amem cannot find out whether this job had actors of {names}, because Ray's state API does not answer "
                                  f"({type(error).__name__}). `amemctl groups` on a node lists its groups")
        return
    for rule in missing:
        if not any(_rule_of(name) is rule for name in made):
            _enable.say(logging.WARNING, f'no actor of this job has the class {rule.classes}, so the rule "{rule}" had no effect. The '
                                         f"classes of its actors: {', '.join(made) or 'none'}")


def _classes_of_job() -> list[str]:
    """The class names of all actors of this job, of every process."""
    from ray.util.state import list_actors

    job = ray.get_runtime_context().get_job_id()
    actors = list_actors(filters=[("job_id", "=", job)], limit=_MOST_ACTORS, timeout=_ASK_S, raise_on_missing_output=False)
    return sorted({actor.class_name.rpartition(".")[2] for actor in actors})  # a class may be made in a function
