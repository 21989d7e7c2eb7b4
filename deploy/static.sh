#!/usr/bin/env bash
# Builds what amem links from Debian's sources, as static libraries for an old glibc. See --help.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
glibc=$(<"$root/deploy/static/glibc")

usage() {
  cat <<END
Usage: deploy/static.sh [FOLDER]
Builds gRPC, Protocol Buffers, abseil, c-ares, re2, OpenSSL, zlib, nanopb, spdlog, fmt, CivetWeb and prometheus-cpp from the sources
of this Debian 12, with the compiler of the Python package ziglang, as static libraries that need glibc $glibc or newer. FOLDER (default:
\$AMEM_STATIC, else build/static) keeps sources, compiler and libraries. A second run builds only what has changed. The first
takes about 40 minutes of one core. Remove FOLDER/sources to get newer sources. Builds of amem use FOLDER/toolchain.cmake:
deploy/wheel.sh and deploy/packages.sh take --static. Needs what deploy/deps.sh installs, Debian's archive and a Python package index.
Environment: JOBS  how many files to compile at a time; default: one for each core
END
}

say() { printf 'static: %s\n' "$*"; }
die() {
  printf 'static: error: %s\n' "$*" >&2
  exit 1
}

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
[[ $# -le 1 ]] || die "one folder at most, not: $*"
folder=$(realpath -m "${1:-${AMEM_STATIC:-$root/build/static}}")
jobs=${JOBS:-$(nproc)}
for tool in apt-get dpkg-source cmake ninja make perl protoc; do
  command -v "$tool" >/dev/null || die "there is no $tool here; deploy/deps.sh installs it"
done
mkdir -p "$folder"/{bin,packages,sources,work}
export LC_ALL=C.UTF-8
export PIP_CONSTRAINT=file://${root// /%20}/deploy/constraints.txt

# ---- the compiler ----
compiler() {
  local tool
  if [[ ! -x $folder/zig/bin/ziglang ]]; then
    say "fetching the compiler"
    python3 -m venv "$folder/zig" || die "python3 cannot make a virtual environment (deploy/deps.sh installs python3-venv)"
    timeout 1800 "$folder/zig/bin/python" -m pip install --quiet --disable-pip-version-check ziglang </dev/null ||
      die "pip could not fetch ziglang (its error is shown): a Python package index has to be reachable"
    ln -s "$(echo "$folder"/zig/lib/python3*/site-packages/ziglang/zig)" "$folder/zig/bin/ziglang"
  fi
  for tool in cc c++ ar ranlib; do
    cp "$root/deploy/static/compiler.sh" "$folder/bin/$tool"
  done
  cp "$root"/deploy/static/{toolchain.cmake,glibc} "$folder/"
  # Its C++ library and what compilers call are in every program.
  local lib
  lib=$(dirname "$(realpath "$folder/zig/bin/ziglang")")
  mkdir -p "$folder/packages"/{llvm-libcxx,zig-compiler-rt}
  sed -n 's/^# *define _LIBCPP_VERSION \([0-9]\{2\}\)\([0-9]\{2\}\)\([0-9]\{2\}\)$/\1.\2.\3/p' "$lib/lib/libcxx/include/__config" |
    sed 's/\.0*\([0-9]\)/.\1/g' >"$folder/packages/llvm-libcxx/VERSION"
  cp "$lib/lib/libcxx/LICENSE.TXT" "$folder/packages/llvm-libcxx/copyright"
  "$folder/zig/bin/ziglang" version >"$folder/packages/zig-compiler-rt/VERSION"
  cp "$lib/LICENSE" "$folder/packages/zig-compiler-rt/copyright"
}

# ---- the sources ----
# sources TOOL ARGUMENT...: apt-get or apt-cache with lists of its own, of sources, from where this machine gets Debian's packages.
sources() {
  local tool=$1 apt=$folder/sources/apt
  shift
  "$tool" -o APT::Sandbox::User=root -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$apt/parts" \
    -o Dir::State::Lists="$apt/lists" -o Dir::Cache="$apt/cache" -o Acquire::Retries=3 "$@"
}

read_lists() {
  local entry
  mkdir -p "$folder/sources/apt"/{parts,lists/partial,cache/archives/partial}
  # shellcheck disable=SC2016  # it is apt that fills it in
  apt-get indextargets --format '$(SOURCESENTRY)' "Created-By: Packages" "Origin: Debian" | sed 's/:[0-9]*$//' | sort -u |
    while read -r entry; do
      sed 's/^Types:.*/Types: deb-src/; s/^deb /deb-src /' "$entry" >"$folder/sources/apt/parts/${entry##*/}"
    done
  sources apt-get -qq update </dev/null || die "apt-get could not read the lists of Debian's sources"
}

# fetch NAME: the newest version that the archive has whole. apt checks it against the archive's signature.
fetch() {
  local name=$1 version
  [[ ! -e $folder/sources/$name.version ]] || return 0
  [[ -d $folder/sources/apt/parts ]] || read_lists
  for version in $(sources apt-cache showsrc "$name" | sed -n 's/^Version: //p' | sort -rVu); do
    if (cd "$folder/sources" && sources apt-get -qq --download-only source "$name=$version" </dev/null >"$folder/work/log" 2>&1); then
      echo "$version" >"$folder/sources/$name.version"
      return 0
    fi
    say "the archive lacks a part of $name $version"
  done
  tail -n 5 "$folder/work/log" >&2
  die "Debian's archive has no complete source of $name"
}

# ---- the libraries ----
flags='-O2 -g0 -fPIC -fstack-protector-strong -w'

# with_cmake ARGUMENT...: configures $source into $build; all libraries that are here already are found.
with_cmake() {
  cmake -S "$source" -B "$build" -G Ninja -DCMAKE_TOOLCHAIN_FILE="$folder/toolchain.cmake" -DCMAKE_BUILD_TYPE=None \
    -DCMAKE_C_FLAGS="$flags -DNDEBUG" -DCMAKE_CXX_FLAGS="$flags -DNDEBUG" -DCMAKE_CXX_STANDARD=17 -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
    -DBUILD_SHARED_LIBS=OFF -DBUILD_TESTING=OFF -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_INSTALL_LIBDIR=lib "$@"
}

install_ninja() { ninja -C "$build" -j "$jobs" install; }

build_zlib() {
  cd "$source"
  CC=$folder/bin/cc AR=$folder/bin/ar RANLIB=$folder/bin/ranlib CFLAGS=$flags ./configure --static --prefix="$prefix"
  make -j "$jobs" install
}

build_abseil() { with_cmake -DABSL_PROPAGATE_CXX_STD=ON && install_ninja; }
build_protobuf() { with_cmake -Dprotobuf_BUILD_TESTS=OFF -Dprotobuf_BUILD_PROTOC_BINARIES=OFF && install_ninja; }
build_c-ares() { with_cmake -DCARES_STATIC=ON -DCARES_SHARED=OFF -DCARES_BUILD_TOOLS=OFF && install_ninja; }
# Debian's source has no tables: they are made of Unicode's, which are a package.
build_re2() {
  local table
  cd "$source"
  apt-get -o APT::Sandbox::User=root -qq download unicode-data
  dpkg-deb -x unicode-data_*.deb unicode
  sed -i "s|^_UNICODE_DIR = .*|_UNICODE_DIR = '$source/unicode/usr/share/unicode'|" re2/unicode.py
  perl re2/make_perl_groups.pl >re2/perl_groups.cc
  for table in casefold groups; do
    python3 "re2/make_unicode_$table.py" >"re2/unicode_$table.cc"
  done
  with_cmake -DRE2_BUILD_TESTING=OFF
  install_ninja
}

build_openssl() {
  cd "$source"
  ./Configure linux-x86_64 no-shared no-tests no-engine no-dso no-legacy no-comp --prefix=/ --libdir=lib --openssldir=/etc/ssl \
    CC="$folder/bin/cc" AR="$folder/bin/ar" RANLIB="$folder/bin/ranlib" CFLAGS="$flags"
  make -j "$jobs" build_libs
  make DESTDIR="$prefix" install_dev
}

build_grpc() {
  local library flags="$flags -Wno-missing-template-arg-list-after-template-kw" # newer compilers ask for what this source omits
  with_cmake -DgRPC_BUILD_TESTS=OFF -DgRPC_BUILD_GRPC_CPP_PLUGIN=OFF -DgRPC_INSTALL=OFF -DProtobuf_PROTOC_LIBRARY=none \
    -DgRPC_{ABSL,CARES,PROTOBUF,RE2,SSL,ZLIB}_PROVIDER=package
  # The other libraries double the time.
  ninja -C "$build" -j "$jobs" grpc++ grpc++_reflection
  mkdir -p "$prefix/lib"
  cp -r "$source/include" "$prefix/"
  for library in grpc++ grpc++_reflection grpc gpr upb address_sorting; do
    cp "$build/lib$library.a" "$prefix/lib/"
  done
}

build_fmtlib() { with_cmake -DFMT_TEST=OFF -DFMT_DOC=OFF && install_ninja; }
build_spdlog() { with_cmake -DSPDLOG_FMT_EXTERNAL=ON -DSPDLOG_BUILD_EXAMPLE=OFF && install_ninja; }
build_nanopb() { with_cmake -Dnanopb_BUILD_GENERATOR=OFF && install_ninja; }
# Without TLS: amemd serves figures as plain HTTP.
build_civetweb() {
  with_cmake -DCIVETWEB_BUILD_TESTING=OFF -DCIVETWEB_ENABLE_CXX=ON -DCIVETWEB_ENABLE_SERVER_EXECUTABLE=OFF -DCIVETWEB_ENABLE_SSL=OFF
  install_ninja
}
build_prometheus-cpp() { with_cmake -DENABLE_PUSH=OFF -DENABLE_TESTING=OFF -DENABLE_COMPRESSION=OFF -DUSE_THIRDPARTY_LIBRARIES=OFF && install_ninja; }

# What decides what a library becomes: the compiler and all that was built before it, too.
key=''
# library NAME: builds it from the source package of that name, unless it is here.
library() {
  local name=$1 version
  local source=$folder/work/$name/source build=$folder/work/$name/build prefix=$folder/packages/$name
  fetch "$name"
  version=$(<"$folder/sources/$name.version")
  key=$(sha256sum <<<"$key $version $flags $(declare -f "build_$name" with_cmake)")
  [[ $(cat "$prefix/key" 2>/dev/null) != "$key" ]] || return 0
  say "$name $version"
  rm -rf "$folder/work/$name" "$prefix"
  mkdir -p "$folder/work/$name" "$prefix"
  # Its signature may be of a key that is not here. apt has checked it.
  (
    dpkg-source --no-check -x "$folder/sources/${name}_${version#*:}.dsc" "$source"
    "build_$name"
  ) >"$folder/work/log" 2>&1 </dev/null &
  wait $! || { # in a condition the first error would not end it
    tail -n 60 "$folder/work/log" >&2
    die "$name does not build, see above"
  }
  cp "$source/debian/copyright" "$prefix/copyright"
  echo "$version" >"$prefix/VERSION"
  echo "$key" >"$prefix/key"
  rm -rf "$folder/work/$name"
}

# headers PACKAGE: of a library that has nothing else, from the package that is installed here.
headers() {
  local package=$1 prefix=$folder/packages/$1 file
  rm -rf "$prefix"
  mkdir -p "$prefix"
  dpkg -L "$package" | grep '^/usr/include/' | while read -r file; do
    if [[ -f $file ]]; then install -D -m 644 "$file" "$prefix/${file#/usr/}"; fi
  done
  cp "/usr/share/doc/$package/copyright" "$prefix/copyright"
  dpkg-query -W -f='${Version}\n' "$package" >"$prefix/VERSION"
}

compiler
key=$(cat "$folder"/{bin/cc,toolchain.cmake,glibc} "$folder/packages/zig-compiler-rt/VERSION" | sha256sum)
for name in zlib abseil protobuf c-ares re2 openssl grpc fmtlib spdlog nanopb civetweb prometheus-cpp; do
  library $name
done
for name in libcli11-dev nlohmann-json3-dev libtomlplusplus-dev; do
  headers $name
done
# What is generated must be of the version that it is compiled with.
[[ $(<"$folder/packages/protobuf/VERSION") == "$(protoc --version | grep -o '[0-9.]*$')"* ]] ||
  die "protoc here is $(protoc --version), and the library $(<"$folder/packages/protobuf/VERSION")"
say "$folder is complete"
