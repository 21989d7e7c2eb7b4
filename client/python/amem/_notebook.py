"""%amem: a notebook pauses and resumes its kernel's group.

IPython loads this by `%load_ext amem`, and only then is IPython there: this module imports nothing of it before. Whoever pauses
by the magic forgets to resume, and the next cell would wait at the gate without end. So a cell that may need the GPU resumes
first. The kernel's main thread.
"""
from __future__ import annotations

import importlib
import re
import shlex
import sys
from typing import TYPE_CHECKING, Any

from amem import _later, _rank, _shim
from amem.errors import Error

if TYPE_CHECKING:
    from amem.messages import GroupInfo

_USAGE = "%amem takes pause [--tag TAG]…, resume, status, or nothing, which is status"
# A line that needs no GPU in this process: the magic, a command of the shell, a comment, or nothing.
_NEEDS_NO_GPU = re.compile(r"\s*(?:%amem\b|!|#|$)")


class Magic:
    """%amem of one kernel."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._paused: list[str] | None = None  # what the magic has paused: tags, or [] for everything. None: nothing
        self._rejects = ""  # why the cell that begins must not run

    def load(self) -> None:
        self._shell.register_magic_function(self.amem, magic_kind="line", magic_name="amem")
        self._shell.events.register("pre_run_cell", self.before_cell)
        self._shell.ast_transformers.append(self)

    def unload(self) -> None:
        self._shell.events.unregister("pre_run_cell", self.before_cell)
        self._shell.ast_transformers.remove(self)
        self._shell.magics_manager.magics["line"].pop("amem", None)

    def amem(self, line: str) -> None:
        """Pauses and resumes this kernel's group: %amem pause [--tag TAG]…, %amem resume, %amem status."""
        try:
            command, tags = _parsed(line)
            if command == "pause":
                self._pause(tags)
            elif command == "resume":
                self._resume(self._paused or [])
            print(_status())
        except Error as error:
            print(f"amem: {error.text}", file=sys.stderr)
        except ValueError as error:
            print(f"amem: {error}", file=sys.stderr)

    def before_cell(self, info: Any) -> None:
        """Of IPython's event: resumes before a cell that may need the GPU."""
        self._rejects = ""
        if self._paused is None or all(map(_NEEDS_NO_GPU.match, info.raw_cell.splitlines())):
            return
        try:
            if self._paused or _shim.is_shut():  # else somebody else has resumed it
                self._resume(self._paused)
                print("amem: this cell has resumed the group that %amem pause had paused. " + _status())
            self._paused = None
        except Error as error:
            stage = _hand_to_stage()
            if stage:
                self._paused = None
                print(f"amem: the group resumes at its turn in stage {stage}. GPU work of this cell waits for it")
            else:
                self._rejects = f"amem: the cell did not run, because the group is still paused: {error.text}"

    def visit(self, node: Any) -> Any:
        """Of IPython's transformers of a cell: the only way to keep the cell from running."""
        if self._rejects:
            raise _rejection(self._rejects)
        return node

    def _pause(self, tags: list[str]) -> None:
        _rank.pause(tags or None)
        if self._paused is None:
            self._paused = tags
        else:
            self._paused = [*self._paused, *tags] if self._paused and tags else []

    def _resume(self, tags: list[str]) -> None:
        _rank.resume(tags or None)
        self._paused = None


def _parsed(line: str) -> tuple[str, list[str]]:
    """The command, and its tags. ValueError: there is no such command."""
    try:
        command, *rest = shlex.split(line.replace("--tag=", "--tag ")) or ["status"]
    except ValueError:  # a quotation mark without its other one
        raise ValueError(_USAGE) from None
    tags = rest[1::2]
    if command not in ("pause", "resume", "status") or rest[::2] != ["--tag"] * len(tags) or rest and command != "pause":
        raise ValueError(_USAGE)
    return command, tags


def _size(size: int) -> str:
    amount, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1023.5 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{amount:.3g} {units[0]}" if amount < 999.5 else f"{amount:.0f} {units[0]}"


def _status() -> str:
    stats = _rank.stats()
    if not stats.group:
        return "amem is off in this kernel"
    on_gpu = sum(each.resident_bytes for each in stats.brokered) + sum(each.bytes for each in stats.unbrokered if not each.host)
    paused = sum(each.paused_bytes for each in stats.brokered)
    state = "is paused" if _shim.is_shut() else "runs"
    return f"group {stats.group} {state}: {_size(on_gpu)} on the GPU, {_size(paused)} paused"


def _hand_to_stage() -> str:
    """Lets the stage of this group, which lacks space, resume it at its turn.

    A stage does so after a broker's resume that lacked space, but not after a rank's.

    Returns:
        The stage's name. Empty: there is none, or nobody can tell.
    """
    if not _later.has_grpc():
        return ""
    from amem.broker import Broker

    def own() -> GroupInfo:
        [group] = [each for each in broker.groups() if re.split("[:@]", each.name)[0] == _rank.group()]
        return group

    try:
        with Broker() as broker:
            if not own().stage:
                return ""
            try:
                broker.resume(own().address)
            except Error:
                return own().stage if own().paused_by_stage else ""
            return own().stage
    except Exception:  # of gRPC, too: the cell must learn why its group is paused, not this
        return ""


def _rejection(text: str) -> Exception:
    """What a transformer raises so that the cell does not run. It is shown as one line."""
    rejection: Exception = importlib.import_module("IPython.core.error").InputRejected(text)
    setattr(rejection, "_render_traceback_", lambda: [text])
    return rejection


_loaded: dict[int, Magic] = {}  # by the shell


def load(shell: Any) -> None:
    if id(shell) not in _loaded:
        _loaded[id(shell)] = Magic(shell)
        _loaded[id(shell)].load()


def unload(shell: Any) -> None:
    magic = _loaded.pop(id(shell), None)
    if magic is not None:
        magic.unload()
