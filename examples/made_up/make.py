#!/usr/bin/env python3
"""Makes a small model with random weights, a tokenizer and prompts, for the examples. It downloads nothing.

    make.py FOLDER

    FOLDER/model            a Llama and its tokenizer of words w0, w1, ...
    FOLDER/prompts          train.jsonl: prompts for TRL and OpenRLHF
    FOLDER/verl.parquet     the same prompts for verl

The same options make the same bytes. Needs transformers, and pyarrow for verl.parquet.
"""

import argparse
import json
import pathlib
import sys

WORDS = 1000
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
# The words of all messages, without names of roles.
CHAT = "{% for message in messages %}{{ message['content'] }}{% if not loop.last %} {% endif %}{% endfor %}"


def prompts(count: int, length: int = 16) -> list[str]:
    return [" ".join(f"w{(31 * at + 7 * word) % WORDS}" for word in range(length)) for at in range(count)]


def save_prompts(folder: pathlib.Path, texts: list[str]) -> None:
    (folder / "prompts").mkdir(exist_ok=True)
    lines = [json.dumps({"prompt": text, "label": ""}) + "\n" for text in texts]
    (folder / "prompts" / "train.jsonl").write_text("".join(lines))


def save_parquet(folder: pathlib.Path, texts: list[str]) -> None:
    import pyarrow
    import pyarrow.parquet

    rows = [{"data_source": "made_up", "prompt": [{"role": "user", "content": text}], "ability": "made_up",
             "reward_model": {"style": "rule", "ground_truth": ""}, "extra_info": {"index": at}} for at, text in enumerate(texts)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), str(folder / "verl.parquet"))


def save_model(folder: pathlib.Path, width: int, layers: int) -> None:
    import tokenizers
    import torch
    import transformers

    vocabulary = {word: at for at, word in enumerate((*SPECIAL, *(f"w{at}" for at in range(WORDS))))}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", bos_token="<s>", eos_token="</s>",
                                                     unk_token="<unk>", model_max_length=512)
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(str(folder / "model"))
    transformers.set_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=1024, hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers, num_attention_heads=width // 64,
        num_key_value_heads=width // 64, max_position_embeddings=512, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        tie_word_embeddings=False)
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(str(folder / "model"))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--width", type=int, default=2048, help="of the model, a multiple of 64")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--prompts", type=int, default=96)
    parser.add_argument("--only-prompts", action="store_true", help="prompts/train.jsonl alone, which needs no package")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    texts = prompts(options.prompts)
    save_prompts(options.folder, texts)
    if not options.only_prompts:
        save_parquet(options.folder, texts)
        save_model(options.folder, options.width, options.layers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
