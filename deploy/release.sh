#!/usr/bin/env bash
# Makes a release: everything that others download, from a clean checkout of one commit. See --help.
set -euo pipefail
# In braces, so that it is read whole: a checkout may change while it builds.
{
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

usage() {
  cat <<'END_OF_USAGE'
Usage: deploy/release.sh [--candidate] [--tag] [--no-image] [--static] [COMMIT [DIRECTORY]]
       deploy/release.sh --verify --fingerprint FINGERPRINT [--key FILE] DIRECTORY
       deploy/release.sh --verify --unsigned DIRECTORY
Builds the release of COMMIT (default: HEAD) in a clean checkout of its own, and puts it into DIRECTORY (default: dist/amem-VERSION):
the packages for this machine's distribution, the wheels, the source, the chart, the documentation as a site, the image where docker,
podman or buildah works, an SBOM (CycloneDX) of packages and wheels, SHA256SUMS of all, and its signature SHA256SUMS.asc. Then it
verifies what it has made. Before it builds, it refuses a checkout with changes, a tag vVERSION of another commit, versions or a
CHANGELOG.md that do not fit, and a distribution's name that belongs to others in pip's package index. The same commit gives the same
bytes on machines with the same packages installed, except for the image and the signature. Needs what deploy/deps.sh --dev installs,
and a Python package index.
  --candidate   to try it: only warns of these faults, and signs only if AMEM_SIGN_KEY is set
  --tag         at the end signs the tag vVERSION for COMMIT
  --no-image    leaves the image out
  --static      on Debian 12: also RPMs for RHEL 9 and packages for Ubuntu 22.04, and the wheel for the same old glibc, with the libraries of
                deploy/static.sh in $AMEM_STATIC (default: build/static, in this checkout)
  --verify      verifies the release in DIRECTORY, with sqv. FINGERPRINT: of the key that must have signed, which SECURITY.md publishes; take
                it from elsewhere than from DIRECTORY. --key FILE: FILE has this key (default: gpg has it). --unsigned: without a signature
Environment: AMEM_SIGN_KEY    the key that signs, as gpg --local-user takes it
             AMEM_MAINTAINER  who answers for the packages: Name <address>; default: the key's first user id
             AMEM_BUILDER     as for deploy/image/build.sh
END_OF_USAGE
}

say() { printf 'release: %s\n' "$*"; }
die() {
  printf 'release: error: %s\n' "$*" >&2
  exit 1
}
# Only warns of what is tried.
refuse() {
  [[ $candidate == 1 ]] || die "$*"
  say "warning: a release would not be made: $*"
}

candidate=0 tag=0 image=1 static=0 verify=0
arguments=() options=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --candidate) candidate=1 ;;
    --tag) tag=1 ;;
    --no-image) image=0 ;;
    --static) static=1 ;;
    --verify) verify=1 ;;
    --unsigned) options+=("$1") ;;
    --key | --fingerprint)
      [[ $# -ge 2 ]] || die "$1 needs a value"
      options+=("$1" "$2")
      shift
      ;;
    -h | --help)
      usage
      exit 0
      ;;
    -*)
      usage >&2
      die "unknown argument: $1"
      ;;
    *) arguments+=("$1") ;;
  esac
  shift
done
if [[ $verify == 1 ]]; then
  [[ ${#arguments[@]} -eq 1 && -d ${arguments[0]} ]] || die "--verify needs one directory with a release"
  /usr/bin/python3 -B "$root/deploy/release.py" verify "${options[@]}" "${arguments[0]}" || exit 1
  say "${arguments[0]} is as it must be"
  exit 0
fi
[[ ${#options[@]} -eq 0 ]] || die "${options[0]} is for --verify"
[[ ${#arguments[@]} -le 2 ]] || die "one commit and one directory at most, not: ${arguments[*]}"
[[ $candidate == 0 || $tag == 0 ]] || die "--tag is for a release, not for a candidate"
commit=$(git -C "$root" rev-parse --verify --quiet "${arguments[0]:-HEAD}^{commit}") || die "there is no commit ${arguments[0]:-HEAD}"
version=$(git -C "$root" show "$commit:VERSION")
target=$(realpath -m "${arguments[1]:-$root/dist/amem-$version}")
[[ ! -e $target ]] || die "$target is there already: remove it, or name another directory"

# ---- what takes no time, first ----
[[ -z $(git -C "$root" status --porcelain) ]] || refuse "the checkout has changes that are not committed (git status)"
tagged=$(git -C "$root" rev-parse --verify --quiet "v$version^{commit}" || true)
[[ -z $tagged || $tagged == "$commit" ]] ||
  refuse "the tag v$version is of $(git -C "$root" rev-parse --short "$tagged"), not of $(git -C "$root" rev-parse --short "$commit"): raise VERSION"
key=${AMEM_SIGN_KEY:-}
if [[ -n $key ]]; then
  command -v gpg >/dev/null || die "there is no gpg here; deploy/deps.sh installs it"
  gpg --batch --list-secret-keys "$key" >/dev/null 2>&1 || die "AMEM_SIGN_KEY: gpg has no secret key $key"
  # Asks for its passphrase now, not at the end.
  gpg --quiet --local-user "$key" --detach-sign --output /dev/null </dev/null || die "AMEM_SIGN_KEY: gpg cannot sign with $key"
  listed=$(gpg --batch --with-colons --list-keys "$key")
  fingerprint=$(awk -F: '$1 == "fpr" {print $10; exit}' <<<"$listed")
  # Who verifies a release takes the fingerprint from there.
  [[ $(git -C "$root" show "$commit:SECURITY.md" | tr -d ' ') == *"$fingerprint"* ]] ||
    refuse "SECURITY.md does not name the key that signs: put its fingerprint $fingerprint there"
  export AMEM_MAINTAINER=${AMEM_MAINTAINER:-$(awk -F: '$1 == "uid" {print $10; exit}' <<<"$listed")}
else
  refuse "AMEM_SIGN_KEY does not name the key that signs"
fi
for tool in lintian mkdocs ${key:+sqv}; do
  command -v "$tool" >/dev/null || die "there is no $tool here; deploy/deps.sh --dev installs it"
done

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
/usr/bin/python3 -B "$tree/deploy/release.py" ready "$tree" || refuse "see above"
/usr/bin/python3 -m venv "$work/tools" || die "python3 cannot make a virtual environment (deploy/deps.sh installs python3-venv)"
"$work/tools/bin/python" -B "$tree/deploy/release.py" name "$tree" || refuse "see above"
builder=''
if [[ $image == 1 ]]; then
  builder=$("$tree/deploy/image/build.sh" --builder) || {
    say "no image: $builder"
    builder=''
  }
  [[ -z $builder ]] || grep -q '^[^#].* sha256:' "$tree/deploy/image/base" ||
    refuse "deploy/image/base has no digest of the base image: run deploy/image/build.sh --lock and commit, or give --no-image"
fi

# ---- what takes minutes ----
# What is compiled is what this commit's lock files name, whatever build/ of this checkout has.
say "headers"
"$tree/deploy/deps.sh" --headers
if [[ $static == 1 ]]; then
  AMEM_STATIC=$(realpath -m "${AMEM_STATIC:-$root/build/static}")
  export AMEM_STATIC
  "$tree/deploy/static.sh" "$AMEM_STATIC" # takes an hour if it is old
fi
# pack NAME FOLDER: a reproducible archive on standard output, of what links lead to.
pack() {
  tar --directory "$2" --dereference --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
    --format=ustar -cf - "$1" | gzip -9n
}
git -C "$tree" archive --format=tar --prefix="amem-$version/" HEAD | gzip -9n >"$out/amem-$version.tar.gz"
say "chart"
pack amem "$tree/deploy/kubernetes" >"$out/amem-$version.tgz"
"$tree/deploy/kubernetes/check.sh" --archive "$out/amem-$version.tgz"
say "site"
"$tree/deploy/site.sh" --versions "$work/site"
pack "$version" "$work/site" >"$out/amem_site-$version.tar.gz"
"$tree/deploy/packages.sh" "$out"
builds=(--build "$tree/build/package")
if [[ $static == 1 ]]; then
  "$tree/deploy/packages.sh" --for rhel9 "$out"
  "$tree/deploy/packages.sh" --for ubuntu22.04 "$out"
  BUILD_DIR=$tree/build/portable "$tree/deploy/wheel.sh" --static "$out"
  builds+=(--build "$tree/build/portable")
else
  say "no packages for other distributions (--static)"
  BUILD_DIR=$tree/build/package "$tree/deploy/wheel.sh" "$out"
fi

say "SBOM"
"$tree/deploy/locks/install.sh" sbom "$work/tools"
mapfile -t built < <(find "$out" -name '*.deb' -o -name '*.rpm' -o -name '*.whl')
"$work/tools/bin/python" "$tree/deploy/sbom.py" "${builds[@]}" --commit "$commit" --output "$out/amem-$version.cdx.json" \
  "${built[@]}"
if [[ -n $builder ]]; then
  "$tree/deploy/image/build.sh" --archive "$work/image.tar" "$("$tree/deploy/place.py" --print image):$version"
  gzip -9n <"$work/image.tar" >"$out/amem_image-$version.tar.gz"
fi

(cd "$out" && sha256sum -- * >../SHA256SUMS && mv ../SHA256SUMS .)
signature=(--unsigned)
if [[ -n $key ]]; then
  gpg --batch --yes --armor --local-user "$key" --output "$out/SHA256SUMS.asc" --detach-sign "$out/SHA256SUMS"
  signature=(--fingerprint "$fingerprint")
fi
"$tree/deploy/release.py" verify "${signature[@]}" "$out" || refuse "see above"

# The oldest C library that each runs with.
glibc_of() {
  for package in "$@"; do dpkg-deb -f "$package" Depends; done | grep -o 'libc6 (>= [0-9.]*' | grep -o '[0-9.]*$' | sort --version-sort | tail -n 1
}
if [[ $static == 0 ]]; then
  say "oldest glibc of the packages: $(glibc_of "$out"/*.deb)"
else  # on Debian 12
  say "oldest glibc of Debian 12's packages: $(glibc_of "$out"/*~deb12_*.deb); of the RPMs and of Ubuntu 22.04's packages: $(glibc_of "$out"/*~ubuntu22.04_*.deb)"
fi
for wheel in "$out"/amem*.whl; do
  say "oldest glibc of the wheel: $(grep -o 'manylinux_[0-9]*_[0-9]*' <<<"${wheel##*/}" | head -n 1)"
done
mkdir -p "$(dirname "$target")"
mv "$out" "$target"
say "$target:"
(cd "$target" && cat SHA256SUMS)
if [[ $tag == 1 && -z $tagged ]]; then
  git -C "$root" tag --sign --local-user "$key" --message "amem $version" "v$version" "$commit"
  say "the tag v$version is of $commit; push it when the files are at their place"
elif [[ $candidate == 0 && -z $tagged ]]; then
  say "there is no tag yet. The last step: git tag --sign --local-user '$key' --message 'amem $version' v$version $commit"
fi
exit 0
}
