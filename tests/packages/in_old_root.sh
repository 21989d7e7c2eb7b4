#!/usr/bin/env bash
# What old_glibc.sh does inside of the old root: in_old_root.sh NAME BIN SHIM SIM. A broker of the programs in BIN, with the simulated
# driver in SIM, pauses and resumes a rank that the shim SHIM is preloaded into.
set -euo pipefail

name=$1 bin=$2 shim=$3
export LD_LIBRARY_PATH=$4 AMEM_SIM_DIR=/files/$name-node AMEM_RUNTIME_DIR=/files/$name-run

fail() {
  echo "FAILED: $name: $*" >&2
  tail -n 20 /files/"$name"-*.log >&2
  exit 1
}

mkdir "$AMEM_SIM_DIR" "$AMEM_RUNTIME_DIR" "/files/$name-meet"
"$bin/amem-holder" --version
"$bin/amem-checkpoint" --version
"$bin/amemd" --pool-size 256MiB >"/files/$name-amemd.log" 2>&1 &
broker=$!
for _ in $(seq 300); do
  if "$bin/amemctl" status >/dev/null 2>&1; then break; fi
  sleep 0.1
done
mkfifo "/files/$name-commands"
AMEM_SHIM=$shim "$bin/amemctl" run --group train --required -- "$LD_LIBRARY_PATH/amem-workload" --ranks 1 --rank 0 \
  --rendezvous "/files/$name-meet" --communicators 1 --allocations 8 --bytes 2097152 <"/files/$name-commands" >"/files/$name-answers" \
  2>"/files/$name-rank.log" &
exec 3>"/files/$name-commands"
# said N: the workload has answered N times.
said() {
  for _ in $(seq 300); do
    if [[ $(wc -l <"/files/$name-answers") -ge $1 ]]; then return 0; fi
    sleep 0.1
  done
  fail "the workload did not answer"
}
said 1
grep -q "$shim" /proc/*/maps 2>/dev/null || fail "no process has $shim"
echo checksum >&3 && said 2
"$bin/amemctl" pause train >"/files/$name-pause.log" 2>&1 || fail "pause"
"$bin/amemctl" groups | grep -q paused || fail "the group is not paused"
"$bin/amemctl" resume train >"/files/$name-resume.log" 2>&1 || fail "resume"
echo checksum >&3 && said 3
[[ $(sed -n 2p "/files/$name-answers") == "$(sed -n 3p "/files/$name-answers")" ]] || fail "the bytes are not what they were before the pause"
echo exit >&3
exec 3>&-
kill "$broker"
wait
echo "$name: a pause and a resume, with the same bytes"
