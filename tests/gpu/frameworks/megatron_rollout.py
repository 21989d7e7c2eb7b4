#!/usr/bin/env python3
"""A training of megatron-core whose memory leaves the GPU while a phase runs that stands for a rollout.

    torchrun --nproc-per-node 1 megatron_rollout.py --way alone
    amemctl run --group train --scope regions -- torchrun --nproc-per-node 1 megatron_rollout.py --way amem

The model continues prompts in that phase, and what it made is what it is trained on. So losses and tokens say whether all bytes
came back. The last line is a report in JSON. Exit status: 0 all right, 1 a check failed.

    alone     nothing leaves
    copies    Megatron's own offload_grad_buffers() and offload_to_cpu()
    amem      amem.megatron.offloaded()
    argument  --rl-amem-offload-during-rollout, which puts amem behind Megatron's own functions
    params    amem.megatron.offloaded(params=True, nccl=True): all of the trainer, so nothing is generated meanwhile
"""

import argparse
import contextlib
import json
import os
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic products
os.environ.setdefault("NO_VCS_VERSION", "1")
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.core import parallel_state, tensor_parallel  # noqa: E402
from megatron.core.distributed import (  # noqa: E402
    DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads)
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402

import amem  # noqa: E402
import amem.megatron  # noqa: E402

WAYS = ("alone", "copies", "amem", "argument", "params")


def check(right, text):
    if not right:
        raise SystemExit(f"FAILED: {text}")


def make_model(options):
    config = TransformerConfig(
        num_layers=options.layers, hidden_size=options.width, num_attention_heads=options.width // 128 or 1,
        ffn_hidden_size=4 * options.width, hidden_dropout=0.0, attention_dropout=0.0, bf16=True, params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16, gradient_accumulation_fusion=False, bias_dropout_fusion=False,
        masked_softmax_fusion=False, bias_activation_fusion=False, persist_layer_norm=False,
        use_cpu_initialization=options.device == "cpu", finalize_model_grads_func=finalize_model_grads)
    model = GPTModel(config, get_gpt_layer_local_spec(), vocab_size=options.vocabulary, max_sequence_length=options.length)
    model = model.to(options.device, torch.bfloat16)
    layout = DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True, overlap_grad_reduce=False)
    wrapped = DistributedDataParallel(config, layout, model)
    settings = OptimizerConfig(optimizer="adam", lr=1e-3, bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=True,
                               clip_grad=1.0)
    return wrapped, get_megatron_optimizer(settings, [wrapped])


class Trainer:
    def __init__(self, options):
        self.options = options
        torch.manual_seed(7)
        if options.device == "cuda":
            tensor_parallel.model_parallel_cuda_manual_seed(7)
        self.model, self.optimizer = make_model(options)
        self.positions = torch.arange(options.length, device=options.device).repeat(options.sequences, 1)
        self.mask = torch.tril(torch.ones(1, 1, options.length, options.length, device=options.device)) < 0.5

    @torch.no_grad()
    def generate(self, number):
        """Continues prompts of this turn by the likeliest tokens."""
        self.model.eval()
        seed = torch.Generator().manual_seed(1000 * number + dist.get_rank())
        tokens = torch.randint(self.options.vocabulary, (self.options.sequences, self.options.length), generator=seed)
        tokens = tokens.to(self.options.device)
        for at in range(self.options.length - self.options.made, self.options.length):
            scores = self.model.module(tokens, self.positions, self.mask)
            tokens[:, at] = scores[:, at - 1].float().argmax(-1)
        self.model.train()
        return tokens

    def step(self, tokens):
        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()
        losses = self.model(tokens, self.positions, self.mask, labels=tokens.roll(-1, 1))
        loss = losses.float().mean()
        loss.backward()
        finalize_model_grads([self.model])
        good, norm, _ = self.optimizer.step()
        check(good, "the optimizer skipped a step")
        return loss.item().hex(), float(norm).hex()

    def state_bytes(self):
        """Of what is to leave the GPU and to come back with its bytes, and of what comes back as zeros."""
        def size(tensors):
            return sum({each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}.values())
        kept = size(amem.megatron.optimizer_state(self.optimizer))
        if self.options.way == "params":
            kept += size(amem.megatron.parameters(self.model))
        return kept, size(amem.megatron.gradients(self.model))


class Rollouts:
    """The phase without the trainer's memory, in each of the ways, and what it took."""

    def __init__(self, trainer):
        self.trainer, self.way = trainer, trainer.options.way
        self.paused_ms, self.back_ms, self.freed = [], [], []
        if self.way == "argument":
            parser = amem.megatron.add_arguments(argparse.ArgumentParser())
            chosen = parser.parse_args(["--rl-amem-offload-during-rollout"])
            check(chosen.rl_offload_optimizer_during_inference, "the argument does not say what Megatron is to do")

    @contextlib.contextmanager
    def _paused(self):
        model, optimizer = self.trainer.model, self.trainer.optimizer
        if self.way == "alone":
            yield
        elif self.way in ("copies", "argument"):
            model.offload_grad_buffers()
            optimizer.offload_to_cpu()
            yield
            model.restore_grad_buffers()
            optimizer.restore_from_cpu()
        else:
            everything = self.way == "params"
            with amem.megatron.offloaded(model, optimizer, params=everything, nccl=everything, late=not everything):
                yield

    @contextlib.contextmanager
    def phase(self):
        torch.cuda.synchronize()
        before, begin = torch.cuda.mem_get_info()[0], time.perf_counter()
        paused = self._paused()
        with paused:
            torch.cuda.synchronize()
            self.paused_ms.append((time.perf_counter() - begin) * 1000)
            self.freed.append(torch.cuda.mem_get_info()[0] - before)
            yield
            torch.cuda.synchronize()
            begin = time.perf_counter()
        if hasattr(self.trainer.optimizer, "_amem_state"):  # its calls would wait; here it is to be timed
            self.trainer.optimizer._amem_state.here()
        torch.cuda.synchronize()
        self.back_ms.append((time.perf_counter() - begin) * 1000)


def train(options):
    trainer = Trainer(options)
    rollouts = Rollouts(trainer)
    losses, norms, sums = [], [], []
    for number in range(options.steps):
        with rollouts.phase():
            tokens = trainer.generate(number) if options.way != "params" else None
        if tokens is None:
            tokens = trainer.generate(number)
        sums.append(int(tokens.sum()))
        loss, norm = trainer.step(tokens)
        losses.append(loss)
        norms.append(norm)
    kept, dropped = trainer.state_bytes()
    report = {"program": "megatron_rollout", "way": options.way, "losses": losses, "norms": norms, "tokens": sums,
              "kept_bytes": kept, "dropped_bytes": dropped, "freed_bytes": rollouts.freed,
              "paused_ms": [round(each, 1) for each in rollouts.paused_ms], "back_ms": [round(each, 1) for each in rollouts.back_ms]}
    if options.way in ("amem", "argument", "params") and options.device == "cuda":
        # The first phases find no moments yet.
        check(min(rollouts.freed[2:], default=kept) >= 0.99 * (kept + dropped), f"of {kept + dropped} bytes left {rollouts.freed}")
    if dist.get_rank() == 0:
        print(json.dumps(report), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--way", choices=WAYS, required=True)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--length", type=int, default=256, help="tokens of a sequence")
    parser.add_argument("--made", type=int, default=16, help="of these, made by the model")
    parser.add_argument("--sequences", type=int, default=8, help="in a rank's batch")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.use_deterministic_algorithms(True)
    if options.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
    parallel_state.initialize_model_parallel()
    train(options)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
