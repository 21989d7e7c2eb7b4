#!/usr/bin/env bash
# For root.sh and systemd.sh, which source it: their arguments, and a fresh root of a distribution with the packages in it.

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

root_options() {
  cat <<'END'
  --suite NAME    of the archive; default: this machine's
  --mirror URL    the archive; default: where this machine's apt gets the suite from
  --keyring FILE  of the archive, where apt does not know it
  --keep          keep the root, and say where it is
END
}

# root_arguments ARGUMENT...: sets suite, mirror, keyring, keep and packages. REQUIRES: usage and $root are the caller's.
root_arguments() {
  # shellcheck source=/dev/null
  suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
  mirror='' keyring='' keep=0 packages=''
  while [[ $# -gt 0 ]]; do
    case $1 in
      --suite) suite=$2 && shift ;;
      --mirror) mirror=$2 && shift ;;
      --keyring) keyring=$2 && shift ;;
      --keep)
        # shellcheck disable=SC2034  # the caller's
        keep=1
        ;;
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
  # shellcheck disable=SC2154  # the caller's
  packages=$(realpath -m "${packages:-$root/dist}")
  compgen -G "$packages/amemd_*.deb" >/dev/null || fail "there is no amemd_*.deb in $packages: deploy/packages.sh makes it"
  [[ $(id -u) -eq 0 ]] || fail "run as root: another root is entered"
  command -v mmdebstrap >/dev/null || fail "there is no mmdebstrap here; deploy/deps.sh --dev installs it"
  if [[ -z $mirror ]]; then
    # shellcheck disable=SC2016  # it is apt that fills it in
    mirror=$(apt-get indextargets --format '$(REPO_URI)' "Codename: $suite" "Component: main" "Created-By: Packages" | head -n 1)
    [[ -n $mirror ]] || fail "this machine's apt does not have $suite: name its archive with --mirror"
  fi
}

# make_root FOLDER INCLUDE SCRIPT: a root with these packages of the distribution; ours and the script lie in /packages there.
make_root() {
  # On Ubuntu some of what amem needs is in universe.
  local components=main
  [[ $mirror != *ubuntu* ]] || components=main,universe
  echo "${0##*/}: making a root of $suite"
  timeout 900 mmdebstrap --quiet --variant=minbase --include="$2" --components="$components" ${keyring:+--keyring="$keyring"} "$suite" "$1" "$mirror" ||
    fail "mmdebstrap could not make a root of $suite from $mirror"
  mkdir "$1/packages"
  cp "$packages"/*.deb "$3" "$1/packages/"
}
