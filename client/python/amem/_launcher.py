"""A launcher's and controller's calls that need no connection kept: start ranks, swap two groups once."""
from __future__ import annotations

import logging
import os
import pathlib
import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from amem import _endpoint
from amem._arguments import Groups, Scope, group_name, scope_name
from amem.errors import InvalidArgumentError, NotFoundError, UnavailableError

_logger = logging.getLogger("amem")

_SHIM = "libamem_shim.so"


def shim_path() -> str:
    """Finds libamem_shim.so.

    Returns:
        Its path: where AMEM_SHIM says, else in this package.

    Raises:
        NotFoundError: There is none.
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
    """The shim under the name of torch_memory_saver's hook library, which the original has, too."""
    if not os.path.basename(entry).startswith("torch_memory_saver_hook_mode_"):
        return False
    try:
        return b"amem_shim_active" in pathlib.Path(entry).read_bytes()
    except OSError:
        return False


def with_shim(shim: str, before: str) -> str:
    """LD_PRELOAD with the shim first and the rest in its order.

    No second shim stays, which would do nothing, wherever it lies.
    """
    def is_second(entry: str) -> bool:
        return is_shim(entry) or os.path.realpath(entry) == os.path.realpath(shim)

    return ":".join([shim, *(each for each in preloads(before) if not is_second(each))])


def environment(group: str, scope: Scope | None = None, *, runtime_dir: str | None = None, required: bool = False,
                base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Makes the variables that make a process, and all it starts, ranks of a group.

    They are what `amemctl run` sets, and nothing else: for launchers that take variables, such as Ray's runtime_env. They
    have to be set before the process starts. NCCL_CUMEM_ENABLE=1 is among them, unless it is set already: some frameworks
    set 0 where it is not set, and then NCCL's buffers share no slabs, so a pause has more pieces to go through.

    Args:
        group: The group's name.
        scope: Which memory is brokered: "nccl", "regions" (also what is allocated in amem.region) or "heap" (all of
            PyTorch's); None: as AMEM_SCOPE of the environment has it.
        runtime_dir: The broker's; None: AMEM_RUNTIME_DIR, else the default.
        required: Without a broker, brokered allocations fail instead of going to the driver.
        base: The variables that they are added to, of which LD_PRELOAD matters: the shim goes before what is there, and
            nothing is lost. None: this process's environment. For Ray, whose env_vars replace a worker's variables, the
            env_vars so far: `env_vars.update(amem.environment("rollout", base=env_vars))`.

    Returns:
        The variables alone, without `base`.

    Raises:
        InvalidArgumentError: The group or the scope cannot be.
        NotFoundError: There is no shim.
    """
    # Absolute, because the process may change its directory before it connects.
    directory = os.path.abspath(runtime_dir or _endpoint.default_runtime_dir())
    return rank_variables(group, scope, directory, shim_path(), required, os.environ if base is None else base)


def rank_variables(group: str, scope: Scope | None, directory: str | None, shim: str, required: bool,
                   base: Mapping[str, str]) -> dict[str, str]:
    """environment() for a machine whose runtime directory and shim are known. No directory: the default there."""
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

    Without a broker the command runs as if amem were not there, after a warning in the log.

    Args:
        cmd: As for subprocess.Popen.
        group: The group's name.
        scope: As for environment().
        runtime_dir: As for environment().
        required: Without a broker the command is not started.
        **options: Those of subprocess.Popen; the variables of environment() are added to an `env` among them.

    Returns:
        The process, which the caller waits for.

    Raises:
        UnavailableError: There is no broker, and it is required.
        OSError: As subprocess.Popen.
        Error: As environment().
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


def swap(out: Groups, into: Groups, timeout: float | None = None, *, runtime_dir: str | None = None) -> None:
    """Pauses the group `out` and resumes the group `into`, over a connection of its own.

    For a controller, or for a rank of none of them. To swap more than once, keep an amem.Broker. Needs grpcio.

    Args:
        out: One group or several, which are paused.
        into: One group or several, which are resumed.
        timeout: Seconds for each of the two; None: as the broker is configured.
        runtime_dir: The broker's; None: AMEM_RUNTIME_DIR, else the default.

    Raises:
        Error: As Broker.swap().
    """
    from amem.broker import Broker

    with Broker(runtime_dir) as broker:
        broker.swap(out, into, timeout)
