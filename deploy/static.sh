#!/usr/bin/env bash
# Builds what amem links from Debian's sources, as static libraries for an old glibc. See --help.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
glibc=$(<"$root/deploy/static/glibc")

lock=$root/deploy/static/lock

usage() {
  cat <<END
Usage: deploy/static.sh [FOLDER]
       deploy/static.sh --lock [FOLDER]
Builds gRPC, Protocol Buffers, abseil, c-ares, re2, OpenSSL, zlib, nanopb, spdlog, fmt, CivetWeb and prometheus-cpp from the sources
of Debian that deploy/static/lock names, with the compiler of the Python package ziglang, as static libraries that need glibc $glibc or
newer. FOLDER (default: \$AMEM_STATIC, else build/static) keeps sources, compiler and libraries. A source that is there already has to
be that of the lock file, too. A second run builds only what has changed. The first takes about 40 minutes of one core. Builds of amem
use FOLDER/toolchain.cmake: deploy/wheel.sh and deploy/packages.sh take --static. Needs what deploy/deps.sh installs, Debian's archive
and a Python package index.
  --lock   instead writes deploy/static/lock anew, for the newest versions that Debian's archive has: for security fixes
Environment: JOBS  how many files to compile at a time; default: one for each core
END
}

say() { printf 'static: %s\n' "$*"; }
die() {
  printf 'static: error: %s\n' "$*" >&2
  exit 1
}

renew=0
case ${1:-} in
  --lock)
    renew=1
    shift
    ;;
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

# ---- the compiler ----
compiler() {
  local tool
  if ! cmp --quiet "$root/deploy/locks/zig.txt" "$folder/zig/lock"; then
    say "fetching the compiler"
    rm -rf "$folder/zig"
    "$root/deploy/locks/install.sh" zig "$folder/zig"
    ln -s "$(echo "$folder"/zig/lib/python3*/site-packages/ziglang/zig)" "$folder/zig/bin/ziglang"
    cp "$root/deploy/locks/zig.txt" "$folder/zig/lock"
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
# apt TOOL ARGUMENT...: apt-get or apt-cache with lists of its own, of sources, from where this machine gets Debian's packages.
apt() {
  local tool=$1 apt=$folder/sources/apt
  shift
  "$tool" -o APT::Sandbox::User=root -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$apt/parts" \
    -o Dir::State::Lists="$apt/lists" -o Dir::Cache="$apt/cache" -o Acquire::Retries=3 "$@"
}

read_lists() {
  local entry
  rm -rf "$folder/sources/apt"
  mkdir -p "$folder/sources/apt"/{parts,lists/partial,cache/archives/partial}
  # shellcheck disable=SC2016  # it is apt that fills it in
  apt-get indextargets --format '$(SOURCESENTRY)' "Created-By: Packages" "Origin: Debian" | sed 's/:[0-9]*$//' | sort -u |
    while read -r entry; do
      sed 's/^Types:.*/Types: deb deb-src/; s/^deb /deb-src /p; s/^deb-src /deb /' "$entry" >"$folder/sources/apt/parts/${entry##*/}"
    done
  apt apt-get -qq update </dev/null || die "apt-get could not read the lists of Debian's archive"
  lists=1
}

# file_of KIND NAME VERSION: the file that the lock file has the checksum of. A .dsc has the checksums of its other files.
file_of() {
  case $1 in
    source) echo "$folder/sources/$2_${3#*:}.dsc" ;;
    package) echo "$folder/sources/$2_${3#*:}.deb" ;;
    *) die "deploy/static/lock: $1 is neither source nor package" ;;
  esac
}

# download KIND NAME VERSION: from Debian's archive, which apt checks. Nothing stays of what has not come whole.
download() {
  local new=$folder/sources/new
  rm -rf "$new"
  mkdir "$new"
  (
    cd "$new" || exit 1
    case $1 in
      source) apt apt-get -qq --download-only source "$2=$3" ;;
      package) apt apt-get -qq download "$2=$3" && mv ./*.deb "$(basename "$(file_of "$@")")" ;;
    esac
  ) </dev/null >"$folder/work/log" 2>&1 && mv "$new"/* "$folder/sources/"
}

# fetch KIND NAME VERSION CHECKSUM
fetch() {
  local file
  file=$(file_of "$@")
  if [[ ! -e $file ]]; then
    [[ $lists == 1 ]] || read_lists
    download "$@" || {
      tail -n 5 "$folder/work/log" >&2
      die "no $1 $2 $3, which deploy/static/lock names, from Debian's archive (apt's error is shown). If the archive has it no longer," \
        "snapshot.debian.org has: put its files into $folder/sources, this one as ${file##*/}. Or lock newer ones: deploy/static.sh --lock"
    }
  fi
  sha256sum --check --status <<<"$4  $file" ||
    die "$file is not what deploy/static/lock names, whose SHA-256 is $4. Remove it, and it is fetched again"
  [[ $1 == package ]] || (cd "$folder/sources" && sed -n '/^Checksums-Sha256:/,/^[^ ]/s/^ \([0-9a-f]*\) [0-9]* /\1  /p' "$file" |
    sha256sum --check --quiet --strict >&2) || die "files of $file are not what it names, see above. Remove it, and all are fetched again"
}

renew() {
  local kind name version show
  read_lists
  sed '/^[^#]/d' "$lock" >"$folder/work/lock"
  grep '^[^#]' "$lock" | while read -r kind name _; do
    show=show
    [[ $kind == package ]] || show=showsrc
    for version in $(apt apt-cache "$show" "$name" | sed -n 's/^Version: //p' | sort -rVu) none; do
      [[ $version != none ]] || die "Debian's archive has no whole $kind $name"
      if download "$kind" "$name" "$version"; then break; fi
      say "the archive lacks a part of $name $version"
    done
    echo "$kind $name $version $(sha256sum "$(file_of "$kind" "$name" "$version")" | cut -d ' ' -f 1)" >>"$folder/work/lock"
  done
  mv "$folder/work/lock" "$lock"
  say "deploy/static/lock is new. Read its changes, then commit it"
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
  CC=cc AR=ar RANLIB=ranlib CFLAGS=$flags ./configure --static --prefix="$prefix"
  make -j "$jobs" install
}

build_abseil() { with_cmake -DABSL_PROPAGATE_CXX_STD=ON && install_ninja; }
build_protobuf() { with_cmake -Dprotobuf_BUILD_TESTS=OFF -Dprotobuf_BUILD_PROTOC_BINARIES=OFF && install_ninja; }
build_c-ares() { with_cmake -DCARES_STATIC=ON -DCARES_SHARED=OFF -DCARES_BUILD_TOOLS=OFF && install_ninja; }
# Debian's source has no tables: they are made of Unicode's, which are a package.
build_re2() {
  local table
  cd "$source"
  sed -i "s|^_UNICODE_DIR = .*|_UNICODE_DIR = '$folder/packages/unicode-data/unicode'|" re2/unicode.py
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
    CC=cc AR=ar RANLIB=ranlib CFLAGS="$flags" # which are in the library
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
# part KIND NAME VERSION CHECKSUM: builds or unpacks it, unless it is here.
part() {
  local kind=$1 name=$2 version=$3
  local source=$folder/work/$name/source build=$folder/work/$name/build prefix=$folder/packages/$name
  fetch "$@"
  key=$(sha256sum <<<"$key $* $flags $(declare -f "${kind}_part" "build_$name" with_cmake)")
  [[ $(cat "$prefix/key" 2>/dev/null) != "$key" ]] || return 0
  say "$name $version"
  rm -rf "$folder/work/$name" "$prefix"
  mkdir -p "$folder/work/$name" "$prefix"
  "${kind}_part" "$(file_of "$@")" >"$folder/work/log" 2>&1 </dev/null &
  wait $! || { # in a condition the first error would not end it
    tail -n 60 "$folder/work/log" >&2
    die "$name does not build, see above"
  }
  echo "$version" >"$prefix/VERSION"
  echo "$key" >"$prefix/key"
  rm -rf "$folder/work/$name"
}

source_part() {
  # Its signature may be of a key that is not here. Its checksums are checked.
  dpkg-source --no-check -x "$1" "$source"
  cp "$source/debian/copyright" "$prefix/copyright"
  echo source >"$prefix/ARCHITECTURE"
  SOURCE_DATE_EPOCH=$(dpkg-parsechangelog -l "$source/debian/changelog" -S Timestamp)
  export SOURCE_DATE_EPOCH PATH=$folder/bin:$PATH
  "build_$name"
}

# Of a library that has only headers, and of what tables are made of.
package_part() {
  local folder
  dpkg-deb -x "$1" "$source"
  cp "$source/usr/share/doc/$name/copyright" "$prefix/copyright"
  dpkg-deb -f "$1" Architecture >"$prefix/ARCHITECTURE"
  for folder in include share/unicode; do
    [[ ! -d $source/usr/$folder ]] || cp -r "$source/usr/$folder" "$prefix/"
  done
}

lists=0
if [[ $renew == 1 ]]; then
  renew
  exit 0
fi
compiler
key=$(cat "$folder"/{bin/cc,toolchain.cmake,glibc,zig/lock} | sha256sum)
wanted=(llvm-libcxx zig-compiler-rt)
while read -r -u 3 kind name version checksum; do
  part "$kind" "$name" "$version" "$checksum"
  wanted+=("$name")
done 3< <(grep '^[^#]' "$lock")
for name in $(cd "$folder/packages" && echo *); do # what toolchain.cmake would find
  [[ " ${wanted[*]} " == *" $name "* ]] || rm -rf "$folder/packages/$name"
done
# What is generated must be of the version that it is compiled with.
[[ $(<"$folder/packages/protobuf/VERSION") == "$(protoc --version | grep -o '[0-9.]*$')"* ]] ||
  die "protoc here is $(protoc --version), and the library $(<"$folder/packages/protobuf/VERSION")"
say "$folder is complete"
