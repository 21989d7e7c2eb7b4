#!/bin/sh
# Part of the scripts that run before a removal or an upgrade (scripts.sh): no group loses its memory unless somebody has said so.

# A file, since sudo and the daemons that install packages drop variables. It goes at a boot, and the scripts remove it after its use.
may_lose=/run/amem-may-lose-memory

# In another root, in a chroot and in the build of an image nothing runs.
nothing_runs() {
  [ -n "${DPKG_ROOT:-}" ] || [ ! -d /run/systemd/system ] || [ -e "$may_lose" ]
}

# Prints the names of this node's groups. Status 1: something runs, but does not say. An amemd that was killed is back within a second.
groups_here() (
  unset AMEM_ADDRESS AMEM_NODES
  for _ in 1 2 3 4 5 6 7 8 9 10; do
    if amemctl --runtime-dir /run/amem --timeout 2s groups -o name 2>/dev/null; then exit 0; fi
    is_active amemd.service || is_active amem-holder.service || exit 0
    sleep 0.5
  done
  exit 1
)

in_a_line() { echo "$1" | tr '\n' ' ' | sed 's/ $//'; }

refuse() {
  echo "amem: nothing has changed: $*" >&2
  echo "amem: or, to lose the memory of all groups: sudo touch $may_lose, and try again" >&2
  exit 1
}

may_remove() {
  if nothing_runs; then return; fi
  found=$(groups_here) || refuse "amemd does not answer, and amem-holder may keep the memory of groups, which a removal would lose." \
    "See systemctl status amemd amem-holder. If there are no jobs, stop amemd: its holder then ends by itself"
  [ -z "$found" ] ||
    refuse "a removal would lose the memory of these groups: $(in_a_line "$found"). Wait for their jobs to end, or end them"
}

may_upgrade() {
  if nothing_runs; then return; fi
  found=$(groups_here) || found="(amemd does not answer)"
  [ -n "$found" ] || return 0
  # The program that runs, also if its file was replaced.
  program=/proc/$(systemctl show --property=MainPID --value amemd.service 2>/dev/null)/exe
  [ -x "$program" ] || program=/usr/bin/amemd
  was=$("$program" --speaks 2>/dev/null) || was="not known"
  [ "$was" = "#SPEAKS#" ] ||
    refuse "the next amemd could not go on with these groups: $(in_a_line "$found"). The one that runs speaks \"$was\", the next one" \
      "\"#SPEAKS#\". Wait for their jobs to end, or end them, and try again"
}
