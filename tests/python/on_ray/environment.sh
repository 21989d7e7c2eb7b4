#!/usr/bin/env bash
# Makes build/ray, a virtual environment with the newest Ray and what its tests need; with --controllers also verl, OpenRLHF and what these
# need of Python packages on a machine without GPUs. Needs a Python package index.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."

/usr/bin/python3 -m venv build/ray
pip=(build/ray/bin/python -m pip --disable-pip-version-check install --quiet --upgrade)
"${pip[@]}" "ray[default]" pytest cryptography grpcio
[[ ${1:-} == --controllers ]] || exit 0
"${pip[@]}" torch transformers peft codetiming hydra-core tensordict torchdata datasets
"${pip[@]}" --no-deps verl openrlhf deepspeed
"${pip[@]}" einops hjson jsonlines loralib optimum optree py-cpuinfo pylatexenc torchmetrics
"${pip[@]}" orjson pillow pyzmq msgspec uvicorn fastapi cachetools
