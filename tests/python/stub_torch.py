"""As much of torch as the package touches, with notes of what happens, in order with the shim's."""
import contextlib
import types


def make(note, available=True):
    """A module to be put in sys.modules. `device`, an attribute of its `cuda`, is the current one."""
    made = []

    class MemPool:
        def __init__(self):
            made.append(self)
            self.name = f"pool{len(made)}"
            self.entered = False
            note(f"make {self.name}")

    @contextlib.contextmanager
    def use_mem_pool(pool):
        assert not pool.entered, "two regions allocate into one pool"
        pool.entered = True
        note(f"use {pool.name}")
        try:
            yield
        finally:
            note(f"leave {pool.name}")
            pool.entered = False

    @contextlib.contextmanager
    def graph(cuda_graph, pool=None, stream=None, capture_error_mode="global"):
        note(f"graph {cuda_graph} {pool} {stream} {capture_error_mode}")
        yield
        note("graph ends")

    cuda = types.SimpleNamespace(is_available=lambda: available, current_device=lambda: cuda.device, device=0,
                                 MemPool=MemPool, use_mem_pool=use_mem_pool, graph=graph)
    torch = types.ModuleType("torch")
    torch.cuda = cuda
    torch.__version__ = "stub"
    torch.version = types.SimpleNamespace(hip=None)
    return torch
