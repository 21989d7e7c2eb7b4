#!/usr/bin/env bash
# Builds the container image without a registry, and runs what the manifests say in it. See --help.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)

usage() {
  cat <<'END'
Usage: tests/packages/image.sh [--keep]
Makes a base image of Debian 12 with mmdebstrap, has deploy/image/build.sh build HEAD's image on it with buildah, and shows in its root,
on the simulated driver of build/release, that
  - it has amemd, the holder, amemctl and the shim, no compiler, and the group amem with its number;
  - the commands, users and probes of deploy/kubernetes/examples/sidecar.yaml work, without any of root's powers: two jobs take turns, and
    amemd is killed and replaced beside a paused one;
  - so do those of deploy/kubernetes/amem.yaml, as root without powers; users of the group may connect, others not.
Needs root, mmdebstrap, buildah, Debian's archive and a build in build/release. The last line says OK or FAILED.
  --keep   keep the image's root, and say where it is
END
}

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

keep=0
case ${1:-} in
  '') ;;
  --keep) keep=1 ;;
  -h | --help)
    usage
    exit 0
    ;;
  *)
    usage >&2
    fail "unknown argument: $1"
    ;;
esac
[[ $(id -u) -eq 0 ]] || fail "run as root: the image's root is entered with chroot"
for tool in mmdebstrap buildah; do
  command -v "$tool" >/dev/null || fail "there is no $tool here; apt-get install $tool"
done
[[ -x $root/build/release/bin/amem-workload ]] || fail "build/release is not built: tests/run.sh --quick"

work=$(mktemp -d "$root/build/image-test.XXXXXX")
# Its own store, so that nothing of the machine's images is touched; and no mounts of its own.
store=(buildah --root "$work/store" --runroot "$work/run" --storage-driver vfs)
leave() {
  if [[ $keep == 1 ]]; then
    echo "image.sh: the image's root is $work/root"
  else
    rm -rf --one-file-system "$work"
  fi
}
trap leave EXIT

# shellcheck disable=SC2016  # it is apt that fills it in
mirror=$(apt-get indextargets --format '$(REPO_URI)' "Codename: bookworm" "Component: main" "Created-By: Packages" | head -n 1)
[[ -n $mirror ]] || fail "this machine's apt does not have bookworm"
echo "image.sh: making the base"
timeout 900 mmdebstrap --quiet --variant=minbase --include=apt,ca-certificates bookworm "$work/base.tar" "$mirror" || fail "mmdebstrap"
# Inside of the build apt and pip get their packages as this machine does.
container=$("${store[@]}" from scratch)
"${store[@]}" add --quiet "$container" "$work/base.tar" / >/dev/null
for file in /etc/apt/apt.conf.d/99* /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
  [[ ! -f $file ]] || "${store[@]}" copy --quiet "$container" "$file" "$file" >/dev/null
done
"${store[@]}" commit --quiet "$container" localhost/amem-test-base >/dev/null
"${store[@]}" rm "$container" >/dev/null
rm "$work/base.tar"

echo "image.sh: building the image (minutes)"
export AMEM_BUILDER="${store[*]}" AMEM_BUILD_ARGS="--isolation chroot --network host --quiet"
timeout 2400 "$root/deploy/image/build.sh" --base localhost/amem-test-base localhost/amem:test >"$work/log" 2>&1 || {
  tail -n 40 "$work/log" >&2
  fail "the image was not built"
}
tail -n 1 "$work/log"
container=$("${store[@]}" from localhost/amem:test)
mkdir "$work/root"
cp -a "$("${store[@]}" mount "$container")/." "$work/root/"
"${store[@]}" rm "$container" >/dev/null
echo "image.sh: the image has $(du -sm "$work/root" | cut -f1) MiB of files"
timeout 600 unshare --mount --fork --pid --mount-proc --kill-child /usr/bin/python3 -B "$here/in_image.py" "$work/root" "$root/build/release" || fail "see above"
echo "OK: the image of $(git -C "$root" rev-parse --short HEAD)"
