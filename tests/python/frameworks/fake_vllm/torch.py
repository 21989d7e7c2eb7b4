"""As much of torch as vLLM's worker and the plugin meet here: blocks that were freed are kept, and there are no tensors."""
import types

class MemPool:
    id = (0, 1)


cuda = types.SimpleNamespace(kept=[], is_available=lambda: False, MemPool=MemPool)


def empty_cache() -> None:
    while cuda.kept:
        cuda.kept.pop().free()


cuda.empty_cache = empty_cache
