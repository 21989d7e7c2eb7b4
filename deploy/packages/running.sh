#!/bin/sh
# Part of guard.sh and after.sh (scripts.sh).

# Not is-active, which says yes in a chroot.
is_active() {
  [ "$(systemctl show --property=ActiveState --value "$1" 2>/dev/null)" = active ]
}
