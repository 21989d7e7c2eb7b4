#!/usr/bin/env python3
"""Plays a trainer: each step reads all layers and writes them again. docs/tutorial.md explains it.

It calls only enable() of amem, and does not know when it is paused. SIGTERM ends it.
"""
from __future__ import annotations

import signal
import sys
import threading

from memory import allocate

import amem

LAYERS, LAYER_BYTES = 10, 16 << 20
STEP_S = 0.2


def number(step: int, layer: int) -> int:
    """The number that a step writes into a layer."""
    return 1000 * step + layer + 1  # no zeros: these need no space in the pool


def train() -> str:
    """Trains until SIGTERM. Returns a summary."""
    end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: end.set())
    layers = [allocate(LAYER_BYTES) for _ in range(LAYERS)]
    step = 0
    while True:
        for at, layer in enumerate(layers):
            layer.fill(number(step, at))
        print(f"step {step}", flush=True)
        if end.wait(STEP_S):
            return f"{step + 1} steps, and each step found the bytes of the step before"
        for at, layer in enumerate(layers):
            if not layer.holds(number(step, at)):
                raise RuntimeError(f"layer {at} does not have the bytes of step {step}")
        step += 1


if __name__ == "__main__":
    amem.enable()
    try:
        print(train())
    except RuntimeError as error:
        sys.exit(f"trainer: {error}")
