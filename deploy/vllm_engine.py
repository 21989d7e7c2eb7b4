#!/usr/bin/env python3
"""One vLLM engine that reads commands as lines of JSON from --commands and answers on --answers. vllm_turns.py starts it.

The model of --model dummy is a Llama of about 8 B parameters with made-up weights. It needs neither a network nor a tokenizer.
"""

import argparse
import json
import os
import pathlib
import sys
import tempfile
import time

# The same tokens each time, and nothing that reaches for a network.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_USE_DEEP_GEMM": "0", "VLLM_HOST_IP": "127.0.0.1", "TORCH_COMPILE_DISABLE": "1",
    # Multicast over NVLink is not what this is about, and not to be had on every node.
    "NCCL_NVLS_ENABLE": "0", "NVSHMEM_DISABLE_NVLS": "1", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0", "VLLM_ALLREDUCE_USE_FLASHINFER": "0",
}
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 32000,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu",
    "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
    "torch_dtype": "bfloat16", "dtype": "bfloat16"}
PROMPTS, MOST_NEW = 8, 64
GRAPHS = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 2, 4, 8]}  # vLLM's compilation config
RETRY_S = 0.005


def prompt(number):
    """Token ids: the model has no tokenizer."""
    return [1] + [3 + (7919 * (at + 1) * (number + 1)) % 31990 for at in range(40 + 23 * number)]


class Extension:
    """vLLM mixes it into its worker class."""

    def rescale(self):
        """Dummy weights are too small for layers to matter. All get a usual size."""
        import torch

        with torch.no_grad():
            for name, parameter in self.model_runner.model.named_parameters():
                if "norm" in name:
                    parameter.fill_(1)
                else:
                    parameter.mul_(1000 if "embed_tokens" in name else 1.7e3 / parameter.shape[-1] ** 0.5)
        torch.cuda.synchronize()

    def keep_weights(self):
        """For restore_weights(), which stands for loading a new checkpoint after sleep level 2."""
        self.kept_weights = {name: each.detach().cpu() for name, each in self.model_runner.model.named_parameters()}

    def restore_weights(self, but=""):
        """Restores all parameters, except the one with this name."""
        import torch

        with torch.no_grad():
            for name, each in self.model_runner.model.named_parameters():
                if name != but:
                    each.copy_(self.kept_weights[name])
        torch.cuda.synchronize()

    def cache_first(self, on):
        os.environ["AMEM_VLLM_CACHE_FIRST"] = "1" if on else "0"


class Engine:
    def __init__(self, options):
        dummy = options.model == "dummy"
        if dummy:
            self.folder = tempfile.TemporaryDirectory(prefix="amem-llama-")  # there as long as the engine is
            (pathlib.Path(self.folder.name) / "config.json").write_text(json.dumps(LLAMA))
        arguments = {
            "model": self.folder.name if dummy else options.model, "skip_tokenizer_init": True, "seed": 0,
            "tensor_parallel_size": options.tp, "gpu_memory_utilization": options.utilization, "max_model_len": 2048,
            "max_num_seqs": 16, "max_num_batched_tokens": 2048, "enable_prefix_caching": False,
            "generation_config": "vllm", "disable_log_stats": True, "worker_extension_cls": "vllm_engine.Extension",
            "compilation_config": GRAPHS}
        if dummy:
            arguments |= {"load_format": "dummy", "dtype": "bfloat16"}
        if options.tp > 1:
            arguments["distributed_executor_backend"] = "mp"
        if options.cache_gib:
            arguments["kv_cache_memory_bytes"] = int(options.cache_gib * (1 << 30))
        if options.sleep != "none":
            arguments["enable_sleep_mode"] = True
        if options.sleep == "amem":
            import amem

            amem.enable(require=True)
        arguments |= json.loads(options.more)
        from vllm import LLM, SamplingParams
        from vllm.inputs import TokensPrompt

        self.llm = LLM(**arguments)
        if dummy:
            self.llm.collective_rpc("rescale")
        self.sampling = SamplingParams
        self.prompts = [TokensPrompt(prompt_token_ids=prompt(number)) for number in range(PROMPTS)]

    def generate(self, prompts=PROMPTS, new=MOST_NEW):
        outputs = self.llm.generate(self.prompts[:prompts], self.sampling(
            temperature=0, max_tokens=new, detokenize=False, ignore_eos=True), use_tqdm=False)
        return [list(each.outputs[0].token_ids) for each in outputs]

    def sleep(self, level=1):
        self.llm.sleep(level=level)

    def wake(self, parts=(None,), within=0):
        """Wakes the tags of each part. If there is no space yet, it retries for `within` seconds."""
        end, tries = time.monotonic() + within, 0
        for part in parts:
            while True:
                tries += 1
                try:
                    self.llm.wake_up(part)
                    break
                except Exception:
                    if time.monotonic() > end:
                        raise
                    time.sleep(RETRY_S)
        return tries

    def cache_tokens(self):
        """For how many tokens the KV cache has space."""
        cache = self.llm.llm_engine.vllm_config.cache_config
        return cache.num_gpu_blocks * cache.block_size

    def call(self, method, arguments):
        return self.llm.collective_rpc(method, args=tuple(arguments))

    def stop(self):
        self.llm.llm_engine.engine_core.shutdown()


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--commands", type=int, required=True, help="file descriptor of the commands")
    parser.add_argument("--answers", type=int, required=True, help="file descriptor of the answers")
    parser.add_argument("--sleep", choices=["amem", "own", "none"], required=True)
    parser.add_argument("--model", default="dummy")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--utilization", type=float, default=0.9)
    parser.add_argument("--cache-gib", type=float, default=0, help="size of the KV cache; 0: all memory that the utilization leaves")
    parser.add_argument("--more", default="{}", help="JSON with more arguments of vLLM's LLM")
    return parser.parse_args(arguments)


def main():
    options = parse(sys.argv[1:])
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    here = str(pathlib.Path(__file__).resolve().parent)  # workers import the extension
    os.environ["PYTHONPATH"] = ":".join(filter(None, (os.environ.get("PYTHONPATH"), here)))
    commands, answers = os.fdopen(options.commands), os.fdopen(options.answers, "w", buffering=1)
    engine = None

    def obey(do, **arguments):
        nonlocal engine
        if do == "start":
            engine = Engine(options)
            return None
        return getattr(engine, do)(**arguments)

    for line in commands:
        began = time.monotonic()
        try:
            answer = {"ok": True, "answer": obey(**json.loads(line))}
        except Exception as error:  # noqa: BLE001: who told it decides what that means
            answer = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps({**answer, "ms": (time.monotonic() - began) * 1000}) + "\n")


if __name__ == "__main__":
    main()
