"""The cases about memory of stream-ordered pools: cudaMallocAsync, and about the allocators of stacks."""

from harness import Failure
from registry import case

MOST_MORE_US = 0.5  # for each call, than the driver's


@case(200)
def pool_speed(bench):
    """cuMemAllocAsync and cuMemFreeAsync that use memory again, of 2 MiB and 64 MiB, take at most 0.5 us more than without amem."""
    def run(**how):
        return bench.python_script("pool_memory.py", "speed", torch=False, **how).wait(60).report()["sizes_mib"]
    alone, amem = run(shim=False), run(scope="heap", env={"AMEM_REQUIRED": "1"})
    more = {(mib, call): amem[mib][call] - spent for mib, calls in alone.items() for call, spent in calls.items()}
    slow = {each: round(extra, 2) for each, extra in more.items() if extra > MOST_MORE_US}
    if slow and bench.time_limits:
        raise Failure(f"us more than the driver's for (MiB, call): {slow}")
    return f"us for each call without amem {alone}, with it {amem}"


@case(240)
def pool_pauses(bench):
    """Pools' memory leaves with each pause and is right on several streams, behind events and beside captures; errors are the driver's."""
    report = bench.python_script("pool_memory.py", "pauses", "--cycles", bench.few, torch=False, scope="heap").wait(220).report()
    return f"{report['cycles']} pauses beside {report['runs']} runs; memory of graphs stays: {report['stays']}"


def stack(bench, name, torch=False, env=None):
    """Runs one with one of its allocators."""
    report = bench.python_script("stacks.py", name, torch=torch, scope="heap", env=env).wait(180).report()
    return f"{name} {report['version']}, {report['left_mib']} MiB left"


def jax(bench, allocator):
    return stack(bench, "jax", env={"XLA_PYTHON_CLIENT_ALLOCATOR": allocator, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"})


@case(200)
def pool_torch(bench):
    """PyTorch with backend:cudaMallocAsync computes the same beside pauses, and none of its memory stays."""
    text = stack(bench, "torch", torch=True, env={"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"})
    if "cudaMallocAsync" not in text:
        raise Failure(f"PyTorch has another allocator: {text}")
    return text


@case(200)
def pool_jax(bench):
    """JAX with cuda_async computes the same beside pauses, and none of its memory stays."""
    return jax(bench, "cuda_async")


@case(200)
def pool_cupy(bench):
    """CuPy's MemoryAsyncPool computes the same beside pauses, and none of its memory stays."""
    return stack(bench, "cupy")


@case(200)
def pool_rmm(bench):
    """RMM's CudaAsyncMemoryResource, under CuPy, computes the same beside pauses, and none of its memory stays."""
    return stack(bench, "rmm")


@case(500)
def stack_jax(bench):
    """JAX with its other allocators, bfc, platform and vmm, computes the same beside pauses, and none of its memory stays."""
    return "; ".join(jax(bench, allocator) for allocator in ("bfc", "platform", "vmm"))


@case(200)
def stack_numba(bench):
    """Kernels of Numba compute the same beside pauses, and none of its memory stays."""
    return stack(bench, "numba")


@case(200)
def stack_triton(bench):
    """Kernels of Triton compute the same beside pauses, and none of its memory stays."""
    return stack(bench, "triton", torch=True)


@case(200)
def stack_aimdo(bench):
    """Weights that ComfyUI's aimdo maps on demand compute the same beside pauses, and none of them stay."""
    return stack(bench, "aimdo", torch=True)
