#!/usr/bin/env bash
# Checks the chart and the examples against Helm and Kubernetes' schemas. Needs a Python package index.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)

usage() {
  cat <<'END'
Usage: deploy/kubernetes/check.sh [--render | --archive FILE]
Reads the chart as Helm does, with several sets of values, and what comes of it and the examples as Kubernetes does. The amemd of
build/release, where it is built, reads the configurations.
  --render         writes amem.yaml anew instead
  --archive FILE   reads this packed chart instead, and compares it with amem.yaml
END
}

archive=''
case ${1:-} in
  '' | --render) ;;
  --archive)
    [[ $# -eq 2 ]] || { usage >&2; exit 2; }
    archive=$2
    ;;
  -h | --help)
    usage
    exit 0
    ;;
  *)
    usage >&2
    exit 2
    ;;
esac
mkdir -p "$root/build"
work=$(mktemp -d "$root/build/kubernetes.XXXXXX")
trap 'rm -rf "$work"' EXIT
"$root/deploy/locks/install.sh" chart "$work/venv"
if [[ ${1:-} == --render ]]; then
  "$work/venv/bin/python" -B "$here/check.py" --render >"$work/amem.yaml" 2> >(grep -v 'found symbolic link in path' >&2)
  mv "$work/amem.yaml" "$here/amem.yaml"
  exit 0
fi
if [[ -n $archive ]]; then
  "$work/venv/bin/python" -B "$here/check.py" --archive "$archive"
  exit 0
fi
amemd=()
[[ ! -x $root/build/release/bin/amemd ]] || amemd=("$root/build/release/bin/amemd")
"$work/venv/bin/python" -B "$here/check.py" "${amemd[@]}" 2> >(grep -v 'found symbolic link in path' >&2)
