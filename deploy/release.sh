#!/usr/bin/env bash
# Makes a release: everything that others download, from a clean checkout of one commit. See --help.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

usage() {
  cat <<'END'
Usage: deploy/release.sh [--candidate] [--static] [COMMIT [DIRECTORY]]
Builds the release of COMMIT (default: HEAD) in a clean checkout of its own, and puts it into DIRECTORY (default: dist/amem-VERSION):
the packages for this machine's distribution, the wheels, the source, an SBOM (CycloneDX) of packages and wheels, and SHA256SUMS of all.
The commit must have the tag vVERSION, and CHANGELOG.md a section with its date. The same commit gives the same bytes on machines with
the same packages installed. Needs what deploy/deps.sh installs, and a Python package index.
  --candidate   to try it: the commit need have neither tag nor section
  --static      on Debian 12: also RPMs for RHEL 9 and packages for Ubuntu 22.04, and the wheel for the same old glibc, with the libraries of
                deploy/static.sh in $AMEM_STATIC (default: build/static, in this checkout)
END
}

say() { printf 'release: %s\n' "$*"; }
die() {
  printf 'release: error: %s\n' "$*" >&2
  exit 1
}

candidate=0 static=0
arguments=()
for argument in "$@"; do
  case $argument in
    --candidate) candidate=1 ;;
    --static) static=1 ;;
    -h | --help)
      usage
      exit 0
      ;;
    -*)
      usage >&2
      die "unknown argument: $argument"
      ;;
    *) arguments+=("$argument") ;;
  esac
done
[[ ${#arguments[@]} -le 2 ]] || die "one commit and one directory at most, not: ${arguments[*]}"
commit=$(git -C "$root" rev-parse --verify --quiet "${arguments[0]:-HEAD}^{commit}") || die "there is no commit ${arguments[0]:-HEAD}"
version=$(git -C "$root" show "$commit:VERSION")
target=$(realpath -m "${arguments[1]:-$root/dist/amem-$version}")
[[ ! -e $target ]] || die "$target is there already: remove it, or name another directory"
if [[ $candidate == 0 ]]; then
  [[ $(git -C "$root" rev-parse --verify --quiet "v$version^{commit}") == "$commit" ]] ||
    die "commit $commit is of version $version and has no tag v$version (--candidate tries without)"
  git -C "$root" show "$commit:CHANGELOG.md" | grep -Eq "^## \[?${version//./\\.}\]? - [0-9]{4}-[0-9]{2}-[0-9]{2}" ||
    die "CHANGELOG.md has no section '## [$version] - DATE' (--candidate tries without)"
fi

command -v lintian >/dev/null || die "there is no lintian here; deploy/deps.sh --dev installs it"

work=$(mktemp -d "${TMPDIR:-/tmp}/amem-release.XXXXXX")
trap 'rm -rf "$work"' EXIT
tree=$work/amem-$version
out=$work/out
export SOURCE_DATE_EPOCH
SOURCE_DATE_EPOCH=$(git -C "$root" log -1 --format=%ct "$commit")
umask 022
export LC_ALL=C.UTF-8 TZ=UTC
# A compiler cache may be set to tell the compiler other paths, which are in the debug information, which the build ids are made of.
export CCACHE_DISABLE=1
mkdir "$out"

say "amem $version, commit $commit"
git clone --quiet --no-checkout "$root" "$tree"
git -C "$tree" checkout --quiet --detach "$commit"
# Headers that deploy/deps.sh has fetched are no part of the tree.
if [[ -d $root/build/headers ]]; then
  mkdir "$tree/build"
  ln -s "$root/build/headers" "$tree/build/headers"
fi
git -C "$tree" archive --format=tar --prefix="amem-$version/" HEAD | gzip -9n >"$out/amem-$version.tar.gz"
"$tree/deploy/packages.sh" "$out"
builds=(--build "$tree/build/package")
if [[ $static == 1 ]]; then
  AMEM_STATIC=$(realpath -m "${AMEM_STATIC:-$root/build/static}")
  export AMEM_STATIC
  "$tree/deploy/packages.sh" --for rhel9 "$out"
  "$tree/deploy/packages.sh" --for ubuntu22.04 "$out"
  BUILD_DIR=$tree/build/portable "$tree/deploy/wheel.sh" --static "$out"
  builds+=(--build "$tree/build/portable")
else
  BUILD_DIR=$tree/build/package "$tree/deploy/wheel.sh" "$out"
fi

say "SBOM"
python3 -m venv "$work/tools" || die "python3 cannot make a virtual environment (deploy/deps.sh installs python3-venv)"
timeout 600 "$work/tools/bin/python" -m pip install --quiet --disable-pip-version-check --constraint "$tree/deploy/constraints.txt" \
  "cyclonedx-python-lib[json-validation]" </dev/null ||
  die "pip could not fetch cyclonedx-python-lib (its error is shown): a Python package index has to be reachable"
mapfile -t artefacts < <(compgen -G "$out/*.rpm"; ls "$out"/*.deb "$out"/*.whl)
"$work/tools/bin/python" "$tree/deploy/sbom.py" "${builds[@]}" --commit "$commit" --output "$out/amem-$version.cdx.json" \
  "${artefacts[@]}"
(cd "$out" && sha256sum -- * >../SHA256SUMS && mv ../SHA256SUMS .)

# The oldest C library that each runs with.
say "oldest glibc of the packages: $(for package in "$out"/*.deb; do dpkg-deb -f "$package" Depends; done |
  grep -o 'libc6 (>= [0-9.]*' | grep -o '[0-9.]*$' | sort --version-sort | tail -n 1)"
for wheel in "$out"/amem-*.whl; do
  say "oldest glibc of the wheel: $(grep -o 'manylinux_[0-9]*_[0-9]*' <<<"${wheel##*/}" | head -n 1)"
done
mkdir -p "$(dirname "$target")"
mv "$out" "$target"
say "$target:"
(cd "$target" && cat SHA256SUMS)
