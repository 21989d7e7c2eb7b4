#!/usr/bin/env bash
# What systemd.sh does inside of the root that systemd has booted, as root: the packages lie in /packages.
set -euo pipefail

fail() {
  echo "FAILED: $*" >&2
  journalctl --no-pager --lines 60 --unit amemd --unit amem-holder --unit amem-holder.socket >&2 || true
  exit 1
}

step() { echo "systemd.sh: $*"; }

# run LOG COMMAND...: the log is shown when it fails.
run() {
  local log=/packages/$1.log
  shift
  timeout 600 "$@" >"$log" 2>&1 </dev/null || {
    tail -n 40 "$log" >&2
    fail "$*"
  }
}

# eventually WHAT COMMAND...: within 20 s.
eventually() {
  local what=$1
  shift
  for _ in $(seq 200); do
    if "$@" >/dev/null 2>&1; then return 0; fi
    sleep 0.1
  done
  fail "not within 20 s: $what"
}

pid_of() { systemctl show --property MainPID --value "$1"; }
state_is() { [[ $(amemctl --json groups train | grep -o '"state":"[A-Z_]*"' | head -n 1) == "\"state\":\"GROUP_STATE_$1\"" ]]; }
# The only holder there is, in the control group of its own unit.
holder_is_its_own() {
  [[ $(pgrep -x amem-holder) == "$(pid_of amem-holder)" ]] && grep -q '/amem-holder\.service$' "/proc/$(pid_of amem-holder)/cgroup"
}
handed_over() { journalctl --unit amemd | grep -c 'info  *another holder has everything' || true; }
runs_with_another_pid() { [[ $(pid_of "$1") != 0 && $(pid_of "$1") != "$2" ]] && amemctl health; }

step "the simulated driver, in the place of NVIDIA's"
run update apt-get update
# Not installed, since the package depends on amemd, which is to come.
dpkg-deb --extract /packages/amem-sim-driver_*.deb /opt
mv /opt/usr/lib/amem/sim /opt/sim
echo /opt/sim >/etc/ld.so.conf.d/sim.conf
ldconfig
mkdir -p /etc/systemd/system/amemd.service.d
mkdir -m 1777 /srv/node
cat >/etc/systemd/system/amemd.service.d/sim.conf <<'END'
[Service]
Environment=AMEM_SIM_DIR=/srv/node AMEM_SIM_DEVICES=2 AMEM_SIM_MEMORY=96MiB AMEM_POOL_SIZE=256MiB
ReadWritePaths=/srv/node
END
export AMEM_SIM_DIR=/srv/node AMEM_SIM_DEVICES=2 AMEM_SIM_MEMORY=96MiB

step "installation"
run install apt-get install --yes --no-install-recommends /packages/libamem-shim_*.deb /packages/amemd_*.deb
eventually "amemd serves" amemctl health
chmod -R a+rwX /srv/node # the simulated driver's state is every user's
for unit in amemd.service amem-holder.socket amem-holder.service; do
  systemctl --quiet is-active "$unit" || fail "$unit is not active"
done
systemctl --quiet is-enabled amemd.service || fail "amemd is not enabled"
[[ $(stat -c %a:%U:%G /run/amem/control.sock) == 660:root:amem ]] || fail "control.sock is $(stat -c %a:%U:%G /run/amem/control.sock)"
for unit in amemd amem-holder; do
  [[ $(grep CapEff "/proc/$(pid_of $unit)/status" | tr -d '\t') == CapEff:0000000000000000 ]] || fail "$unit has powers of root's"
done
[[ $(stat -c %a /run/amem-holder) == 700 && -S /run/amem-holder/holder.sock ]] || fail "the holder's socket is not in a folder of its own"

step "20 kills one after the other, while there is no job"
began=$(date +%s%N)
for _ in $(seq 20); do
  old=$(pgrep -x amemd)
  kill -KILL "$old"
  # Killed again as soon as it has a holder, which ends with it.
  for i in $(seq 1000); do
    if new=$(pgrep -x amemd) && [[ $new != "$old" ]] && pgrep -x amem-holder >/dev/null; then break; fi
    [[ $i -lt 1000 ]] || fail "systemd has not started the next amemd and its holder"
    sleep 0.02
  done
  sleep 0.05
  # Its holder may end at any time.
  ! grep -s amemd.service "/proc/$(pgrep -x amem-holder | head -n 1)/cgroup" || fail "amemd has started a holder in its own control group"
done
echo "systemd.sh: they took $((($(date +%s%N) - began) / 1000000)) ms"
eventually "amemd serves" amemctl health
begun=$(journalctl --unit amem-holder | grep -c Started)
[[ $begun -gt 5 ]] || fail "only $begun holders were started: systemd had no reason to give up"
holder_is_its_own || fail "amemd has a holder of its own, or none"

step "a holder of 0.1.0, whose socket is in /run/amem"
cd /lib/systemd/system
sed -i 's,/run/amem-holder/,/run/amem/,; s/^DirectoryMode=.*/DirectoryMode=0755/' amem-holder.socket
sed -i 's,/run/amem-holder/,/run/amem/,; s/^RuntimeDirectory=.*/RuntimeDirectory=amem/; s/^RuntimeDirectoryMode=.*/RuntimeDirectoryMode=0755/' amem-holder.service
cd /
systemctl stop amemd amem-holder.socket amem-holder.service
rm /run/amem-holder/holder.sock
systemctl daemon-reload
systemctl start amemd
amemctl health >/dev/null || fail "amemd does not serve with a holder of 0.1.0"
holder=$(pid_of amem-holder)

step "systemd's own judgement: $(systemd-analyze security --no-pager amemd.service | tail -n 1 | sed 's/^[^A-Za-z]*//')"

step "a member of the group runs a job, and another user may not"
useradd --create-home --groups amem member
useradd --create-home stranger
mkdir -m 1777 /srv/meet
mkfifo /srv/commands
as() { setpriv --reuid "$1" --regid "$1" --init-groups --no-new-privs "${@:2}"; }
as member amemctl run --group train --required -- /opt/sim/amem-workload --ranks 1 --rank 0 --rendezvous /srv/meet --communicators 1 \
  --allocations 8 --bytes 2097152 </srv/commands >/srv/answers 2>/srv/rank.log &
exec 3>/srv/commands
answers=0
# ask COMMAND: $answer is what the workload says.
ask() {
  echo "$1" >&3
  said
}
said() {
  answers=$((answers + 1))
  for _ in $(seq 300); do
    if [[ $(wc -l </srv/answers) -ge $answers ]]; then
      answer=$(sed -n "${answers}p" /srv/answers)
      return 0
    fi
    sleep 0.1
  done
  cat /srv/rank.log >&2
  fail "the workload did not answer"
}
said
ask checksum
bytes=$answer
if as stranger amemctl groups >/dev/null 2>&1; then fail "a user outside of the group is served"; fi
# comes_back: the group, which is paused, has the bytes that it had.
comes_back() {
  eventually "the group is back, and paused" state_is PAUSED
  eventually "its rank is back, too" as member amemctl resume train
  ask checksum
  [[ $answer == "$bytes" ]] || fail "$1: the bytes are not what they were"
  as member amemctl pause train >/dev/null
}
as member amemctl pause train >/dev/null

step "upgrade beside a holder of 0.1.0"
holder_has_everything() { [[ $(handed_over) -gt $handed ]]; }
old=$(pid_of amemd)
run from-0.1.0 apt-get install --yes --reinstall --no-install-recommends /packages/libamem-shim_*.deb /packages/amemd_*.deb
grep -q 'amemctl upgrade, and then: systemctl restart amem-holder.socket amem-holder.service' /packages/from-0.1.0.log ||
  { cat /packages/from-0.1.0.log; fail "the upgrade does not say what to do"; }
run upgrade-0.1.0 amemctl upgrade
comes_back "amemd was upgraded"
[[ $(pid_of amemd) == "$old" && $(pid_of amem-holder) == "$holder" ]] || fail "the upgrade has ended amemd or its holder"
kill -KILL "$old"
eventually "systemd has started the next amemd" runs_with_another_pid amemd "$old"
comes_back "amemd was killed"
[[ $(pid_of amem-holder) == "$holder" ]] || fail "amemd has left the holder of 0.1.0"
handed=$(handed_over)
systemctl restart amem-holder.socket amem-holder.service
eventually "amemd has given the holder at the new place everything" holder_has_everything
[[ -S /run/amem-holder/holder.sock ]] || fail "nobody listens at the new place"
holder_is_its_own || fail "amemd has a holder of its own, or none"

step "amemd is killed"
for _ in 1 2 3; do
  old=$(pid_of amemd)
  began=$(date +%s%N)
  kill -KILL "$old"
  eventually "systemd has started the next amemd" runs_with_another_pid amemd "$old"
  echo "systemd.sh: the next one served after $((($(date +%s%N) - began) / 1000000)) ms"
  comes_back "amemd was killed"
done

step "the holder is killed, then amemd, ten times"
began=$(date +%s%N)
for _ in $(seq 10); do
  handed=$(handed_over)
  kill -KILL "$(pid_of amem-holder)"
  eventually "systemd has started the next holder, and amemd has given it everything" holder_has_everything
  old=$(pid_of amemd)
  kill -KILL "$old"
  eventually "systemd has started the next amemd" runs_with_another_pid amemd "$old"
done
echo "systemd.sh: the 20 kills took $((($(date +%s%N) - began) / 1000000)) ms"
holder_is_its_own || fail "amemd has a holder of its own, or none"
comes_back "both were killed, one after the other"

step "a restart of the holder and of its socket, then amemd is killed"
handed=$(handed_over)
systemctl restart amem-holder.socket amem-holder.service
eventually "amemd has given the next holder everything" holder_has_everything
old=$(pid_of amemd)
kill -KILL "$old"
eventually "systemd has started the next amemd" runs_with_another_pid amemd "$old"
comes_back "the holder and its socket were restarted"

step "restart, with the drop-in that the package has as an example"
cp /usr/share/doc/amemd/examples/pool.conf /etc/systemd/system/amemd.service.d/zz-pool.conf
sed -i 's/^Environment=AMEM_POOL_SIZE=.*/Environment=AMEM_POOL_SIZE=320MiB/' /etc/systemd/system/amemd.service.d/zz-pool.conf
systemctl daemon-reload
systemctl restart amemd
eventually "amemd serves" amemctl health
amemctl --json status | grep -q '"configured_bytes":"\?335544320' || fail "the pool is not as large as the drop-in says: $(amemctl --json status)"
comes_back "amemd was restarted"

step "upgrade"
old=$(pid_of amemd)
run reinstall apt-get install --yes --reinstall --no-install-recommends /packages/libamem-shim_*.deb /packages/amemd_*.deb
[[ $(pid_of amemd) == "$old" ]] || fail "the installation has restarted amemd"
run upgrade amemctl upgrade
[[ $(pid_of amemd) == "$old" ]] || fail "after amemctl upgrade systemd has another process"
systemctl --quiet is-active amemd || fail "after amemctl upgrade systemd takes amemd for dead"
comes_back "amemd was upgraded"

step "a removal while a group is paused"
if apt-get remove --yes amemd </dev/null >/packages/refused.log 2>&1; then fail "amemd was removed"; fi
grep -q 'a removal would lose the memory of these groups: train\.' /packages/refused.log || { cat /packages/refused.log; fail "the removal does not say why not"; }
[[ $(pid_of amemd) == "$old" ]] || fail "a removal that was refused has ended amemd"
comes_back "a removal was refused"

step "an end by hand, a removal, and a start"
systemctl stop amemd
systemctl --quiet is-active amem-holder || fail "the holder has gone with amemd"
if apt-get remove --yes amemd </dev/null >/packages/refused.log 2>&1; then fail "amemd was removed while the holder has a group"; fi
grep -q 'amemd does not answer' /packages/refused.log || { cat /packages/refused.log; fail "the removal does not say why not"; }
systemctl start amemd
amemctl health >/dev/null || fail "systemctl start has returned, and amemd does not serve"
comes_back "amemd was stopped and started"

step "a reload"
cp /etc/amem/amemd.toml /srv/amemd.toml
printf 'guests = "refuse"\n' | cat - /srv/amemd.toml >/etc/amem/amemd.toml
systemctl reload amemd || fail "a reload failed"
took_it() { grep -q 'reload: guests = "refuse"' <<<"$(journalctl --unit amemd --no-pager)"; }
eventually "amemd has taken a setting" took_it
printf 'no_such = 1\n' | cat - /srv/amemd.toml >/etc/amem/amemd.toml
if systemctl reload amemd; then fail "a reload with a setting that does not exist succeeded"; fi
cp /srv/amemd.toml /etc/amem/amemd.toml
systemctl reload amemd || fail "a reload failed"
systemctl --quiet is-active amemd || fail "a reload has ended amemd"

step "a loop that hangs"
cat >/etc/systemd/system/amemd.service.d/zz-watchdog.conf <<'END'
[Service]
WatchdogSec=3
TimeoutStartSec=4
END
systemctl daemon-reload
systemctl restart amemd
old=$(pid_of amemd)
kill -STOP "$old"
began=$(date +%s%N)
eventually "systemd has restarted an amemd that hangs" runs_with_another_pid amemd "$old"
echo "systemd.sh: with WatchdogSec=3 the next one served after $((($(date +%s%N) - began) / 1000000)) ms"
journalctl --unit amemd --no-pager | grep 'Watchdog timeout' >/dev/null || fail "it was not the watchdog"
comes_back "amemd hung"

step "a start that is slower than TimeoutStartSec"
sed -i 's/^Environment=AMEM_SIM_DIR/Environment=AMEM_SIM_FAULTS=cuInit:*:delay=8000 AMEM_SIM_DIR/' /etc/systemd/system/amemd.service.d/sim.conf
systemctl daemon-reload
systemctl restart amemd || fail "systemd has killed an amemd that had asked for more time"
amemctl health >/dev/null || fail "amemd does not serve after a slow start"
sed -i 's/AMEM_SIM_FAULTS=[^ ]* //' /etc/systemd/system/amemd.service.d/sim.conf
comes_back "a slow start"
as member amemctl resume train >/dev/null
echo exit >&3
exec 3>&-
wait

step "removal, and installation again"
no_groups() { [[ -z $(amemctl groups -o name) ]]; }
eventually "the group is gone" no_groups
run removal apt-get remove --yes amemd
if pgrep -l '^amem'; then fail "the above is still there"; fi
run again apt-get install --yes --no-install-recommends /packages/libamem-shim_*.deb /packages/amemd_*.deb
eventually "amemd serves" amemctl health

step "removal and purge"
run remove apt-get purge --yes amemd
for unit in amemd.service amem-holder.socket amem-holder.service; do
  if systemctl --quiet is-active "$unit"; then fail "$unit is still active"; fi
done
if pgrep -l '^amem'; then fail "the above is still there"; fi
left=$(find /lib/systemd /etc/systemd/system /run/amem* /etc/amem* -path '*amem*' ! -path '*/amemd.service.d*' 2>/dev/null || true)
[[ -z $left ]] || fail "the purge has left $left"
