"""The reward of the examples: the share of words with an even number. A model can learn this rule, and every token decides it."""

from __future__ import annotations

from typing import Any


def even_share(text: str) -> float:
    numbers = [int(word[1:]) for word in text.split() if word[0] == "w" and word[1:].isdigit()]
    return sum(number % 2 == 0 for number in numbers) / max(1, len(numbers))


def for_trl(completions: list[str], **_: Any) -> list[float]:
    """TRL: --reward_funcs rewards.for_trl"""
    return [even_share(each) for each in completions]


def for_verl(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any) -> float:
    """verl: reward.custom_reward_function.path=rewards.py reward.custom_reward_function.name=for_verl"""
    return even_share(solution_str)


def reward_func(queries: list[str], prompts: list[str], labels: list[str]) -> dict[str, Any]:
    """OpenRLHF: --reward.remote_url rewards.py"""
    import torch

    shares = torch.tensor([even_share(query[len(prompt):]) for query, prompt in zip(queries, prompts)])
    return {"rewards": shares, "scores": shares, "extra_logs": {}}
