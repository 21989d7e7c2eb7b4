#!/usr/bin/env bash
# Builds the documentation as a site and checks each link inside it. See --help.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'END'
Usage: deploy/site.sh [DIRECTORY]
       deploy/site.sh --versions DIRECTORY
Builds the documentation as a site into DIRECTORY (default: build/site), and checks its links and tables. Exit status 77: mkdocs or one of
its parts is not installed. AMEM_SITE_REPOSITORY is the address that links to the source lead to; without it they are plain text.
  --versions   builds this version into DIRECTORY/VERSION, beside the versions that are there. The pages have a list of all of them,
               and DIRECTORY/index.html leads to the newest
END
}

versions=''
case ${1:-} in
  -h | --help)
    usage
    exit 0
    ;;
  --versions)
    [[ $# -eq 2 ]] || { usage >&2; exit 2; }
    versions=$2
    ;;
  -*)
    usage >&2
    exit 2
    ;;
esac

# The distribution's: what else is called python3 here need not have them.
python=/usr/bin/python3
if ! "$python" -c 'import mkdocs, material, mkdocstrings_handlers.python, black' 2>/dev/null; then
  echo "site: mkdocs, mkdocs-material, mkdocstrings, its handler for Python or black is not installed: deploy/deps.sh installs them"
  exit 77
fi
site=${1:-build/site}
export PYTHONHASHSEED=0 # mkdocstrings writes the labels of an attribute in the order of a set
if [[ -n $versions ]]; then
  export AMEM_SITE_VERSIONS=mike # the program whose list of versions the theme reads
  site=$versions/$(<VERSION)
fi
"$python" -B -m mkdocs build --strict --quiet --site-dir "$(realpath -m "$site")"
"$python" -B deploy/site/links.py "$site"
[[ -z $versions ]] || "$python" -B deploy/site/versions.py "$versions"
