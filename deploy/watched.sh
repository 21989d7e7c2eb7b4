# shellcheck shell=bash
# How the scripts that build show it; they source this.

# watched LOG COMMAND...: on a terminal as it is. Otherwise it goes into a log, whose end is shown when it fails, and every ten seconds a
# line says how far it is, where the command counts its steps as ninja does.
watched() {
  local log=$1 status=0 watcher
  shift
  if [[ -t 1 ]]; then
    "$@"
    return
  fi
  : >"$log"
  (
    began=$SECONDS
    while sleep 10 >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
      step=$(grep -oE '^\[[0-9]+/[0-9]+\]' "$log" | tail -n 1 | tr -d '[]') || continue
      printf '%3d %%: %s of %s steps, %d s\n' $((100 * ${step%/*} / ${step#*/})) "${step%/*}" "${step#*/}" $((SECONDS - began))
    done
  ) &
  watcher=$!
  "$@" >"$log" 2>&1 || status=$?
  kill "$watcher" 2>/dev/null || true
  wait "$watcher" 2>/dev/null || true
  [[ $status == 0 ]] || tail -n 50 "$log" >&2
  return "$status"
}
