#!/usr/bin/env bash
# What root.sh does inside of the fresh root, as root: the packages lie in /packages.
set -euo pipefail

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

step() { echo "root.sh: $*"; }

# run LOG COMMAND...: the log is shown when it fails.
run() {
  local log=/packages/$1.log
  shift
  timeout 900 "$@" >"$log" 2>&1 </dev/null || {
    tail -n 40 "$log" >&2
    fail "$*"
  }
}

# Every file of the root with what is in it. Not: what apt, dpkg and the loader note of any installation, copies that passwd makes of
# its files, and devices.
snapshot() {
  find / -xdev \( -path /packages -o -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp -o -path /var/cache -o -path /var/log \
    -o -path /var/lib/apt -o -path /var/lib/dpkg -o -path /etc/ld.so.cache -o -path '/etc/*-' -o -path /root \) -prune -o -print |
    sort | while read -r path; do
    if [[ -f $path && ! -L $path ]]; then
      sha256sum "$path"
    else
      echo "$path"
    fi
  done
}

names=(amemd libamem-shim libamem-client0 libamem-client-dev python3-amem amem-sim-driver)

step "what the packages depend on"
run update apt-get update
# All of it, but for the packages themselves: what they leave behind is not theirs. python3-grpcio is for the test of Python.
mapfile -t needed < <(apt-get install --simulate --no-install-recommends /packages/*.deb python3-grpcio python3-protobuf |
  awk '$1 == "Inst" {print $2}' | grep -Evx "$(IFS='|'; echo "${names[*]}")")
run needed apt-get install --yes --no-install-recommends "${needed[@]}"
snapshot >/packages/before

# systemd is not running here. Its part of the scripts is played: what they ask of it is written down. apt has a path of its own.
mkdir -p /run/systemd/system
cat >/usr/local/bin/systemctl <<'END'
#!/bin/sh
echo "$*" >>/packages/systemctl
case $* in
  *--root*) exec /usr/bin/systemctl "$@" ;; # links alone, which needs nobody
  *is-enabled*) echo enabled ;;
  *ActiveState*amemd.service) [ ! -e /packages/pid ] || echo active ;;
  *MainPID*) cat /packages/pid ;;
esac
END
chmod +x /usr/local/bin/systemctl
printf 'DPkg::Path "%s";\n' "$PATH" >/packages/apt.conf
export APT_CONFIG=/packages/apt.conf

step "installation"
run install apt-get install --yes --no-install-recommends /packages/*.deb
grep -q 'start amemd.service' /packages/systemctl || fail "the installation has not started the service"
[[ -L /etc/systemd/system/multi-user.target.wants/amemd.service ]] || fail "the service is not enabled"
getent group amem >/dev/null || fail "there is no group amem"
found=$(ldconfig -p)
! grep -E 'libcuda|libnvidia-ml|libamem_shim' <<<"$found" || fail "the loader finds the simulated driver or the shim by itself"
grep -q libamem_client.so.0 <<<"$found" || fail "the loader does not find libamem_client"
for package in "${names[@]}"; do
  [[ -s /usr/share/doc/$package/copyright ]] || fail "$package has no copyright"
done
amemd --check-config >/packages/config || fail "amemd --check-config"
amemd --version
amem-holder --version
amem-checkpoint --version
amem-llm-d --version
[[ -e /lib/systemd/system/amem-llm-d.service && ! -e /etc/systemd/system/multi-user.target.wants/amem-llm-d.service ]] ||
  fail "amem-llm-d.service is not there, or the installation has enabled it"
grep -q '^ExecStart=/usr/bin/amem-holder --socket' /lib/systemd/system/amem-holder.service || fail "the holder's service starts another program"

step "amemd without a driver says what it lacks"
if timeout 20 amemd --pool-size 0 >/packages/nodriver.log 2>&1; then fail "amemd runs without a driver"; fi
grep -qi 'libcuda' /packages/nodriver.log || { cat /packages/nodriver.log; fail "amemd does not say that there is no driver"; }

step "demonstration"
run demo amem-demo
tail -n 1 /packages/demo.log
run demo-turns amem-demo --turns
tail -n 1 /packages/demo-turns.log

step "Python"
python3 - <<'END' || fail "the package amem"
import importlib.metadata, os, amem
variables = amem.environment("train", "heap", base={})
assert os.path.realpath(variables["LD_PRELOAD"]) == "/usr/lib/amem/libamem_shim.so", variables
[found] = [each for each in importlib.metadata.distributions() if any(point.value == "amem.vllm:register" for point in each.entry_points)]
points = found.entry_points
assert sorted((each.group, each.value) for each in points) == [
    ("sglang.srt.plugins", "amem.sglang:register"), ("vllm.general_plugins", "amem.vllm:register")], points
assert amem.__version__ == found.version
END

step "upgrade and removal beside a broker with a group that is paused"
export LD_LIBRARY_PATH=/usr/lib/amem/sim AMEM_SIM_DIR=/packages/node
mkdir -p /packages/node /packages/meet
amemd --pool-size 256MiB >/packages/amemd.log 2>&1 &
broker=$!
echo $broker >/packages/pid
for _ in $(seq 300); do
  if amemctl status >/dev/null 2>&1; then break; fi
  sleep 0.1
done
mkfifo /packages/commands
amemctl run --group train --required -- /usr/lib/amem/sim/amem-workload --ranks 1 --rank 0 --rendezvous /packages/meet --communicators 1 \
  --allocations 8 --bytes 2097152 </packages/commands >/packages/answers 2>/packages/rank.log &
exec 3>/packages/commands
# said N: the workload has answered N times.
said() {
  for _ in $(seq 300); do
    if [[ $(wc -l </packages/answers) -ge $1 ]]; then return 0; fi
    sleep 0.1
  done
  cat /packages/rank.log >&2
  fail "the workload did not answer"
}
said 1
echo checksum >&3 && said 2
amemctl pause train >/dev/null
python3 - <<'END' || fail "amem.Broker"
import amem
with amem.Broker() as broker:
    groups = broker.groups()
assert [group.name for group in groups] == ["train"], groups
END
: >/packages/systemctl
unset LD_LIBRARY_PATH
run upgrade apt-get install --yes --reinstall --no-install-recommends /packages/*.deb
if grep -Eq '(restart|stop) ' /packages/systemctl; then cat /packages/systemctl; fail "an upgrade has stopped the service"; fi
grep -q 'the broker that runs goes on as version' /packages/upgrade.log || fail "the upgrade does not say that the broker goes on"
: >/packages/systemctl
# apt would first remove what depends on it.
if dpkg --force-depends --remove amemd </dev/null >/packages/refused.log 2>&1; then fail "amemd was removed beside a group that is paused"; fi
grep -q 'a removal would lose the memory of these groups: train\.' /packages/refused.log || { cat /packages/refused.log; fail "the removal does not say why not"; }
if grep -Eq '(restart|stop|disable) ' /packages/systemctl; then cat /packages/systemctl; fail "a removal that was refused has stopped the service"; fi
[[ $(dpkg-query -W -f '${db:Status-Status}' amemd) == installed ]] || fail "a removal that was refused has left amemd in pieces"
kill -0 "$broker" || fail "the upgrade has ended the broker"
amemctl resume train >/dev/null || fail "the group that was paused before the upgrade does not come back"
echo checksum >&3 && said 3
[[ $(sed -n 2p /packages/answers) == "$(sed -n 3p /packages/answers)" ]] || {
  cat /packages/answers /packages/rank.log /packages/amemd.log >&2
  fail "the bytes are not what they were before the upgrade"
}
echo exit >&3
exec 3>&-
kill "$broker"
wait
rm /packages/pid

step "removal and purge"
: >/packages/systemctl
run remove apt-get remove --yes "${names[@]}"
for units in amemd.service 'amem-llm-d.service amem-holder.socket amem-holder.service'; do
  grep -q "stop $units" /packages/systemctl || fail "the removal has not stopped $units"
done
[[ -f /etc/amem/amemd.toml ]] || fail "a removal has taken the configuration"
run purge dpkg --purge "${names[@]}" # apt does not know those of which nothing is left
rm -r /usr/local/bin/systemctl /run/systemd/system
snapshot >/packages/after
diff /packages/before /packages/after || fail "the purge has left, or taken, the above"
