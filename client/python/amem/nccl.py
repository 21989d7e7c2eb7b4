"""AMem's NCCL calls in the style of PyNCCL: a class over ctypes whose methods have the C names and check the result.

Programs that control AMem's patched NCCL through PyNCCL can use these calls instead. amem does not change NCCL. Any thread.
"""
from __future__ import annotations

import ctypes
from typing import Any

from amem.errors import Code, Error, FailedPreconditionError

_RESULTS = {  # ncclResult_t
    1: ("unhandled CUDA error", Code.INTERNAL),
    2: ("system error: no broker, a missed deadline, or too little memory. The shim's log has the reason", Code.UNKNOWN),
    3: ("internal error", Code.INTERNAL),
    4: ("invalid argument", Code.INVALID_ARGUMENT),
    5: ("invalid usage: the state is wrong, or the group was set too late. The shim's log has the reason",
        Code.FAILED_PRECONDITION),
}


class NCCLError(Error):
    """A call's result was not ncclSuccess.

    Attributes:
        call: The function's name.
        result: The ncclResult_t.
    """

    def __init__(self, call: str, result: int) -> None:
        """Makes the error of a call.

        Args:
            call: The function's name.
            result: The ncclResult_t.
        """
        text, code = _RESULTS.get(result, (f"result {result}", Code.UNKNOWN))
        super().__init__(f"{call}: {text}", code)
        self.call = call
        self.result = result

    def __reduce__(self) -> tuple[type[NCCLError], tuple[str, int]]:
        return NCCLError, (self.call, self.result)


class NCCLLibrary:
    """The five calls, of the shim in this process or of a library. Any thread.

    Each call raises NCCLError if its result is not ncclSuccess.
    """

    def __init__(self, so_file: str | None = None) -> None:
        """Finds the functions.

        Args:
            so_file: The path of a library. None: this process, which has the functions if the shim is preloaded.

        Raises:
            FailedPreconditionError: The process or the library lacks the functions.
            OSError: The library cannot be loaded.
        """
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
                f"there is no {name} in this process. Preload libamem_shim.so, for example with `amemctl run`"
            ) from None
        function.argtypes = arguments
        function.restype = ctypes.c_int
        return function

    def NCCL_CHECK(self, call: str, result: int) -> None:
        """Raises an error if a call has failed.

        Args:
            call: The function's name.
            result: Its ncclResult_t.

        Raises:
            NCCLError: The result is not ncclSuccess.
        """
        if result != 0:
            raise NCCLError(call, result)

    def _call(self, name: str, *arguments: Any) -> None:
        self.NCCL_CHECK(name, self._calls[name](*arguments))

    def ncclPause(self, comm: Any = None) -> None:
        """Pauses the whole group. Returns when every rank has called it and the group is paused.

        Args:
            comm: An ncclComm_t. Not used: the call always pauses the group of this process.

        Raises:
            NCCLError: The call failed. The shim's log has the reason.
        """
        self._call("ncclPause", comm)

    def ncclResume(self, comm: Any = None) -> None:
        """Resumes the whole group. Returns when every rank has called it and the group runs.

        Args:
            comm: As for ncclPause.

        Raises:
            NCCLError: The call failed. The shim's log has the reason.
        """
        self._call("ncclResume", comm)

    def ncclSetGroupID(self, group_id: int) -> None:
        """Sets the group by its number. Call it before the first brokered allocation.

        Args:
            group_id: The number.

        Raises:
            NCCLError: The process has already joined its group.
        """
        self._call("ncclSetGroupID", group_id)

    def ncclGetGroupID(self) -> int:
        """Returns the group's number.

        Returns:
            The number. -1: the group's name is not a number.

        Raises:
            NCCLError: The call failed.
        """
        number = ctypes.c_int(-1)
        self._call("ncclGetGroupID", ctypes.byref(number))
        return number.value

    def ncclMemStats(self) -> None:
        """Makes the shim write this rank's figures to its log. amem.stats() returns them to the program.

        Raises:
            NCCLError: The call failed.
        """
        self._call("ncclMemStats")
