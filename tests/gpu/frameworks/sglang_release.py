#!/usr/bin/env python3
"""SGLang's release_memory_occupation and resume_memory_occupation, with made-up weights and no network.

    sglang_release.py --way alone
    amemctl run --group engine0 --scope regions -- sglang_release.py --way amem

The last line is a report in JSON. Exit status: 0 all right, 1 a check failed.

    alone   without a memory saver: the tokens that there have to be
    amem    --enable-memory-saver, by the distribution torch_memory_saver that comes with amem
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time

for name, value in {"HF_HUB_OFFLINE": "1", "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK": "1", "FLASHINFER_DISABLE_VERSION_CHECK": "1",
                    "TOKENIZERS_PARALLELISM": "false"}.items():
    os.environ.setdefault(name, value)


def check(right, text):
    if not right:
        raise SystemExit(f"FAILED: {text}")


def make_model(options, folder):
    """A Llama whose every layer decides the tokens; SGLang's own made-up weights are so small that they would not."""
    import torch
    import transformers

    transformers.set_seed(3)
    torch.set_default_dtype(torch.bfloat16)
    config = transformers.LlamaConfig(
        vocab_size=32000, hidden_size=options.width, intermediate_size=4 * options.width, num_hidden_layers=options.layers,
        num_attention_heads=options.width // 128, num_key_value_heads=options.width // 128, max_position_embeddings=4096,
        bos_token_id=1, eos_token_id=2, tie_word_embeddings=False)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    torch.set_default_dtype(torch.float32)


def resident():
    """MiB of the group on the GPU, by tag."""
    import amem

    with amem.Broker() as broker:
        found = [group for group in broker.groups() if group.name == "engine0"]
    return {tag.tag: tag.resident_bytes >> 20 for group in found for tag in group.tags if tag.resident_bytes}


def serve(options, folder):
    import sglang

    ours = options.way == "amem"
    engine = sglang.Engine(
        model_path=folder, skip_tokenizer_init=True, tp_size=options.ranks, mem_fraction_static=options.share,
        attention_backend="triton", sampling_backend="pytorch", grammar_backend="none", random_seed=5, log_level="warning",
        disable_cuda_graph=not options.graphs, disable_radix_cache=True,
        enable_memory_saver=ours, enable_weights_cpu_backup=ours)
    prompts = [[(31 * at + 7 * word) % 31000 + 10 for word in range(32)] for at in range(8)]

    def tokens():
        # One by one: batches form by timing, and a batch of another size gives other sums.
        greedy = {"temperature": 0, "max_new_tokens": 32, "ignore_eos": True}
        return [engine.generate(input_ids=prompt, sampling_params=greedy)["output_ids"] for prompt in prompts]

    first = tokens()
    check(tokens() == first, "the engine gives other tokens without ever having slept")
    report = {"program": "sglang_release", "way": options.way, "sglang": sglang.__version__, "tokens": first, "release_ms": [],
              "resume_ms": [], "resident_mib": {}, "asleep_mib": {}}
    for turn in range(options.turns if ours else 0):
        report["resident_mib"] = resident()
        began = time.perf_counter()
        engine.release_memory_occupation()
        report["release_ms"].append(round((time.perf_counter() - began) * 1000, 1))
        report["asleep_mib"] = resident()
        check(not {"weights", "kv_cache", "nccl"} & set(report["asleep_mib"]), f"asleep it has {report['asleep_mib']}")
        began = time.perf_counter()
        if turn % 2:
            engine.resume_memory_occupation(tags=["weights"])
            engine.resume_memory_occupation(tags=["kv_cache", "cuda_graph"])
        else:
            engine.resume_memory_occupation()
        report["resume_ms"].append(round((time.perf_counter() - began) * 1000, 1))
        check(tokens() == first, f"other tokens after turn {turn}")
    if ours:
        report.update({name: statistics.median(report[f"{name}_ms"]) for name in ("release", "resume")})
    engine.shutdown()
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--way", choices=("alone", "amem"), required=True)
    parser.add_argument("--ranks", type=int, default=1, help="tensor parallel")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--share", type=float, default=0.3, help="of the GPU's memory, for weights and cache")
    parser.add_argument("--graphs", action="store_true", help="with CUDA graphs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="amem-sglang-") as folder:
        make_model(options, folder)
        print(json.dumps(serve(options, folder)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
