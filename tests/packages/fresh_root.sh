#!/usr/bin/env bash
# For root.sh, systemd.sh and ../fresh.sh, which source it: their arguments, and a fresh root of a distribution.

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# root_options SUITE: their text, with the default of the suite.
root_options() {
  cat <<END
  --suite NAME    of the archive; default: $1
  --mirror URL    the archive; default: where this machine's apt gets the suite from
  --keyring FILE  of the archive, where apt does not know it
  --keep          keep the root, and say where it is
END
}

# root_arguments ARGUMENT...: sets suite, mirror, keyring and keep. What is no option of these is left in the array `others`.
# REQUIRES: usage is the caller's; it may have set suite to another default.
root_arguments() {
  # shellcheck source=/dev/null
  suite=${suite:-$(. /etc/os-release && echo "$VERSION_CODENAME")}
  mirror='' keyring='' keep=0 others=()
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
      *) others+=("$1") ;;
    esac
    shift
  done
  [[ $(id -u) -eq 0 ]] || fail "run as root: another root is entered"
  command -v mmdebstrap >/dev/null || fail "there is no mmdebstrap here; deploy/deps.sh --dev installs it"
  if [[ -z $mirror ]]; then
    # shellcheck disable=SC2016  # it is apt that fills it in
    mirror=$(apt-get indextargets --format '$(REPO_URI)' "Codename: $suite" "Component: main" "Created-By: Packages" | head -n 1)
    [[ -n $mirror ]] || fail "this machine's apt does not have $suite: name its archive with --mirror"
  fi
}

# package_arguments ARGUMENT...: as root_arguments; sets packages, too. REQUIRES: $root is the caller's.
package_arguments() {
  root_arguments "$@"
  if [[ ${others[0]:-} == -* || ${#others[@]} -gt 1 ]]; then
    usage >&2
    fail "unknown argument: ${others[*]}"
  fi
  # shellcheck disable=SC2154  # the caller's
  packages=$(realpath -m "${others[0]:-$root/dist}")
  compgen -G "$packages/amemd_*.deb" >/dev/null || fail "there is no amemd_*.deb in $packages: deploy/packages.sh makes it"
}

contained=''
# contain COMMAND...: runs it with mounts and processes of its own. They end with it, and with end_contained, which a script calls
# when it is interrupted.
contain() {
  unshare --mount --fork --pid --mount-proc --kill-child "$@" </dev/null &
  contained=$!
  local status=0
  wait "$contained" || status=$?
  contained=''
  return "$status"
}

end_contained() {
  if [[ -n $contained ]]; then
    kill -KILL "$contained" 2>/dev/null || true
    wait "$contained" 2>/dev/null || true
  fi
}

# begin_guest: sets work, a new folder, and guest, the root that is to be made in it. Both end with the script; --keep keeps them.
begin_guest() {
  work=$(mktemp -d)
  guest=$work/root
  trap leave_guest EXIT
  trap 'fail "interrupted"' INT TERM HUP
}

leave_guest() {
  end_contained
  umount --recursive "$guest/proc" 2>/dev/null || true
  if [[ $keep == 1 ]]; then
    echo "${0##*/}: the root is $guest"
  else
    rm -rf --one-file-system "$work"
  fi
}

# make_root FOLDER INCLUDE: a root with these packages of the distribution.
make_root() {
  # On Ubuntu some of what amem needs is in universe.
  local components=main
  [[ $mirror != *ubuntu* ]] || components=main,universe
  echo "${0##*/}: making a root of $suite"
  contain timeout 1800 mmdebstrap --quiet --variant=minbase --include="$2" --components="$components" ${keyring:+--keyring="$keyring"} "$suite" "$1" "$mirror" ||
    fail "mmdebstrap could not make a root of $suite from $mirror"
}

# make_package_root FOLDER INCLUDE SCRIPT: the same; our packages and the script lie in /packages there.
make_package_root() {
  make_root "$1" "$2"
  mkdir "$1/packages"
  cp "$packages"/*.deb "$3" "$1/packages/"
}
