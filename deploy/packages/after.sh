#!/bin/sh
# Part of the scripts that run after an installation (scripts.sh).

# move_socket PROGRAM: 0.1.0 had the holder's socket in /run/amem. It moves at once if no holder runs; PROGRAM restarts it.
move_socket() {
  systemctl --system daemon-reload >/dev/null || :
  if [ ! -S /run/amem-holder/holder.sock ] && is_active amem-holder.socket && ! is_active amem-holder.service; then
    "$1" restart amem-holder.socket >/dev/null || :
  fi
}

# say_what_runs VERSION: what an upgrade leaves to the administrator.
say_what_runs() {
  next=
  if [ ! -S /run/amem-holder/holder.sock ] && is_active amem-holder.service; then
    next=", and then: systemctl restart amem-holder.socket amem-holder.service"
  fi
  echo "amemd: the broker that runs goes on${1:+ as version $1}. When it suits you: amemctl upgrade$next" >&2
}
