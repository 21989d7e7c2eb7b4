#!/bin/bash
# cc, c++, ar and ranlib of the folder that ../static.sh makes: zig's, for an old glibc. Takes away what zig's linker does not know and
# need not know: its C++ library hides its symbols, and version scripts hide the rest.
folder=$(dirname "$(dirname "$(realpath -s "$0")")")
tool=${0##*/}
arguments=() before=''
for argument in "$@"; do
  case $before$argument in
    -Wl,--exclude-libs,ALL | --exclude-libsALL | -static-libstdc++ | -static-libgcc) ;;
    -Xlinker) before=-Xlinker && continue ;;
    -Xlinker--exclude-libs) before=--exclude-libs && continue ;;
    --exclude-libs-Xlinker) continue ;;
    -Xlinker-Bsymbolic-functions) arguments+=(-Xlinker -Bsymbolic) ;;
    -Xlinker*) arguments+=(-Xlinker "$argument") ;;
    *) arguments+=("$argument") ;;
  esac
  before=''
done
export ZIG_GLOBAL_CACHE_DIR=$folder/work/zig ZIG_LOCAL_CACHE_DIR=$folder/work/zig
case $tool${1:-} in
  cc-dumpmachine) echo x86_64-linux-gnu ;; # asked by CivetWeb, and unknown to zig
  ar* | ranlib*) exec "$folder/zig/bin/ziglang" "$tool" "$@" ;;
  # Messages that name a source name it alike wherever the folder is.
  *) exec "$folder/zig/bin/ziglang" "$tool" "-ffile-prefix-map=$folder/=" -target "x86_64-linux-gnu.$(<"$folder/glibc")" "${arguments[@]}" ;;
esac
