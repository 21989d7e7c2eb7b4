#!/usr/bin/env bash
# The first thing to run: builds amem and shows two groups of processes taking turns on the same two GPUs. See --help.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=deploy/watched.sh
source "$root/deploy/watched.sh"

usage() {
  cat <<'END'
Usage: deploy/try.sh [--sim | --turns] [--keep] [--no-deps] [--no-build]
Installs what is needed (deploy/deps.sh), builds into build/release, starts amemd and two groups of two ranks each, train
and rollout, on two GPUs, and swaps them three times. Each time every byte is verified. Uses real GPUs when there are two with
a driver and NCCL, else simulated ones. The last line says OK or FAILED, and so does the exit status.
  --sim        the simulated driver, even where there are GPUs
  --turns      instead three groups that get requests, on one simulated GPU on which one fits; amemd decides which of them runs
  --keep       keep the logs of a run that went well too
  --no-deps    do not look for packages: everything is installed
  --no-build   take build/release as it is
END
}

deps=1
build=1
demo=()
for argument in "$@"; do
  case $argument in
    --sim | --turns | --keep) demo+=("$argument") ;;
    --no-deps) deps=0 ;;
    --no-build) build=0 ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      usage >&2
      echo "FAILED: unknown argument: $argument" >&2
      exit 2
      ;;
  esac
done

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

cd "$root"
if [[ $deps == 1 ]]; then
  deploy/deps.sh || fail "not everything that amem needs is installed; the lines above say what is missing"
fi
if [[ $build == 1 ]]; then
  mkdir -p build
  if [[ -z ${CMAKE_CXX_COMPILER_LAUNCHER:-}${CCACHE_DISABLE:-} ]] && command -v ccache >/dev/null; then
    export CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_C_COMPILER_LAUNCHER=ccache
  fi
  # Only what the demonstration runs, on the GPUs that it will choose.
  read -r -a programs <<<"$(python3 -B deploy/try.py --build build/release --targets "${demo[@]}")"
  echo "try: building into build/release (minutes the first time)"
  watched build/try-configure.log cmake --preset release || fail "cmake could not configure the build, see above"
  watched build/try-build.log cmake --build --preset release --target amem_python "${programs[@]}" || fail "the build failed, see above"
fi
[[ -x build/release/bin/amemd ]] || fail "there is no build/release/bin/amemd: run without --no-build"
exec python3 deploy/try.py --build build/release "${demo[@]}"
