#!/usr/bin/env bash
# Exit status 0: no program or library of the build tree contains the form, the place or the phase for tests, nor a fault point.
# absent.sh BUILD, where BUILD was configured with -DAMEM_FAULT_POINTS=OFF.
set -euo pipefail

build=${1:?absent.sh BUILD}
status=0
for file in bin/amemd bin/amemctl bin/amem-holder bin/amem-checkpoint lib/libamem_shim.so; do
  [[ -f $build/$file ]] || { echo "absent.sh: $build/$file is not there" >&2; exit 2; }
  found=$(strings -a "$build/$file" | grep -E 'AMEM_TEST_PHASE|^pageable$|^xor$|amemSimFaultPoint|XorCopier|PageableView' || true)
  [[ -z $found ]] && continue
  printf 'absent.sh: %s contains what only tests need:\n%s\n' "$file" "$found" >&2
  status=1
done
exit $status
