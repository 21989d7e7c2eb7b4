#!/usr/bin/env bash
# The checks that build nothing: scripts, folders and includes, pages, downloads, board and alerts, chart, layout. Run it before
# each commit. CI runs it too. It takes 20 seconds. Needs the packages of deploy/deps.sh --dev.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

echo "--- scripts: shellcheck"
git ls-files -z -- '*.sh' .ci/run deploy/amem-demo deploy/kubernetes/amem/files/{may-upgrade,for-jobs} 'deploy/packages/control/*/p*' 'deploy/packages/rpm/p*' | xargs -0 shellcheck

echo "--- folders and their includes"
tests/check_includes.py

echo "--- pages: words and length"
tests/prose/check.sh --words-at-most 52300 </dev/null

echo "--- the place for downloads: one in all files"
deploy/place.py

echo "--- board and alerts"
deploy/grafana/check.sh

echo "--- chart and manifests"
deploy/kubernetes/check.sh

echo "--- layout: clang-format"
git ls-files -z -- '*.c' '*.h' '*.cpp' '*.hpp' | xargs -0 clang-format --dry-run --Werror

echo "checks.sh: OK"
