#!/usr/bin/env bash
# Builds the documentation as a site, build/site, and looks at each link inside it. Ends with 77 where mkdocs or what it needs is missing.
# AMEM_SITE_REPOSITORY is where links to the source lead; without it they are plain text.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The distribution's: what else is called python3 here need not have them.
python=/usr/bin/python3
if ! "$python" -c 'import mkdocs, material, mkdocstrings_handlers.python, black' 2>/dev/null; then
  echo "site: mkdocs, mkdocs-material, mkdocstrings, its handler for Python or black is not installed: deploy/deps.sh installs them"
  exit 77
fi
"$python" -B -m mkdocs build --strict --quiet --site-dir "${1:-build/site}"
"$python" -B deploy/site/links.py "${1:-build/site}"
