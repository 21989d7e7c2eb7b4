#!/usr/bin/env python3
"""Trains a small network in JAX, and prints its loss. It does not know when it is paused.

    train.py [--steps 2000] [--width 4096]
"""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp

LAYERS, BATCH, RATE, DECAY = 4, 1024, 0.02, 0.9
EVERY = 20  # steps: a printed loss


def loss_of(weights: list[jax.Array], inputs: jax.Array, targets: jax.Array) -> jax.Array:
    """The mean square of the error."""
    for each in weights[:-1]:
        inputs = jnp.tanh(inputs @ each)
    return jnp.mean((inputs @ weights[-1] - targets) ** 2)


@jax.jit
def step(weights: list[jax.Array], momentum: list[jax.Array], inputs: jax.Array,
         targets: jax.Array) -> tuple[list[jax.Array], list[jax.Array], jax.Array]:
    """One step of gradient descent: (weights, momentum, loss)."""
    loss, gradients = jax.value_and_grad(loss_of)(weights, inputs, targets)
    momentum = [DECAY * old + gradient for old, gradient in zip(momentum, gradients)]
    return [old - RATE * change for old, change in zip(weights, momentum)], momentum, loss


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--width", type=int, default=4096, help="of each layer")
    options = parser.parse_args()
    keys = jax.random.split(jax.random.key(0), LAYERS + 2)
    square = (options.width, options.width)
    weights = [jax.random.normal(key, square) / options.width ** 0.5 for key in keys[2:]]
    momentum = [jnp.zeros_like(each) for each in weights]
    inputs, targets = (jax.random.normal(key, (BATCH, options.width)) for key in keys[:2])
    for number in range(1, options.steps + 1):
        weights, momentum, loss = step(weights, momentum, inputs, targets)
        if number % EVERY == 0:
            print(f"step {number}: loss {float(loss)!r}", flush=True)


if __name__ == "__main__":
    main()
