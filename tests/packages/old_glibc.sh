#!/usr/bin/env bash
# Runs the RPMs' files and the wheel in a root with an old glibc. See --help.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
# shellcheck source=tests/packages/fresh_root.sh
source "$here/fresh_root.sh"
limit=$(<"$root/deploy/static/glibc")

usage() {
  cat <<END
Usage: tests/packages/old_glibc.sh [--suite NAME] [--mirror URL] [--keyring FILE] [--keep] [DIRECTORY]
Takes the RPMs (deploy/packages.sh --for rhel9), the packages for Ubuntu 22.04 and the wheel (deploy/wheel.sh --static) of DIRECTORY
(default: dist, in the checkout). Unpacks them in a fresh root of an old Debian, where amemd, amemctl and the shim of each pause and
resume a rank on the simulated driver of the RPMs, and the RPMs' demonstration passes. That root's rpm installs, replaces and removes
the RPMs. Prints the newest versions of symbols that
each file needs: none may be newer than GLIBC_$limit, and none of libstdc++'s. Needs root, mmdebstrap and rpm.
The last line says OK or FAILED.
END
  root_options bullseye
}

# Of the archive that this machine's own release is from.
suite=bullseye
# shellcheck disable=SC2016  # it is apt that fills it in
archive=$(apt-get indextargets --format '$(REPO_URI)' "Component: main" "Created-By: Packages" "Origin: Debian" "Label: Debian" | sort -u | head -n 1)
root_arguments --mirror "$archive" "$@"
[[ ${others[0]:-} != -* && ${#others[@]} -le 1 ]] || { usage >&2; fail "unknown argument: ${others[*]}"; }
packages=$(realpath -m "${others[0]:-$root/dist}")
for tool in rpm2archive objdump; do
  command -v $tool >/dev/null || fail "there is no $tool here"
done

begin_guest

make_root "$guest" python3,procps,rpm,systemd
mkdir -p "$guest"/files/{rpm,deb,wheel,packages}
for package in "$packages"/*.el9.x86_64.rpm; do
  [[ -f $package ]] || fail "there is no RPM in $packages: deploy/packages.sh --for rhel9 makes them"
  rpm2archive - <"$package" | tar -xz -C "$guest/files/rpm"
  cp "$package" "$guest/files/packages/"
done
for package in "$packages"/*ubuntu22.04*_amd64.deb; do
  [[ -f $package ]] || fail "there is no package for Ubuntu in $packages: deploy/packages.sh --for ubuntu22.04 makes them"
  dpkg-deb -x "$package" "$guest/files/deb"
done
wheel=("$packages/$("$root/deploy/place.py" --print wheel)"-*-manylinux_"${limit//./_}"_x86_64.whl)
[[ -f ${wheel[0]} ]] || fail "there is no wheel for glibc $limit in $packages: deploy/wheel.sh --static makes it"
python3 -m zipfile -e "${wheel[0]}" "$guest/files/wheel"
chmod +x "$guest"/files/wheel/amem/bin/*
cp "$here"/in_{old,rpm}_root.sh "$guest/files/"

mount -t proc proc "$guest/proc"
inside() {
  timeout 600 unshare --fork --pid --kill-child --mount-proc="$guest/proc" chroot "$guest" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    HOME=/root LC_ALL=C.UTF-8 "$@"
}
# shellcheck disable=SC2016  # the shell's in the root
system=$(inside sh -c '. /etc/os-release; echo "$ID $VERSION_ID, glibc $(getconf GNU_LIBC_VERSION | cut -d" " -f2)"')
echo "old_glibc.sh: the root is $system"
sim=/files/rpm/usr/lib/amem/sim
inside bash /files/in_old_root.sh rpm /files/rpm/usr/bin /files/rpm/usr/lib/amem/libamem_shim.so $sim || fail "see above"
inside bash /files/in_old_root.sh deb /files/deb/usr/bin /files/deb/usr/lib/amem/libamem_shim.so /files/deb/usr/lib/amem/sim || fail "see above"
inside bash /files/in_old_root.sh wheel /files/wheel/amem/bin /files/wheel/amem/lib/libamem_shim.so $sim || fail "see above"
inside bash /files/in_rpm_root.sh || fail "see above"
inside /files/rpm/usr/bin/amem-demo >"$work/demo" 2>&1 || { tail -n 20 "$work/demo" >&2; fail "the demonstration"; }
tail -n 1 "$work/demo"

# newest LIBRARY FILE: the newest version of the library's symbols that the file needs.
newest() { objdump -T "$2" | sed -n "s/.*($1_\([0-9.]*\)).*/$1_\1/p" | sort --version-sort --unique | tail -n 1; }
status=0
printf '%-52s %-12s %-16s %s\n' file GLIBC GLIBCXX "ran in"
while read -r file; do
  glibc=$(newest GLIBC "$file") cxx=$(newest GLIBCXX "$file") ran=$system
  [[ ${file##*/} != libamem_client* ]] || ran="(loads in $system)"
  printf '%-52s %-12s %-16s %s\n' "${file#"$guest/files/"}" "${glibc:-none}" "${cxx:-none}" "$ran"
  [[ -z $cxx && $(printf '%s\n' "GLIBC_$limit" "$glibc" | sort --version-sort | tail -n 1) == "GLIBC_$limit" ]] || status=1
done < <(find "$guest/files" -type f \( -path '*/bin/amem*' -o -name '*.so' -o -name '*.so.*' -o -name amem-workload \) -exec sh -c \
  'head -c 4 "$1" | grep -q ELF && echo "$1"' - {} \; | sort)
inside python3 -c "import ctypes; ctypes.CDLL('$(cd "$guest" && echo /files/rpm/usr/lib64/libamem_client.so.0)')" || fail "libamem_client does not load"
[[ $status == 0 ]] || fail "a file needs a newer symbol, see above"
echo "OK: the files of $packages in a root with $system; they need GLIBC_$limit at most"
