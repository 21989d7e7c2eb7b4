"""Python programs that end while their group is paused. The shim is real, on the simulated driver."""
import os
import signal
import sys
import textwrap
import time
from collections.abc import Mapping

import pytest
from sim_node import SERVICE_THREAD, Child, Node, eventually, patience

PAUSE = 34  # the system call, on x86-64

# With a block of device memory that is freed when the interpreter takes the module down.
BEGIN = """
import ctypes, os, sys, threading, time
cuda = ctypes.CDLL("libcuda.so.1")

def must(result):
    assert result == 0, result

def say(*words, write=os.write):
    write(1, (" ".join(map(str, words)) + "\\n").encode())

must(cuda.cuInit(0))
context = ctypes.c_void_p()
must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
must(cuda.cuCtxSetCurrent(context))

class Block:
    def __init__(self):
        self.address = ctypes.c_uint64()
        must(cuda.cuMemAlloc_v2(ctypes.byref(self.address), 1 << 20))

    def set(self):
        cuda.cuCtxSetCurrent(context)
        return cuda.cuMemsetD8_v2(self.address, 7, 1 << 20)

    def __del__(self, free=cuda.cuMemFree_v2, say=say):
        say("free", free(self.address))

block = Block()
say("ready")
sys.stdin.readline()
"""


class Program(Child):
    """Runs the script from when its line is sent, which is when its group is paused."""

    def __init__(self, node: Node, script: str, env: Mapping[str, str] | None = None) -> None:
        shim = os.path.join(node.build.directory, "lib", "libamem_shim.so")
        environment = node.env({"LD_PRELOAD": shim, "AMEM_GROUP": "train", "AMEM_SCOPE": "heap", "AMEM_LOG": "debug",
                                "PYTHONPATH": os.path.join(node.build.directory, "python"), **(env or {})})
        super().__init__("program", [sys.executable, "-c", BEGIN + textwrap.dedent(script)], environment,
                         node.log_file("program"))
        self.node = node
        node.adopt(self)
        assert self.line() == "ready"

    def pause(self) -> None:
        self.node.ctl("pause", "train")
        self.send("")

    def ends(self, status: int) -> None:
        """Within a second from now, and everybody is told."""
        began = time.monotonic()
        assert self.wait(10) == status
        took = time.monotonic() - began
        assert took < patience(1), f"its end took {took:.1f} s"
        eventually(lambda: self.node.ctl.group("train") is None, what="the group is gone")
        assert self.node.ctl.devices()[0]["used_bytes"] == 0
        assert self.node.ctl.status()["pool"]["used_bytes"] == 0


@pytest.mark.parametrize("script, status", [
    ("", 0),
    ("sys.exit(3)", 3),
    ("raise RuntimeError('no more')", 1),
])
def test_memory_of_the_module_is_freed_when_python_ends(node: Node, script: str, status: int) -> None:
    program = Program(node, script)
    program.pause()
    program.ends(status)
    assert program.output("out").splitlines()[-1] == "free 0", "a free succeeds though the group is paused"


def test_atexit_functions_of_who_imports_amem(node: Node) -> None:
    """Of whoever does not, they wait for the resume."""
    program = Program(node, """
        import amem, atexit
        atexit.register(lambda: say("set", block.set()))
    """)
    program.pause()
    program.ends(0)
    assert "set 4" in program.output("out").splitlines()


def test_a_daemon_thread_at_the_gate_stays_there(node: Node) -> None:
    """Python would end the thread wherever it comes back, which C++ in between does not survive."""
    program = Program(node, """
        def work():
            say("goes")
            say("came back", block.set())

        threading.Thread(target=work, daemon=True).start()
        sys.stdin.readline()
    """)
    program.pause()
    program.wait_for("goes", stream="out")
    program.send("")
    program.ends(0)
    assert "came back" not in program.output("out")


def test_a_daemon_thread_that_waits_for_memory_of_a_tag_stays_there(node: Node) -> None:
    """Likewise, in a group that runs. The process is held up in exit(), behind the shim."""
    program = Program(node, """
        import amem
        libc = ctypes.CDLL(None)
        libc.__cxa_atexit(ctypes.cast(libc.pause, ctypes.c_void_p), None, None)
        with amem.region("kv"):
            paused = Block()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(paused))
        say("made")
        sys.stdin.readline()

        def work():
            say(threading.get_native_id())
            paused.set()

        threading.Thread(target=work, daemon=True).start()
        sys.stdin.readline()
    """)
    program.send("")
    assert program.wait_for("made", stream="out")
    node.ctl("pause", "train", "--tag", "kv")
    program.send("")
    thread = int(program.line())
    program.wait_for("The call waits for its resume")
    program.send("")
    eventually(lambda: program.system_call() == PAUSE, what="exit() is held up")

    def looks() -> int:
        """How often it has begun to wait."""
        with open(f"/proc/{program.pid}/task/{thread}/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("voluntary_ctxt_switches:"))

    before = looks()
    eventually(lambda: looks() >= before + 3, what="it goes on waiting")
    program.kill()


def test_reading_saved_bytes_does_not_hold_up_the_end(node: Node) -> None:
    """The thread that would read them is busy with a pause."""
    program = Program(node, """
        import amem, atexit
        with amem.region("kv"):
            paused = Block()
        with amem.region("weights"):
            other = Block()
        say("made")
        sys.stdin.readline()

        def read():
            try:
                amem._shim.call("amem_shim_backup_read", paused.address.value, 8, ctypes.create_string_buffer(8))
            except amem.Error as error:
                say(error)

        read()
        sys.stdin.readline()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(paused))
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(other))
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(block))
        atexit.register(read)
    """)
    program.send("")
    assert program.wait_for("made", stream="out")
    node.ctl("pause", "train", "--tag", "kv")
    program.send("")
    program.faults("releaseBegins:1:hold")
    pause = node.ctl.start("pause", "train", "--tag", "weights")
    pause.wait_phase("release")
    program.held(SERVICE_THREAD)
    program.send("")
    assert program.wait(20) == 0
    assert "the process is ending" in program.output("out")
    pause.finish()


def test_other_threads_are_waited_for(node: Node) -> None:
    """By Python, before it ends: their work is the program's, and a pause does not take it from them."""
    program = Program(node, """
        def work():
            say("set", block.set())

        threading.Thread(target=work).start()
        say("main ends")
    """)
    program.pause()
    program.wait_for("main ends", stream="out")
    node.ctl("resume", "train")
    assert program.wait_for("set", stream="out") == "set 0"
    assert program.wait_for("free", stream="out") == "free 0"
    program.ends(0)


def test_they_are_left_behind_when_python_is_interrupted(node: Node) -> None:
    program = Program(node, """
        threading.Thread(target=block.set).start()
        say("main ends")
    """)
    program.pause()
    program.wait_for("main ends", stream="out")

    def interrupted() -> bool:  # again: the first may come before Python waits
        program.signal(signal.SIGINT)
        return not program.alive()

    eventually(interrupted, what="its end")
    program.ends(program.wait())


def test_an_interrupt_is_seen_when_the_call_comes_back(node: Node) -> None:
    program = Program(node, """
        try:
            say("goes")
            block.set()
            say("came back")
        except KeyboardInterrupt:
            say("interrupted")
    """)
    program.pause()
    program.wait_for("goes", stream="out")
    eventually(program.sleeps, what="it waits at the gate")
    program.signal(signal.SIGINT)
    node.ctl("resume", "train")
    assert program.wait_for("", stream="out") == "interrupted"
    program.ends(0)


def test_a_termination_ends_it_at_once(node: Node) -> None:
    program = Program(node, "block.set()")
    program.pause()
    program.signal(signal.SIGTERM)
    program.ends(-signal.SIGTERM)


def test_calls_that_do_not_wait_let_handlers_run(node: Node) -> None:
    program = Program(node, """
        try:
            say("goes")
            while True:
                assert block.set() in (0, 600)
        except KeyboardInterrupt:
            say("interrupted")
    """, env={"AMEM_GATE": "error"})
    program.pause()
    program.wait_for("goes", stream="out")
    program.signal(signal.SIGINT)
    assert program.wait_for("", stream="out") == "interrupted"
    program.ends(0)
