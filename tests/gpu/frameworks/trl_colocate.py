#!/usr/bin/env python3
"""TRL's GRPO with vLLM in the trainer's process (colocate), whose sleep mode is vLLM's own or amem's.

    VLLM_USE_FLASHINFER_SAMPLER=0 trl_colocate.py --way vllm
    AMEM_ON=require amemctl run --group trl --scope regions -- trl_colocate.py --way amem

The model and its tokenizer are made here, from a seed. The reward is a rule about the tokens. The last line is a report in JSON.
Exit status: 0 all right, 1 otherwise.

    vllm    vLLM's own sleep mode
    amem    amem's
    awake   nothing sleeps
    cpu     without vLLM, on a machine without a GPU
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time

for name, value in {"HF_HUB_OFFLINE": "1", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": "29517", "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "TOKENIZERS_PARALLELISM": "false",
                    "VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_NO_USAGE_STATS": "1"}.items():
    os.environ.setdefault(name, value)

import tokenizers  # noqa: E402
import transformers  # noqa: E402
from datasets import Dataset  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

WORDS = 1000


def make_model(options, folder):
    """A Llama with made-up weights, and a tokenizer of words w0, w1, ..., as a folder that both sides load."""
    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3, **{f"w{at}": 4 + at for at in range(WORDS)}}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>",
                                         unk_token="<unk>").save_pretrained(folder)
    transformers.set_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=1024, hidden_size=options.width, intermediate_size=4 * options.width, num_hidden_layers=options.layers,
        num_attention_heads=options.width // 64, num_key_value_heads=options.width // 64, max_position_embeddings=512,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


def reward(completion_ids, **_):
    """The share of even tokens: a rule that the model can learn, and that every token decides."""
    return [sum(token % 2 == 0 for token in each) / max(1, len(each)) for each in completion_ids]


class Switches:
    """How long the calls of vLLM's sleep mode take."""

    def __init__(self, llm):
        self.ms = []
        for name in ("sleep", "wake_up"):
            setattr(llm, name, self.timed(getattr(llm, name)))

    def timed(self, call):
        def switch(*arguments, **options):
            began = time.perf_counter()
            try:
                return call(*arguments, **options)
            finally:
                self.ms.append((time.perf_counter() - began) * 1000)
        return switch


def train(options, folder):
    on_gpu = options.way != "cpu"
    settings = GRPOConfig(
        output_dir=f"{folder}/out", max_steps=options.steps, per_device_train_batch_size=16, num_generations=8,
        max_completion_length=options.made, learning_rate=1e-5, logging_steps=1, save_strategy="no", report_to=[], seed=11,
        bf16=on_gpu, use_cpu=not on_gpu, full_determinism=False, use_vllm=on_gpu, vllm_mode="colocate",
        vllm_enable_sleep_mode=options.way in ("vllm", "amem"), vllm_gpu_memory_utilization=options.share,
        vllm_max_model_length=256, model_init_kwargs={"dtype": "bfloat16" if on_gpu else "float32"})
    prompts = [" ".join(f"w{(31 * at + 7 * word) % WORDS}" for word in range(16)) for at in range(16 * options.steps)]
    trainer = GRPOTrainer(model=f"{folder}/model", args=settings, reward_funcs=reward,
                          train_dataset=Dataset.from_dict({"prompt": prompts}))
    switches = Switches(trainer.vllm_generation.llm) if on_gpu else None
    began = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - began
    logged = [each for each in trainer.state.log_history if "loss" in each]
    return {"program": "trl_colocate", "way": options.way, "losses": [each["loss"] for each in logged],
            "rewards": [each["reward"] for each in logged], "norms": [each["grad_norm"] for each in logged],
            "step_ms": round(1000 * seconds / options.steps, 1),
            "switch_ms": round(sum(switches.ms) / options.steps, 1) if switches else 0,
            "switch_median_ms": round(statistics.median(switches.ms), 1) if switches and switches.ms else 0}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--way", choices=("vllm", "amem", "awake", "cpu"), required=True)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--made", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--share", type=float, default=0.3, help="of the GPU's memory, for vLLM")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="amem-trl-") as folder:
        make_model(options, f"{folder}/model")
        print(json.dumps(train(options, folder)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
