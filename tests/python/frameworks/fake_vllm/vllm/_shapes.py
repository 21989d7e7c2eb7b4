"""Which version of vLLM this is, of those whose sleep modes differ:

| since | what is new |
| --- | --- |
| 0.20 | the worker calls its allocator |
| 0.25 | backends |
| 0.27 | buffers are restored with the weights, not with any wake |
| 0.30 | enable_nccl_comm_suspend |
| 0.31 | discard and release_kv_cache_memory, tags at the executor, sleep_preserve_parameter_names; wake_up says whether all is awake |
| 0.32 | the tags runtime and cudagraph, sleep_mode_offload_cudagraph; a wake brings all tags but weights and kv_cache |
| 0.33 | --sleep-mode-backend, LoRA in the tag runtime, KV connectors that unregister the cache |
"""
import os

__version__ = os.environ.get("FAKE_VLLM_VERSION", "0.26.0+fake")
_NUMBERS = tuple(int(each) for each in __version__.split(".")[:2])


def since(minor: int) -> bool:
    return _NUMBERS >= (0, minor)
