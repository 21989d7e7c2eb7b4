#!/usr/bin/env bash
# Builds the image of amem. See --help.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)

usage() {
  cat <<'END'
Usage: deploy/image/build.sh [--base IMAGE] [--commit COMMIT] [--archive FILE] NAME[:TAG]
       deploy/image/build.sh --lock | --builder
Builds the image NAME from COMMIT (default: HEAD) of this checkout; what is not committed is not in it. Takes docker, podman or buildah,
whichever is there.
  --base IMAGE    Debian 12 (default: the image that COMMIT's deploy/image/base names, by its digest)
  --archive FILE  also puts the image into FILE, which docker load and podman load read
  --lock          only asks the registry for the present digest of this image, and writes it into deploy/image/base
  --builder       only says which builder it takes. Exit status 77: none is here, or it does not work
Environment: AMEM_BUILDER  the builder's command and its options, such as "buildah --storage-driver vfs"
             AMEM_BUILD_ARGS  more arguments for its build, such as "--isolation chroot"
END
}

die() {
  printf 'build.sh: error: %s\n' "$*" >&2
  exit 1
}

base='' commit=HEAD name='' archive='' only_builder=0 lock=0
while [[ $# -gt 0 ]]; do
  case $1 in
    --base | --commit | --archive)
      [[ $# -ge 2 ]] || die "$1 needs a value"
      case $1 in
        --base) base=$2 ;;
        --commit) commit=$2 ;;
        --archive) archive=$(realpath -m "$2") ;;
      esac
      shift
      ;;
    --builder) only_builder=1 ;;
    --lock) lock=1 ;;
    -h | --help)
      usage
      exit 0
      ;;
    -*)
      usage >&2
      die "unknown argument: $1"
      ;;
    *)
      [[ -z $name ]] || die "one name, not $name and $1"
      name=$1
      ;;
  esac
  shift
done
[[ -n $name || $only_builder == 1 || $lock == 1 ]] || {
  usage >&2
  die "what is the image to be called?"
}
read -r -a builder <<<"${AMEM_BUILDER:-}"
if [[ ${#builder[@]} -eq 0 ]]; then
  for each in docker podman buildah; do
    if command -v "$each" >/dev/null; then
      builder=("$each")
      break
    fi
  done
fi
if [[ $only_builder == 1 ]]; then
  [[ ${#builder[@]} -gt 0 ]] || { echo "build.sh: there is neither docker nor podman nor buildah here"; exit 77; }
  timeout 60 "${builder[@]}" info >/dev/null 2>&1 || { echo "build.sh: ${builder[*]} does not work here: ${builder[*]} info fails"; exit 77; }
  echo "build.sh: ${builder[*]}"
  exit 0
fi
[[ ${#builder[@]} -gt 0 ]] || die "there is neither docker nor podman nor buildah here; AMEM_BUILDER may name another"
if [[ $lock == 1 ]]; then
  read -r image _ < <(grep '^[^#]' "$here/base")
  "${builder[@]}" pull --quiet "$image" >/dev/null || die "there is no $image from here (its error is shown)"
  if [[ ${builder[0]##*/} == buildah ]]; then
    digest=$("${builder[@]}" inspect --type image --format '{{.FromImageDigest}}' "$image")
  else
    digest=$("${builder[@]}" image inspect --format '{{index .RepoDigests 0}}' "$image")
  fi
  digest=${digest##*@}
  [[ $digest =~ ^sha256:[0-9a-f]{64}$ ]] || die "${builder[*]} does not say which digest $image has, but: $digest"
  sed -i "s|^[^#].*|$image $digest|" "$here/base"
  echo "build.sh: deploy/image/base has $image as $digest now. Commit it"
  exit 0
fi
read -r -a more <<<"${AMEM_BUILD_ARGS:-}"

mkdir -p "$root/build"
work=$(mktemp -d "$root/build/image.XXXXXX")
trap 'rm -rf "$work"' EXIT
git -C "$root" archive "$commit" | tar -x -C "$work" || die "there is no commit $commit in $root"
if [[ -z $base ]]; then
  read -r base digest < <(grep '^[^#]' "$work/deploy/image/base")
  if [[ -n $digest ]]; then
    base=${base%:*}@$digest
  else
    echo "build.sh: warning: deploy/image/base has no digest, so another day's $base may be another image. deploy/image/build.sh --lock writes it" >&2
  fi
fi
url=$("$work/deploy/place.py" --print url)
[[ -z $url ]] || more+=(--label "org.opencontainers.image.url=$url")
"${builder[@]}" build "${more[@]}" --file "$work/deploy/image/Containerfile" --tag "$name" --build-arg "BASE=$base" \
  --build-arg "VERSION=$(<"$work/VERSION")" --build-arg "SOURCE_DATE_EPOCH=$(git -C "$root" log -1 --format=%ct "$commit")" "$work"
if [[ -n $archive ]]; then
  rm -f "$archive"
  if [[ ${builder[0]##*/} == buildah ]]; then
    "${builder[@]}" push "$name" "docker-archive:$archive:$name"
  else
    "${builder[@]}" save --output "$archive" "$name"
  fi
fi
echo "build.sh: $name is amem $(<"$work/VERSION") of $(git -C "$root" rev-parse --short "$commit")"
