#!/usr/bin/env bash
# Installs the packages in a fresh root of a distribution, runs amem there, upgrades and removes it. See --help.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)

usage() {
  cat <<'END'
Usage: tests/packages/root.sh [--suite NAME] [--mirror URL] [--keyring FILE] [--keep] [DIRECTORY]
Makes a fresh root with mmdebstrap, installs all packages of DIRECTORY (default: dist, in the checkout) with what they depend on, and
shows that
  - the demonstration passes on the simulated driver, whose libraries no loader finds by itself;
  - Python has the package amem, and finds the shim;
  - an installation enables and starts the service, an upgrade leaves it alone, with a group that is paused, and a removal stops it;
  - a purge leaves nothing.
The packages must be of that distribution. Needs root, mmdebstrap and the distribution's archive. The last line says OK or FAILED.
  --suite NAME    of the archive; default: this machine's
  --mirror URL    the archive; default: where this machine's apt gets the suite from
  --keyring FILE  of the archive, where apt does not know it
  --keep          keep the root, and say where it is
END
}

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# shellcheck source=/dev/null
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
mirror='' keyring='' keep=0 packages=''
while [[ $# -gt 0 ]]; do
  case $1 in
    --suite) suite=$2 && shift ;;
    --mirror) mirror=$2 && shift ;;
    --keyring) keyring=$2 && shift ;;
    --keep) keep=1 ;;
    -h | --help)
      usage
      exit 0
      ;;
    -*)
      usage >&2
      fail "unknown argument: $1"
      ;;
    *) packages=$1 ;;
  esac
  shift
done
packages=$(realpath -m "${packages:-$root/dist}")
compgen -G "$packages/amemd_*.deb" >/dev/null || fail "there is no amemd_*.deb in $packages: deploy/packages.sh makes it"
[[ $(id -u) -eq 0 ]] || fail "run as root: a root of its own is entered with chroot"
command -v mmdebstrap >/dev/null || fail "there is no mmdebstrap here; deploy/deps.sh --dev installs it"
if [[ -z $mirror ]]; then
  # shellcheck disable=SC2016  # it is apt that fills it in
  mirror=$(apt-get indextargets --format '$(REPO_URI)' "Codename: $suite" "Component: main" "Created-By: Packages" | head -n 1)
  [[ -n $mirror ]] || fail "this machine's apt does not have $suite: name its archive with --mirror"
fi

work=$(mktemp -d)
guest=$work/root
leave() {
  umount --recursive "$guest/proc" 2>/dev/null || true
  if [[ $keep == 1 ]]; then
    echo "root.sh: the root is $guest"
  else
    rm -rf --one-file-system "$work"
  fi
}
trap leave EXIT

# On Ubuntu some of what amem needs is in universe.
components=main
[[ $mirror != *ubuntu* ]] || components=main,universe
echo "root.sh: making a root of $suite"
timeout 900 mmdebstrap --quiet --variant=minbase --include=apt --components="$components" ${keyring:+--keyring="$keyring"} "$suite" "$guest" "$mirror" ||
  fail "mmdebstrap could not make a root of $suite from $mirror"
mount -t proc proc "$guest/proc"
mkdir "$guest/packages"
cp "$packages"/*.deb "$guest/packages/"
cp "$here/in_root.sh" "$guest/packages/"
# Of a process of its own: whatever is left in it ends with it.
timeout 1500 unshare --fork --pid --kill-child chroot "$guest" /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
  LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive bash /packages/in_root.sh || fail "see above"
echo "OK: the packages of $packages in a fresh root of $suite"
