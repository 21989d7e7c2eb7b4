"""Some forty kinds of kernels, each used once with its result compared: what first_use.py does between allocations.

Most give on the GPU what they give on the CPU. They are small: they are about being loaded.
"""

import threading

import torch
from torch.nn import functional

DEVICE = "cuda"
ROWS, COLUMNS = 97, 131  # of what the kernels work on: no multiples of anything
TOLERANCE = 1e-3  # a convolution may use TF32
THREADS_MEET_S = 30


class Wrong(Exception):
    """A result is not what it should be; the text says which."""


def check_close(result, expected):
    result, expected = result.detach().cpu().double(), expected.detach().cpu().double()
    if result.shape != expected.shape:
        raise Wrong(f"shape {tuple(result.shape)}, {tuple(expected.shape)} is right")
    away = (result - expected).abs().max().item()
    if not away <= TOLERANCE * (1 + expected.abs().max().item()):  # not a number is wrong, too
        raise Wrong(f"{away:g} away from a result of up to {expected.abs().max().item():g}")


def index(x):
    return torch.arange(ROWS, device=x.device)


SAME_AS_ON_CPU = {
    "bfloat16": lambda x: (x.bfloat16() + 1).float(),
    "bincount": lambda x: torch.bincount((x.abs() * 10).int().flatten()).float(),
    "bmm": lambda x: torch.bmm(x[None].expand(3, ROWS, COLUMNS), x.t()[None].expand(3, COLUMNS, ROWS)),
    "cat": lambda x: torch.cat([x, x * 2], 1),
    "cdist": lambda x: torch.cdist(x, x[:9]),
    "conv2d": lambda x: functional.conv2d(x[None, None], x[None, None, :5, :5]),
    "cumsum": lambda x: x.cumsum(0),
    "embedding": lambda x: functional.embedding((x.abs() * 5).int().clamp(max=ROWS - 1), x),
    "erfinv": lambda x: torch.erfinv(x.tanh() * 0.9),
    "fft": lambda x: torch.fft.fft(x).real,
    "foreach": lambda x: torch._foreach_mul([x, x + 1], 3.0)[1],
    "gelu": functional.gelu,
    "glu": lambda x: functional.glu(x[:, :COLUMNS - 1]),
    "half": lambda x: (x.half() * 2).float(),
    "histc": lambda x: torch.histc(x, 20, -3, 3),
    "index_add": lambda x: torch.zeros_like(x).index_add_(0, index(x) % 13, x),
    "interpolate": lambda x: functional.interpolate(x[None, None], scale_factor=2, mode="bilinear"),
    "kthvalue": lambda x: x.kthvalue(3)[0],
    "layer_norm": lambda x: functional.layer_norm(x, (COLUMNS,)),
    "lerp": lambda x: x.lerp(x * 2, 0.3),
    "logsumexp": lambda x: x.logsumexp(1),
    "matmul": lambda x: x @ x.t(),
    "max_pool2d": lambda x: functional.max_pool2d(x[None, None], 3),
    "median": lambda x: x.median(1)[0],
    "nonzero": lambda x: torch.nonzero(x > 0).float(),
    "norm": lambda x: x.norm(dim=1),
    "pow": lambda x: x.abs().pow(1.7),
    "renorm": lambda x: x.renorm(2, 0, 1.0),
    "roll": lambda x: x.roll(3, 1),
    "scatter": lambda x: torch.zeros_like(x).scatter_(0, index(x)[:, None].expand(ROWS, COLUMNS), x),
    "softmax": lambda x: x.softmax(1),
    "sort": lambda x: torch.sort(x, dim=1)[0],
    "std": lambda x: x.std(0),
    "topk": lambda x: torch.topk(x, 7)[0],
    "triu": lambda x: x.triu(),
    "unique": lambda x: torch.unique((x * 10).int()).float(),
}


def same_as_on_cpu(work):
    def use():
        x = torch.randn(ROWS, COLUMNS)
        check_close(work(x.to(DEVICE)), work(x))
    return use


def optimizer(kind):
    """A step of a fused one is that of the plain one on the CPU."""
    def step(device, **how):
        weights = torch.ones((5, 5), device=device, requires_grad=True)
        weights.grad = torch.full_like(weights, 15)
        kind([weights], lr=0.1, **how).step()
        return weights
    return lambda: check_close(step(DEVICE, fused=True), step("cpu", foreach=False))


def sparse_in_threads():
    """cuSPARSE used for the first time by four threads at once, each on a stream of its own."""
    dense = torch.randn(64, 64)
    dense[torch.rand(64, 64) < 0.9] = 0
    right, on_gpu = dense @ dense, dense.to(DEVICE)
    sparse = on_gpu.to_sparse()
    together, failures = threading.Barrier(4, timeout=THREADS_MEET_S), []

    def multiply():
        try:
            stream = torch.cuda.Stream()
            together.wait()
            with torch.cuda.stream(stream):
                stream.wait_stream(torch.cuda.default_stream())
                for _ in range(20):
                    product = torch.sparse.mm(sparse, on_gpu)
                check_close(product, right)
        except Exception as error:  # noqa: BLE001: raised again by the thread that waits
            failures.append(error)
    threads = [threading.Thread(target=multiply) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def graph():
    """A captured and replayed CUDA graph."""
    x = torch.ones(1 << 16, device=DEVICE)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        result = x * 3 + 1
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        result = x * 3 + 1
    captured.replay()
    check_close(result, torch.full((1 << 16,), 4.0))


USES = {name: same_as_on_cpu(work) for name, work in SAME_AS_ON_CPU.items()}
USES |= {"sgd": optimizer(torch.optim.SGD), "adam": optimizer(torch.optim.Adam), "adamw": optimizer(torch.optim.AdamW),
         "sparse_in_threads": sparse_in_threads, "graph": graph}
