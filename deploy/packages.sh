#!/usr/bin/env bash
# Builds the packages of this distribution. See --help.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

usage() {
  cat <<'END'
Usage: deploy/packages.sh [--for SYSTEM] [DIRECTORY]
Builds amem's packages for the distribution of this machine, Debian 12 or Ubuntu 24.04, into DIRECTORY (default: dist, in the
checkout): amemd, libamem-shim, libamem-client0, libamem-client-dev, python3-amem and amem-sim-driver. The build is in
build/package. Needs what deploy/deps.sh installs. The same commit gives the same bytes, in whatever folder.
  --for SYSTEM   packages for rhel9 (RPMs: amemd, libamem-shim, libamem-client, libamem-client-devel and amem-sim-driver) or for ubuntu22.04,
                 on Debian 12, with the libraries of deploy/static.sh inside: the C library is all that they need. The build is in
                 build/portable. RPMs need Debian's package rpm.
Environment: AMEM_CMAKE_ARGS  more arguments for cmake's configuration, e.g. -DAMEM_WERROR=ON
             AMEM_MAINTAINER  who answers for the packages: Name <address>
             SOURCE_DATE_EPOCH  the time that everything in the packages has; default: that of the commit
END
}

die() {
  printf 'packages: error: %s\n' "$*" >&2
  exit 1
}

system='' arguments=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --for) system=${2:-} && shift ;;
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
[[ ${#arguments[@]} -le 1 ]] || die "one directory at most, not: ${arguments[*]}"
target=$(realpath -m "${arguments[0]:-$root/dist}")
preset=package tools=(cpack dpkg-deb dpkg-shlibdeps dh_installsystemd file) cmake_args=()
case $system in
  '') ;;
  rhel9)
    tools+=(rpmbuild)
    cmake_args=(-DCMAKE_INSTALL_LIBDIR=lib64)
    ;;
  ubuntu22.04) cmake_args=(-DCMAKE_INSTALL_LIBDIR=lib/x86_64-linux-gnu) ;;
  *) die "--for $system: it knows rhel9 and ubuntu22.04" ;;
esac
for tool in "${tools[@]}"; do
  command -v "$tool" >/dev/null || die "there is no $tool here; deploy/deps.sh installs it"
done
if [[ -z ${SOURCE_DATE_EPOCH:-} ]]; then
  SOURCE_DATE_EPOCH=$(git -C "$root" log -1 --format=%ct) ||
    die "this is no checkout, so nothing says what time the packages are to have: set SOURCE_DATE_EPOCH"
fi
export SOURCE_DATE_EPOCH
# The programs speak of themselves in the language of the pages, and folders are as others may read them.
export LC_ALL=C.UTF-8
umask 022

mkdir -p "$root/build" "$target"
work=$(mktemp -d "$root/build/packages.XXXXXX")
trap 'rm -rf "$work"' EXIT
if [[ -n $system ]]; then
  preset=portable
  static=$(realpath -m "${AMEM_STATIC:-$root/build/static}")
  "$root/deploy/static.sh" "$static"
  cmake_args+=("-DAMEM_PACKAGES_FOR=$system" --toolchain "$static/toolchain.cmake")
fi
read -r -a more <<<"${AMEM_CMAKE_ARGS:-}"
cmake_args+=("${more[@]}")
[[ -z ${AMEM_MAINTAINER:-} ]] || cmake_args+=("-DAMEM_MAINTAINER=$AMEM_MAINTAINER")

cd "$root"
echo "packages: building into build/$preset (minutes the first time)"
# The dates in manual pages and changelog are of this commit.
rm -f "build/$preset/deploy/man"/*.gz "build/$preset/deploy/packages"/*.gz
{ cmake --preset $preset "${cmake_args[@]}" && cmake --build --preset $preset; } >"$work/log" 2>&1 || {
  tail -n 60 "$work/log" >&2
  die "the build failed, see above; deploy/deps.sh installs what it needs"
}
tests/seams/absent.sh build/$preset || die "build/$preset has what only tests need: -DAMEM_FAULT_POINTS=OFF leaves it out"
echo "packages: packing"
cpack --config build/$preset/CPackConfig.cmake -B "$work/out" >"$work/log" 2>&1 || {
  tail -n 60 "$work/log" >&2
  die "cpack could not make the packages, see above"
}
if [[ -n $system ]]; then
  echo "packages: nothing here looks at the packages of another system"
elif command -v lintian >/dev/null; then
  lintian --allow-root --fail-on error,warning "$work"/out/*.deb || die "lintian finds fault with the packages, see above"
else
  echo "packages: lintian is not here (deploy/deps.sh --dev installs it), so nothing has looked at them"
fi
for package in "$work"/out/*.{deb,rpm}; do
  [[ -f $package ]] || continue
  mv "$package" "$target/"
  echo "$target/${package##*/}"
done
