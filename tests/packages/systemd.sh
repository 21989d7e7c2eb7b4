#!/usr/bin/env bash
# Installs the packages in a fresh root that systemd has booted, and runs the services there. See --help.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
# shellcheck source=tests/packages/fresh_root.sh
source "$here/fresh_root.sh"

usage() {
  cat <<'END'
Usage: tests/packages/systemd.sh [--suite NAME] [--mirror URL] [--keyring FILE] [--keep] [DIRECTORY]
Makes a fresh root with mmdebstrap, boots it with systemd-nspawn, installs the packages of DIRECTORY (default: dist, in the checkout) there,
and shows, on the simulated driver, that under a real systemd
  - the installation starts the services, and a member of the group amem runs a job;
  - amemd, killed, is back within a second, and the holder too, also after 20 kills, and always in a unit of its own; a restart, an upgrade and a new installation lose nothing of a group that
    is paused, and amemd's process stays the same over the last; a holder of 0.1.0 goes on, until it is restarted at its new place;
  - systemctl start returns when the sockets are there; an amemd that hangs is restarted, and nothing is lost;
    a start that is slower than TimeoutStartSec is not killed;
  - the drop-in with the size of the pool takes effect, and the services have none of root's powers;
  - a removal is refused while a group is paused; otherwise it stops everything, an installation after it starts amemd, and a purge leaves no
    unit.
Needs root, mmdebstrap, systemd-nspawn (systemd-container) and the distribution's archive. The last line says OK or FAILED.
END
  root_options "this machine's"
}

package_arguments "$@"
command -v systemd-nspawn >/dev/null || fail "there is no systemd-nspawn here; apt-get install systemd-container"

work=$(mktemp -d)
guest=$work/amem-guest
leader=''
leave() {
  end_contained
  # Its first process: the kernel ends all others with it.
  [[ -z $leader ]] || kill -KILL "$leader" 2>/dev/null || true
  wait
  if [[ $keep == 1 ]]; then
    echo "systemd.sh: the root is $guest"
  else
    rm -rf --one-file-system "$work"
  fi
}
trap leave EXIT
trap 'fail "interrupted"' INT TERM HUP

make_package_root "$guest" apt,systemd,systemd-sysv,dbus,procps,util-linux "$here/in_systemd.sh"

echo "systemd.sh: booting it"
# On a node as this one is: nothing is registered with a systemd of the host, which need not be there.
systemd-nspawn --quiet --register=no --keep-unit --directory="$guest" --boot --console=pipe --kill-signal=SIGKILL \
  systemd.unified_cgroup_hierarchy=1 >"$work/console" 2>&1 </dev/null &
nspawn=$!
enter=()
is_up() { [[ $("${enter[@]}" systemctl is-system-running 2>/dev/null || true) =~ ^(running|degraded)$ ]]; }
for _ in $(seq 600); do
  leader=$(pgrep -P "$nspawn" || true)
  enter=(nsenter --target "$leader" --all env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8
    DEBIAN_FRONTEND=noninteractive)
  if [[ -n $leader ]] && is_up; then break; fi
  kill -0 "$nspawn" 2>/dev/null || {
    cat "$work/console" >&2
    fail "systemd-nspawn has ended"
  }
  sleep 0.1
done
is_up || fail "systemd has not come up within 60 s"
timeout 900 "${enter[@]}" bash /packages/in_systemd.sh || fail "see above"
echo "OK: the packages of $packages under systemd in a fresh root of $suite"
