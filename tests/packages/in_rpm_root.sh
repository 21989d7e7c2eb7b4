#!/usr/bin/env bash
# What old_glibc.sh does with the RPMs inside of the old root: rpm installs them there, replaces and removes them, with their scriptlets.
# It ignores what they need (--nodeps), because the root is a Debian.
set -euo pipefail

fail() {
  echo "FAILED: rpm: $*" >&2
  cat /files/rpm.log >&2
  exit 1
}
run() {
  rpm --force-debian --nodeps "$@" >>/files/rpm.log 2>&1 || fail "rpm $*"
  ! grep -qi 'scriptlet failed' /files/rpm.log || fail "a scriptlet of rpm $*"
}

: >/files/rpm.log
run -i /files/packages/*.rpm
getent group amem >/dev/null || fail "there is no group amem"
[[ -d /run/amem && -d /run/amem-holder ]] || fail "there is no /run/amem or no /run/amem-holder"
for program in amemd amemctl; do "$program" --version >/dev/null || fail "the installed $program does not run"; done
mapfile -t names < <(rpm -qa --qf '%{NAME}\n')
[[ ${#names[@]} == $(find /files/packages -name '*.rpm' | wc -l) ]] || fail "installed: ${names[*]}"
rpm -V --nodeps "${names[@]}" >>/files/rpm.log || fail "files are not as the packages have them"
run -U --force /files/packages/*.rpm
run -e "${names[@]}"
left=$(find /usr /etc /run /var/lib -newer /files/packages -name '*amem*' | grep -v '^/usr/lib/sysimage' || true)
[[ -z $left ]] || fail "left after the removal: $left"
echo "rpm: ${#names[@]} packages installed, replaced and removed, with their scriptlets"
