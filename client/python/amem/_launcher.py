"""Calls of launchers and controllers that need no open connection: start ranks, swap two groups once."""
from __future__ import annotations

import logging
import os
import pathlib
import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from amem import _endpoint, _later
from amem._arguments import Groups, Guests, OnProgress, Scope, Tags, group_name, scope_name
from amem.errors import InvalidArgumentError, NotFoundError, UnavailableError

if TYPE_CHECKING:
    from amem.broker import Broker

_logger = logging.getLogger("amem")

_SHIM = "libamem_shim.so"


def shim_path() -> str:
    """Finds libamem_shim.so.

    Returns:
        Its path: AMEM_SHIM, else the one in this package.

    Raises:
        NotFoundError: The file does not exist.
        InvalidArgumentError: LD_PRELOAD cannot hold its path.
    """
    named = os.environ.get("AMEM_SHIM")
    path = os.path.abspath(named) if named else str(pathlib.Path(__file__).parent / "lib" / _SHIM)
    if not os.path.isfile(path):
        raise NotFoundError(f"{_SHIM} is not at {path}. Set AMEM_SHIM to its path")
    if re.search("[ :]", path):
        raise InvalidArgumentError(
            f"LD_PRELOAD cannot hold a path with a space or a colon: {path}. Make a link to this file and set AMEM_SHIM to the link")
    return path


def preloads(variable: str) -> list[str]:
    """The libraries that a value of LD_PRELOAD names."""
    return [each for each in re.split("[ :]+", variable) if each]


def is_shim(entry: str) -> bool:
    """Whether an entry of LD_PRELOAD is the shim, by its own name or as a hook library."""
    return os.path.basename(entry) == _SHIM or _is_hook(entry)


def _is_hook(entry: str) -> bool:
    """Whether it is the shim under the name of torch_memory_saver's hook library. The original library has this name, too."""
    if not os.path.basename(entry).startswith("torch_memory_saver_hook_mode_"):
        return False
    try:
        return b"amem_shim_active" in pathlib.Path(entry).read_bytes()
    except OSError:
        return False


def with_shim(shim: str, before: str) -> str:
    """LD_PRELOAD with the shim first and the rest in its order.

    Removes any other shim, which would do nothing.
    """
    def is_second(entry: str) -> bool:
        return is_shim(entry) or os.path.realpath(entry) == os.path.realpath(shim)

    return ":".join([shim, *(each for each in preloads(before) if not is_second(each))])


def environment(group: str, scope: Scope | None = None, *, runtime_dir: str | None = None, required: bool = False,
                base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the environment variables that make a process, and all processes that it starts, ranks of a group.

    These are the variables that `amemctl run` sets. Use them with launchers that take variables, such as Ray's runtime_env.
    Set them before the process starts. They include NCCL_CUMEM_ENABLE=1, unless this variable is already set. Some
    frameworks set it to 0 if it is not set. Then NCCL's buffers do not share slabs, and a pause has to copy more pieces.

    Args:
        group: The group's name.
        scope: The memory that is brokered: "nccl", "regions" (also memory that is allocated in amem.region) or "heap" (all
            memory of the process). None: AMEM_SCOPE of the environment.
        runtime_dir: The broker's runtime directory. None: AMEM_RUNTIME_DIR, else the default.
        required: Without a broker, brokered allocations fail. Otherwise they go to the driver.
        base: The variables that you add these variables to. The result puts the shim before the libraries of its LD_PRELOAD
            and keeps them. None: the environment of this process. For Ray, whose env_vars replace the variables of a worker,
            pass the env_vars so far: `env_vars.update(amem.environment("rollout", base=env_vars))`.

    Returns:
        Only these variables, without `base`.

    Raises:
        InvalidArgumentError: The group or the scope is not valid.
        NotFoundError: The shim does not exist.
    """
    # Absolute, because the process may change its directory before it connects.
    directory = os.path.abspath(runtime_dir or _endpoint.default_runtime_dir())
    return rank_variables(group, scope, directory, shim_path(), required, os.environ if base is None else base)


def rank_variables(group: str, scope: Scope | None, directory: str | None, shim: str, required: bool,
                   base: Mapping[str, str]) -> dict[str, str]:
    """environment() for a machine with a known runtime directory and shim. `directory` None: the default of that machine."""
    variables = {"AMEM_GROUP": group_name(group), "LD_PRELOAD": with_shim(shim, base.get("LD_PRELOAD", ""))}
    if directory is not None:
        variables["AMEM_RUNTIME_DIR"] = directory
    if not base.get("NCCL_CUMEM_ENABLE", "").strip():
        variables["NCCL_CUMEM_ENABLE"] = "1"
    if scope is not None:
        variables["AMEM_SCOPE"] = scope_name(scope)
    if required:
        variables["AMEM_REQUIRED"] = "1"
    return variables


def launch(cmd: str | Sequence[str], *, group: str, scope: Scope | None = None, runtime_dir: str | None = None,
           required: bool = False, **options: Any) -> subprocess.Popen[Any]:
    """Starts a command as part of a group, as `amemctl run` does.

    Without a broker, the call logs a warning, and the command runs without amem.

    Args:
        cmd: As for subprocess.Popen.
        group: The group's name.
        scope: As for environment().
        runtime_dir: As for environment().
        required: Without a broker, the call raises and does not start the command.
        **options: The options of subprocess.Popen. The call adds the variables of environment() to `env`.

    Returns:
        The process. The caller must wait for it.

    Raises:
        UnavailableError: With `required`: there is no broker.
        OSError: The errors of subprocess.Popen.
        Error: The errors of environment().
    """
    base = options.pop("env", None)
    base = dict(os.environ if base is None else base)
    variables = environment(group, scope, runtime_dir=runtime_dir, required=required, base=base)
    directory = variables["AMEM_RUNTIME_DIR"]
    if not _endpoint.has_broker(directory):
        text = f"amemd does not run here: there is no socket {directory}/session.sock"
        if required:
            raise UnavailableError(
                f"{text}. Start it with `systemctl start amemd` or `amemd --runtime-dir {directory}`")
        _logger.warning("amem: %s. The command runs without amem", text)
    return subprocess.Popen(cmd, env={**base, **variables}, **options)


def swap(out: Groups, into: Groups, timeout: float | None = None, *, runtime_dir: str | None = None,
         on_progress: OnProgress | None = None, discard: Tags = None, guests: Guests | None = None, deep: bool = False,
         force: bool = False) -> None:
    """Pauses the group `out` and resumes the group `into`, over its own connection.

    Call it in a controller, or in a rank of another group. To swap more than once, use an amem.Broker. Requires grpcio.

    Args:
        out: The group to pause, or a list of groups.
        into: The group to resume, or a list of groups.
        timeout: Timeout in seconds for the pause, and for the resume. None: the broker's setting.
        runtime_dir: The broker's runtime directory. None: AMEM_RUNTIME_DIR, else the default.
        on_progress: As for Broker.swap(). This holds for the following arguments, too.
        discard: Tags of `out` whose bytes the pause drops.
        guests: What the pause does with memory of `out` that other groups have open.
        deep: The groups of `out` become deep after they have left.
        force: `discard` may have "heap".

    Raises:
        Error: The errors of Broker.swap().
    """
    connect: type[Broker] = _later.attribute("amem", "Broker", {"Broker": "amem.broker"})
    with connect(runtime_dir) as broker:
        broker.swap(out, into, timeout, on_progress, discard=discard, guests=guests, deep=deep, force=force)
