#!/usr/bin/env bash
# Installs what amem needs to be built and tested on Debian 12 or Ubuntu 24.04, and says what and why. Does nothing, quickly, when
# everything is there. See --help.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
headers=$root/build/headers

# One package a line: its name, and what it is needed for. Every name exists in both distributions.
packages() {
  cat <<'END'
build-essential          the C++20 compiler, with the sanitizers' runtimes
cmake                    the build
ninja-build              the build
pkg-config               finds gRPC and toml++
protobuf-compiler        generates the control protocol
libprotobuf-dev          the control protocol
protobuf-compiler-grpc   generates the control protocol's service
libgrpc++-dev            the control socket (amemd, amemctl, libamem_client)
nanopb                   generates the session protocol
libnanopb-dev            the session protocol, in amemd and in the shim
python3-protobuf         nanopb's generator is written in Python
libspdlog-dev            amemd's log
libfmt-dev               text formatting under spdlog
libcli11-dev             command lines
nlohmann-json3-dev       JSON of amemctl and libamem_client
prometheus-cpp-dev       metrics for Prometheus
libcivetweb-dev          the HTTP server that they are read from
libtomlplusplus-dev      amemd.toml
libgtest-dev             tests
libgmock-dev             tests
libbenchmark-dev         micro-benchmarks
python3                  the test runners, deploy/try.sh, manual pages and completions
python3-pytest           integration tests
python3-grpcio           tests of the Python package
python3-cryptography     certificates that amem.ray makes, in its tests
python3-jupyter-client   starts a notebook's kernel in their tests
python3-ipykernel        that kernel
mypy                     checks the types of the Python package and of its tests
pydocstyle               checks the form of its docstrings
python3-pip              builds the Python package; fetches the CUDA and NCCL headers where there is no CUDA toolkit
python3-venv             where Python programs get the package amem, and deploy/wheel.sh and the checks their tools
ca-certificates          headers, as above
prometheus               reads the metrics in the tests
procps                   the tests look at processes with ps
curl                     the examples ask their servers
openssl                  certificates in the integration tests
gnupg                    signs a release, and reads its key
sqv                      verifies its signature
patchelf                 bundles the GPU tests for another machine
mkdocs                   the documentation as a site
mkdocs-material          how that looks
mkdocstrings             its page of the Python API
mkdocstrings-python-handlers reads the Python package for it
black                    lays out signatures there
abigail-tools            compares the ABI of libamem_client
file                     packages: finds what is a library
debhelper                packages: the usual parts of their scripts
END
  if [[ $dev == 1 ]]; then
    cat <<'END'
ccache                   compiles the second time faster
clang                    builds the fuzz targets
libclang-rt-dev          clang's sanitizers and libFuzzer, which it only recommends
llvm                     names functions in what they find and cover
clang-format             checks the layout of the source
clang-tidy               static checks
shellcheck               checks the scripts
jq                       the chart's hook reads the API server's answers with it
lintian                  checks the packages
logrotate                checks their file for it
zsh                      what it completes after amemctl
fish                     likewise
mmdebstrap               fresh roots to try the packages in
musl-tools               a program with another C library, to preload the shim into
rpm                      packages for RHEL 9
END
  fi
}

usage() {
  cat <<'END'
Usage: deploy/deps.sh [--dev] [--list] [--headers]
Installs what amem is built and tested with: packages of Debian 12 or Ubuntu 24.04 (as root, or with sudo) and, where
there is no CUDA 13 toolkit with NCCL, their headers from NVIDIA's Python packages of deploy/locks, into build/headers.
  --dev    also the tools for working on amem: ccache, clang, clang-format, clang-tidy, shellcheck, jq, lintian, mmdebstrap,
           musl-tools, rpm
  --list   only prints the packages and what each is for
  --headers  only fetches these headers, even if a toolkit has them: for releases
END
}

say() { printf 'deps: %s\n' "$*"; }
die() {
  printf 'deps: error: %s\n' "$*" >&2
  exit 1
}

installed() {
  [[ $(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]
}

install_packages() {
  local name why missing=()
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    die "no dpkg or apt-get here. This script knows Debian 12 and Ubuntu 24.04. On another system install what" \
      "deploy/deps.sh --list names, then give --no-deps to deploy/try.sh and tests/run.sh."
  fi
  while read -r name why; do
    if ! installed "$name"; then
      missing+=("$name")
      printf 'deps: missing %-24s %s\n' "$name" "$why"
    fi
  done < <(packages)
  if [[ ${#missing[@]} -eq 0 ]]; then
    say "all packages are installed"
    return
  fi
  local as_root=()
  if [[ $(id -u) -ne 0 ]]; then
    command -v sudo >/dev/null || die "run as root, or install sudo: the packages above have to be installed"
    as_root=(sudo)
  fi
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300
    -o Acquire::Retries=3)
  say "installing ${#missing[@]} packages with apt-get"
  timeout 300 "${apt[@]}" -qq update </dev/null || say "apt-get update failed; going on with the package lists that are here"
  timeout 1800 "${apt[@]}" -qq -y --no-install-recommends install "${missing[@]}" </dev/null >"$log" 2>&1 || {
    tail -n 30 "$log" >&2
    die "apt-get could not install the packages above (its last lines are shown). On Ubuntu the 'universe' component" \
      "has to be on. Needed: Debian 12 or Ubuntu 24.04, or newer."
  }
  say "packages installed"
}

# cuda_version DIR: CUDA_VERSION of the headers in DIR, 0 when they are not all there.
cuda_version() {
  local header
  while read -r header; do
    if [[ ! -r $1/$header ]]; then
      echo 0
      return
    fi
  done < <(grep -v '^#' "$root/cmake/cuda_headers.txt")
  awk '$1 == "#define" && $2 == "CUDA_VERSION" {print $3; found = 1; exit} END {if (!found) print 0}' "$1/cuda.h"
}

# nccl_minor DIR: 28 for NCCL 2.28, 0 when there is no nccl.h of NCCL 2.
nccl_minor() {
  if [[ -r $1/nccl.h ]]; then
    awk '$2 == "NCCL_MAJOR" {major = $3} $2 == "NCCL_MINOR" {minor = $3} END {print major == 2 ? minor + 0 : 0}' \
      "$1/nccl.h"
  else
    echo 0
  fi
}

# The places where cmake/AmemHeaders.cmake looks.
find_headers() {
  local dir
  cuda_found='' nccl_found=''
  for dir in "$headers/nvidia/cu13/include" ${CUDA_HOME:+"$CUDA_HOME/include"} /usr/local/cuda/include \
    /usr/local/cuda/targets/x86_64-linux/include /usr/local/include /usr/include; do
    if [[ $(cuda_version "$dir") -ge 13000 ]]; then
      cuda_found=$dir
      break
    fi
  done
  for dir in "$headers/nvidia/nccl/include" ${NCCL_HOME:+"$NCCL_HOME/include"} /usr/local/cuda/include \
    /usr/local/include /usr/include; do
    if [[ $(nccl_minor "$dir") -ge 27 ]]; then
      nccl_found=$dir
      break
    fi
  done
}

fetch_headers() {
  find_headers
  if [[ $only_headers == 1 ]]; then
    cuda_found='' nccl_found=''
  fi
  if [[ -n $cuda_found && -n $nccl_found ]]; then
    say "headers: CUDA in $cuda_found, NCCL in $nccl_found"
    return
  fi
  [[ $(uname -m) == x86_64 ]] || die "amem runs on x86-64 only for now"
  local wanted=() locks=() python=python3
  # nccl.h includes cuda_runtime.h and cuda_fp16.h, which include crt/ and nv/target of two other packages. The last one has
  # cudaProfiler.h.
  if [[ -z $cuda_found ]]; then
    wanted+=("CUDA 13")
    locks+=("$root/deploy/locks/cuda.txt")
  fi
  if [[ -z $nccl_found ]]; then
    wanted+=("NCCL 2.27 or newer")
    locks+=("$root/deploy/locks/nccl.txt")
  fi
  local wheels
  wheels=$(grep --no-filename --only-matching '^[^# ]*' "${locks[@]}" | paste -sd ' ')
  [[ $only_headers == 1 ]] ||
    say "no folder here has all headers (cmake/cuda_headers.txt) of: $(IFS=,; echo "${wanted[*]}"). Taking the include folders out of NVIDIA's Python packages"
  say "$wheels (up to 200 MB to download; nothing is installed)"
  "$python" -m pip --version >/dev/null 2>&1 || python=/usr/bin/python3
  timeout 1800 "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --require-hashes --dest "$work/wheels" "${locks[@]/#/--requirement=}" </dev/null >"$log" 2>&1 || {
    tail -n 20 "$log" >&2
    die "pip could not download $wheels as deploy/locks has them (its last lines are shown). Either make a Python package index reachable," \
      "or install the CUDA 13 toolkit and NCCL's development files."
  }
  mkdir -p "$headers"
  # Unpacked beside their place and moved there whole: a run that is cut off leaves nothing half done.
  "$python" - "$work/wheels" "$work/unpacked" <<'END'
import glob, re, sys, zipfile
wanted = re.compile(r"nvidia/(nccl/include|cu13/include/(?!cccl/|thrust/|cub/))")
for wheel in glob.glob(sys.argv[1] + "/*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(sys.argv[2], [name for name in archive.namelist() if wanted.match(name)])
END
  local part
  for part in cu13 nccl; do
    if [[ -d $work/unpacked/nvidia/$part ]]; then
      mkdir -p "$headers/nvidia"
      rm -rf "${headers:?}/nvidia/$part"
      mv "$work/unpacked/nvidia/$part" "$headers/nvidia/$part"
    fi
  done
  find_headers
  [[ -n $cuda_found && -n $nccl_found ]] || die "the packages did not hold the headers expected; look into $headers"
  say "headers: CUDA in $cuda_found, NCCL in $nccl_found"
}

dev=0 list=0 only_headers=0
for argument in "$@"; do
  case $argument in
    --dev) dev=1 ;;
    --list) list=1 ;;
    --headers) only_headers=1 ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      usage >&2
      die "unknown argument: $argument"
      ;;
  esac
done
if [[ $list == 1 ]]; then
  packages
  exit 0
fi

mkdir -p "$root/build"
work=$(mktemp -d "$root/build/deps.XXXXXX") # beside build/headers, so that the move above is a rename
trap 'rm -rf "$work"' EXIT
log=$work/log

[[ $only_headers == 1 ]] || install_packages
fetch_headers
