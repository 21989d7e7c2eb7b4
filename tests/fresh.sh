#!/usr/bin/env bash
# Runs the commands of the README's checkout as a newcomer does, on a fresh machine. See --help.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/.." && pwd)
# shellcheck source=tests/packages/fresh_root.sh
source "$here/packages/fresh_root.sh"

usage() {
  cat <<'END_OF_USAGE'
Usage: tests/fresh.sh [--suite NAME] [--mirror URL] [--keyring FILE] [--ccache DIR] [--keep]
Makes a fresh root of Debian 12 with mmdebstrap, clones HEAD into root's home there, which nobody else may enter, and runs the README's
commands for a checkout in their order: ./deploy/try.sh and ./tests/run.sh. The tutorial (docs/tutorial.md) comes after the first, which it
begins with. What is not committed is not in the clone. The root has git,
no CUDA toolkit, no driver and no variable of this environment, but for those by which apt and pip find their packages.
Needs root, mmdebstrap, the distribution's archive, a Python package index and some 10 GiB below $TMPDIR. Each command may take three hours.
The logs are build/fresh/*.log. The last line says OK, or what FAILED.
  --ccache DIR    a compiler cache for the builds, to try something quickly; without it nothing is cached
END_OF_USAGE
  root_options bookworm
}

readonly limit_s=10800

# shellcheck disable=SC2034  # root_arguments'
suite=bookworm
cache=''
root_arguments "$@"
while [[ ${#others[@]} -gt 0 ]]; do
  case ${others[0]} in
    --ccache)
      [[ -d ${others[1]:-} ]] || fail "--ccache needs a folder that is there"
      cache=$(realpath "${others[1]}")
      others=("${others[@]:1}")
      ;;
    *)
      usage >&2
      fail "unknown argument: ${others[0]}"
      ;;
  esac
  others=("${others[@]:1}")
done

work=$(mktemp -d)
guest=$work/root
leave() {
  end_contained
  if [[ $keep == 1 ]]; then
    echo "fresh.sh: the root is $guest"
  else
    rm -rf --one-file-system "$work"
  fi
}
trap leave EXIT
trap 'fail "interrupted"' INT TERM HUP

# as_here: apt and pip in the root get their packages as on this machine.
as_here() {
  local certificates=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt} name
  cp -L --remove-destination /etc/resolv.conf /etc/hosts "$guest/etc/"
  # Not of the indices: those are the suite's.
  apt-config dump Acquire | grep -v '^Acquire::IndexTargets' >"$guest/etc/apt/apt.conf.d/90here"
  [[ ! -f /etc/pip.conf ]] || cp /etc/pip.conf "$guest/etc/"
  environment=(HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)
  for name in {http,https,no}_proxy {HTTP,HTTPS,NO}_PROXY PIP_{INDEX_URL,EXTRA_INDEX_URL,TRUSTED_HOST,DEFAULT_TIMEOUT}; do
    [[ -z ${!name:-} ]] || environment+=("$name=${!name}")
  done
  if [[ -f $certificates ]]; then
    # Not in the place of the distribution's, which the package ca-certificates writes.
    cp -L "$certificates" "$guest/etc/ssl/here.crt"
    environment+=(PIP_CERT=/etc/ssl/here.crt)
    echo 'Acquire::https::CAInfo "/etc/ssl/here.crt";' >>"$guest/etc/apt/apt.conf.d/90here"
  fi
}

# in_root LOG SCRIPT: bash runs it in the root. It is the first process there, so that others have a parent that reaps them.
in_root() {
  # shellcheck disable=SC2016  # the inner shell's
  contain bash -euc '
    guest=$1 cache=$2
    exec >"$3" 2>&1
    mount -t proc proc "$guest/proc"
    mount --rbind /sys "$guest/sys"
    mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts "$guest/dev/pts"
    mount -t tmpfs -o mode=1777 tmpfs "$guest/dev/shm"
    if [[ -n $cache ]]; then
      mkdir -p "$guest/root/.cache/ccache"
      mount --bind "$cache" "$guest/root/.cache/ccache"
    fi
    umask 022
    exec chroot "$guest" /usr/bin/env -i --default-signal "${@:4}"' - "$guest" "$cache" "$1" "${environment[@]}" bash -c "$2"
}

[[ -z $(git -C "$root" status --porcelain) ]] || echo "fresh.sh: what is not committed is not tried"
logs=$root/build/fresh
mkdir -p "$logs"
rm -f "$logs"/*.log
make_root "$guest" "git${cache:+,ccache}"
mkdir -p "$guest/etc/ssl"
as_here
chmod 700 "$guest/root"
git clone --quiet --no-hardlinks "$root" "$guest/root/amem"
mapfile -t commands < <(sed -nE 's,^(\./[a-z]+/[a-z]+\.sh)( .*)?$,\1,p' "$guest/root/amem/README.md")
[[ ${#commands[@]} -ge 2 ]] || fail "README.md has no commands for a checkout: ${commands[*]}"
commands=("${commands[0]}" "python3 -B tests/pasted.py docs/tutorial.md" "${commands[@]:1}")
commit=$(git -C "$guest/root/amem" rev-parse --short HEAD)

for command in "${commands[@]}"; do
  log=${command##*/}
  log=$logs/${log%.*}.log
  began=$SECONDS
  echo "fresh.sh: $command of $commit; its log is $log"
  status=0
  in_root "$log" "cd ~/amem && timeout --signal=KILL $limit_s $command; exit \$?" || status=$?
  if [[ $status != 0 ]]; then
    tail -n 40 "$log" >&2
    ((SECONDS - began < limit_s)) || fail "$command of $commit was not done within $limit_s s; its log is $log"
    fail "$command of $commit ended with $status; its log is $log"
  fi
  echo "fresh.sh: $command has passed in $((SECONDS - began)) s: $(tail -n 1 "$log")"
done
echo "OK: ${commands[*]} of $commit in a fresh root of $suite"
