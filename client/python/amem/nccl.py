"""AMem's NCCL calls, in the manner of PyNCCL: a class over ctypes whose methods have the C names and check the result.

Programs that steer AMem's patched NCCL through PyNCCL can take the calls from here; NCCL itself is left as it is. Any
thread.
"""
from __future__ import annotations

import ctypes
from typing import Any

from amem.errors import Code, Error, FailedPreconditionError

_RESULTS = {  # ncclResult_t
    1: ("unhandled CUDA error", Code.INTERNAL),
    2: ("system error: no broker, a deadline, too little memory; the shim's log has the reason", Code.UNKNOWN),
    3: ("internal error", Code.INTERNAL),
    4: ("invalid argument", Code.INVALID_ARGUMENT),
    5: ("invalid usage: wrong state, or the group is set too late; the shim's log has the reason",
        Code.FAILED_PRECONDITION),
}


class NCCLError(Error):
    """A call's result was not ncclSuccess. `result` is the ncclResult_t."""

    def __init__(self, call: str, result: int) -> None:
        text, code = _RESULTS.get(result, (f"result {result}", Code.UNKNOWN))
        super().__init__(f"{call}: {text}", code)
        self.call = call
        self.result = result

    def __reduce__(self) -> tuple[type[NCCLError], tuple[str, int]]:
        return NCCLError, (self.call, self.result)


class NCCLLibrary:
    """The five calls, of the shim in this process or of the library that is named.

    FailedPreconditionError: it does not have them. NCCLError: a call failed.
    """

    def __init__(self, so_file: str | None = None) -> None:
        self._library = ctypes.CDLL(so_file)
        pointer, number = ctypes.c_void_p, ctypes.c_int
        self._calls = {
            "ncclPause": self._find("ncclPause", pointer),
            "ncclResume": self._find("ncclResume", pointer),
            "ncclSetGroupID": self._find("ncclSetGroupID", number),
            "ncclGetGroupID": self._find("ncclGetGroupID", ctypes.POINTER(number)),
            "ncclMemStats": self._find("ncclMemStats"),
        }

    def _find(self, name: str, *arguments: Any) -> Any:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise FailedPreconditionError(
                f"there is no {name} in this process: libamem_shim.so has to be preloaded, e.g. by `amemctl run`"
            ) from None
        function.argtypes = arguments
        function.restype = ctypes.c_int
        return function

    def NCCL_CHECK(self, call: str, result: int) -> None:
        if result != 0:
            raise NCCLError(call, result)

    def _call(self, name: str, *arguments: Any) -> None:
        self.NCCL_CHECK(name, self._calls[name](*arguments))

    def ncclPause(self, comm: Any = None) -> None:
        """Pauses the whole group, whatever `comm` is; returns when every rank of it has called and it is paused."""
        self._call("ncclPause", comm)

    def ncclResume(self, comm: Any = None) -> None:
        """Brings the group's memory back; as ncclPause."""
        self._call("ncclResume", comm)

    def ncclSetGroupID(self, group_id: int) -> None:
        """Names the group by a number; only before the first brokered allocation."""
        self._call("ncclSetGroupID", group_id)

    def ncclGetGroupID(self) -> int:
        """The group's number; -1 when its name is no number."""
        number = ctypes.c_int(-1)
        self._call("ncclGetGroupID", ctypes.byref(number))
        return number.value

    def ncclMemStats(self) -> None:
        """Has the shim write this rank's figures to its log; amem.stats() gives them to the program."""
        self._call("ncclMemStats")
