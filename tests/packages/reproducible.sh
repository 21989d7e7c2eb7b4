#!/usr/bin/env bash
# Shows that a release is the same bytes wherever it is built: makes that of HEAD twice, as different as one machine allows, and compares.
# Usage: tests/packages/reproducible.sh [--static] [COMMIT]. Takes two builds, and a Python package index; with --static, on Debian 12, also
# two builds of what deploy/static/lock names, each in a folder of its own. Exit status 0: no file differs.
set -euo pipefail

static=()
if [[ ${1:-} == --static ]]; then
  static=(--static)
  shift
fi
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
commit=$(git -C "$root" rev-parse --verify "${1:-HEAD}^{commit}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# A cache would give the second build what the first has made.
export CCACHE_DISABLE=1
unset CMAKE_C_COMPILER_LAUNCHER CMAKE_CXX_COMPILER_LAUNCHER AMEM_SIGN_KEY

mkdir "$work/a" "$work/a-folder-with-a-longer-name"
TMPDIR=$work/a AMEM_STATIC=$work/static "$root/deploy/release.sh" --candidate --no-image "${static[@]}" "$commit" "$work/first"
(
  umask 077
  TMPDIR=$work/a-folder-with-a-longer-name AMEM_STATIC=$work/other-static TZ=Pacific/Auckland \
    "$root/deploy/release.sh" --candidate --no-image "${static[@]}" "$commit" "$work/second"
)
if ! diff --recursive --brief "$work/first" "$work/second"; then
  trap - EXIT
  echo "FAILED: two builds of $commit differ: $work has both" >&2
  exit 1
fi
echo "OK: two builds of $commit in two folders give the same $(find "$work/first" -type f | wc -l) files"
