#!/usr/bin/env bash
# Makes the scripts that packages run: scripts.sh deb|rpm UNITS OUT. UNITS: a folder with the units of amemd. For Debian, debhelper writes
# their usual parts and the list of conffiles; for RPMs, the macros of rpm/macros.systemd, which rpmbuild expands.
set -euo pipefail

kind=$1 units=$(realpath "$2") out=$(realpath -m "$3")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
speaks=$(cat "$here/../kubernetes/amem/files/speaks")

# part NAME: with what it needs, and for a spec with its percent signs doubled.
part() {
  sed '/^#!/d' "$here/running.sh" "$here/$1.sh" | if [[ $kind == rpm ]]; then sed 's/%/%%/g'; else cat; fi
}

# fill FILE: with the parts in place of their names.
fill() {
  sed -e '/^#GUARD#$/ {' -e "r "<(part guard) -e 'd' -e '}' -e '/^#AFTER#$/ {' -e "r "<(part after) -e 'd' -e '}' "$1" | sed "s/#SPEAKS#/$speaks/"
}

rm -rf "$out"
mkdir -p "$out"
if [[ $kind == rpm ]]; then
  for script in "$here"/rpm/p*; do
    fill "$script" >"$out/${script##*/}"
  done
  exit
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/debian/amemd/{lib/systemd/system,usr/lib/{sysusers,tmpfiles}.d,etc/{amem,logrotate.d,needrestart/conf.d}} "$work/debian/libamem-shim"
cd "$work"
printf 'Source: amem\nBuild-Depends: debhelper-compat (= 13)\n\nPackage: amemd\nArchitecture: any\n\nPackage: libamem-shim\nArchitecture: any\n' >debian/control
cp "$units"/amem{d,-holder,-driver}.service debian/amemd/lib/systemd/system/
cp "$here/../amem-holder.socket" debian/amemd/lib/systemd/system/
cp "$here/../amemd.sysusers" debian/amemd/usr/lib/sysusers.d/amemd.conf
cp "$here/../amemd.tmpfiles" debian/amemd/usr/lib/tmpfiles.d/amemd.conf
touch debian/amemd/etc/{amem/amemd.toml,logrotate.d/amemd,needrestart/conf.d/amemd.conf}
for script in "$here"/control/{amemd,libamem-shim}/p*; do
  package=$(basename "$(dirname "$script")")
  fill "$script" >"debian/$package.${script##*/}"
done
dh_installsysusers -pamemd
dh_installtmpfiles -pamemd
dh_installsystemd -pamemd --no-stop-on-upgrade amemd.service
dh_installdeb
for package in amemd libamem-shim; do
  cp -r "debian/$package/DEBIAN" "$out/$package"
done
