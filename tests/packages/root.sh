#!/usr/bin/env bash
# Installs the packages in a fresh root of a distribution, runs amem there, upgrades and removes it. See --help.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
# shellcheck source=tests/packages/fresh_root.sh
source "$here/fresh_root.sh"

usage() {
  cat <<'END'
Usage: tests/packages/root.sh [--suite NAME] [--mirror URL] [--keyring FILE] [--keep] [DIRECTORY]
Makes a fresh root with mmdebstrap, installs all packages of DIRECTORY (default: dist, in the checkout) with what they depend on, and
shows that
  - the demonstration passes on the simulated driver, whose libraries no loader finds by itself;
  - Python has the package amem, and finds the shim;
  - an installation enables and starts the service, an upgrade leaves it alone, with a group that is paused, a removal is refused then, and
    stops it afterwards;
  - a purge leaves nothing.
The packages must be of that distribution. Needs root, mmdebstrap and the distribution's archive. The last line says OK or FAILED.
END
  root_options "this machine's"
}

package_arguments "$@"

begin_guest

make_package_root "$guest" apt "$here/in_root.sh"
# Of a process of its own, with a /proc that shows it: whatever is left in it ends with it.
timeout 1500 unshare --fork --pid --mount-proc="$guest/proc" --kill-child chroot "$guest" /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
  LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive bash /packages/in_root.sh || fail "see above"
echo "OK: the packages of $packages in a fresh root of $suite"
