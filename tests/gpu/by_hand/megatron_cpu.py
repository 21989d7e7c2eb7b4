#!/usr/bin/env python3
"""megatron_rollout.py with the real megatron-core on a machine without a GPU, to see which tensors amem.megatron takes away.

    PYTHONPATH=MEGATRON:PREFIX/python megatron_cpu.py amem     # or another way of megatron_rollout.py

torch.cuda is stood in for as far as Megatron asks it. In the place of the shim a pause fills what it takes with other bytes, and a
resume brings the bytes back, or zeros. The losses, norms and tokens are those of the way `alone`, or a tensor is missing.
"""

import contextlib
import os
import pathlib
import runpy
import sys
from unittest import mock

os.environ.update({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29533",
                   "GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "ignore"})

import torch  # noqa: E402

PROGRAM = pathlib.Path(__file__).resolve().parents[1] / "frameworks" / "megatron_rollout.py"
SMALL = ["--device=cpu", "--layers=2", "--width=128", "--vocabulary=256", "--length=16", "--made=3", "--sequences=2", "--steps=4"]


def stand_in_for_cuda():
    tensor_type = torch.Tensor.type
    torch.Tensor.type = lambda self, *more: tensor_type(self, *more) if more else tensor_type(self).replace("torch.", "torch.cuda.")
    torch.Tensor.cuda = lambda self, *_, **__: self
    for name in ("tensor", "zeros", "empty", "ones"):
        setattr(torch, name, on_the_cpu(getattr(torch, name)))
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.synchronize = torch.cuda.empty_cache = lambda *_: None
    torch.cuda.mem_get_info = lambda *_: (0, 0)
    torch.cuda.FloatTensor = torch.FloatTensor
    torch.cuda.current_stream = torch.cuda.Stream = torch.cuda.Event = mock.MagicMock()
    torch.cuda.stream = lambda _: contextlib.nullcontext()


def on_the_cpu(make):
    def made(*arguments, **options):
        if str(options.get("device", "")).startswith("cuda"):
            options["device"] = "cpu"
        return make(*arguments, **options)
    return made


class Shim:
    """What has been moved, by tag: storages, whether their bytes are kept, and the bytes while they are paused."""

    def __init__(self):
        self.tags = {}

    def move(self, tensors, tag, keep=True):
        moved = 0
        for storage in (each.untyped_storage() for each in tensors):
            held = self.tags.setdefault(tag, {})
            if storage.nbytes() and storage.data_ptr() not in held:
                copy, size, other = storage.clone(), storage.nbytes(), torch.empty(storage.nbytes(), dtype=torch.uint8)
                storage.resize_(0)
                storage.resize_(size)
                storage.copy_(copy)
                del other  # so that it is not where it was
                held[storage.data_ptr()] = [storage, keep, None]
                moved += size
        print(f"{tag}: {moved} bytes moved", file=sys.stderr)
        return moved

    def each(self, tags):
        return [entry for tag in tags for entry in self.tags.get(tag, {}).values()]

    def pause(self, tags, _=None):
        for entry in self.each(tags):
            if entry[2] is None:
                entry[2] = entry[0].clone()
                entry[0].fill_(255)

    def resume(self, tags, _=None):
        for entry in self.each(tags):
            if entry[2] is not None:
                entry[0].copy_(entry[2]) if entry[1] else entry[0].fill_(0)
                entry[2] = None


def main():
    stand_in_for_cuda()
    from megatron.core.tensor_parallel import random

    import amem.megatron
    from amem import _enable
    from amem.frameworks import phases

    random.CudaRNGStatesTracker.fork = lambda *_: contextlib.nullcontext()
    shim = Shim()
    phases.pause, phases.resume, amem.megatron.move = shim.pause, shim.resume, shim.move
    amem.megatron.Megatron.check_process = lambda *_: None
    _enable._prepare = lambda state, *_: vars(state).update(scope="regions")
    sys.argv = [str(PROGRAM), "--way", *sys.argv[1:], *SMALL]
    sys.path.insert(0, str(PROGRAM.parent))
    runpy.run_path(str(PROGRAM), run_name="__main__")


if __name__ == "__main__":
    main()
