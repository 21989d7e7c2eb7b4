#!/bin/sh
# Part of the scripts that run after an installation (scripts.sh).

# Before 0.2.0 the holder's socket was in /run/amem. It moves at once if no holder runs.
move_socket() {
  systemctl --system daemon-reload >/dev/null || :
  if [ ! -S /run/amem-holder/holder.sock ] && is_active amem-holder.socket && ! is_active amem-holder.service; then
    systemctl restart amem-holder.socket || :
  fi
}

# say_what_runs VERSION: what an upgrade leaves to the administrator.
say_what_runs() {
  then=
  if [ -S /run/amem/holder.sock ] && is_active amem-holder.service; then
    then=", and then: systemctl restart amem-holder.socket amem-holder.service"
  fi
  echo "amemd: the broker that runs goes on${1:+ as version $1}. When it suits you: amemctl upgrade$then" >&2
}
