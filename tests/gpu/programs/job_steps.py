#!/usr/bin/env python3
"""An ordinary training in PyTorch, which knows nothing of amem: so many steps, and then a hash of all weights.

    python3 job_steps.py --mib 8192 --steps 1000
    torchrun --standalone --nproc-per-node 2 job_steps.py --mib 8192 --steps 1000

Under torchrun the ranks average their gradients by NCCL. Prints a line for each tenth of the steps, and a JSON object at
the end. The same steps have the same hash.
"""

import argparse
import hashlib
import json
import os
import sys
import time

import torch
import torch.distributed as dist

MIB = 1 << 20
WIDTH = 4096
COPIES = 4  # of each weight: itself, its gradient, and Adam's two


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--mib", type=int, required=True, help="weights, gradients and the optimizer's state")
    parser.add_argument("--steps", type=int, required=True)
    options = parser.parse_args()
    world = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    torch.cuda.set_device(rank)
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.matmul.allow_tf32 = False
    if world > 1:
        dist.init_process_group("nccl")
    torch.manual_seed(1)
    layers = max(1, options.mib * MIB // (COPIES * 4 * WIDTH * WIDTH))
    weights = [torch.randn(WIDTH, WIDTH, device="cuda") / WIDTH ** 0.5 for _ in range(layers)]
    for each in weights:
        each.requires_grad_()
    optimizer = torch.optim.Adam(weights, lr=1e-4, foreach=True)
    data = torch.Generator(device="cuda").manual_seed(2 + rank)
    began = time.monotonic()
    for step in range(options.steps):
        hidden = torch.randn(64, WIDTH, device="cuda", generator=data)
        for each in weights:
            hidden = torch.tanh(hidden @ each)
        loss = hidden.square().mean()
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        if world > 1:
            for each in weights:
                dist.all_reduce(each.grad, op=dist.ReduceOp.AVG)
        optimizer.step()
        if rank == 0 and (step + 1) % max(1, options.steps // 10) == 0:
            print(f"step {step + 1}: loss {loss.item():.6e}", file=sys.stderr, flush=True)
    digest = hashlib.sha256()
    for each in weights:
        digest.update(each.detach().cpu().numpy().tobytes())
    if rank == 0:
        print(json.dumps({"program": "job_steps", "steps": options.steps, "hash": digest.hexdigest(),
                          "seconds": round(time.monotonic() - began, 1)}), flush=True)
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
