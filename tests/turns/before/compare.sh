#!/usr/bin/env bash
# Plays traces on the form of turns of a commit and on that of the working tree, side by side:
# tests/turns/before/compare.sh REVISION BUILD_DIR [ARGUMENTS of turn_traces]. It ends with the first decision that differs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
revision=$1 build=$(realpath "$2")
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/before"
for file in turns.h turns.cpp terms.h terms.cpp longest_wait.h longest_wait.cpp; do
  git show "$revision:daemon/turns/$file" |
    sed 's/^namespace amem {/namespace amem::old {/; s|#include "daemon/turns/|#include "before/|' >"$work/before/$file"
done
flags=(-std=c++20 -O2 -I "$work" -I . -isystem "$build/generated")
for file in turns terms longest_wait; do
  c++ "${flags[@]}" -c "$work/before/$file.cpp" -o "$work/$file.o"
done
c++ "${flags[@]}" -include tests/turns/before/both.h -DAMEM_TURNS_UNDER_TEST tests/turns/{main,player,rivals,trace}.cpp \
  daemon/turns/*.cpp "$work"/*.o daemon/base/units.cpp common/{job,protocol}.cpp -lfmt -o "$work/compare"
"$work/compare" "$@"
