#!/usr/bin/env bash
# Makes an image of the server for docker load or podman load, bin/package/runtime-<version>-image-<arch>.tar:
#
#   hack/image.sh
#
# It is this machine's Debian with the packages that a server needs, and the Debian package of make deb. Needs root.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "image.sh: a root file system is made by root: run it as root" >&2; exit 1; }
out=${RUNTIME_PACKAGES:-bin/package}
go=$(hack/go.sh)
version=$(cat VERSION) arch=$("$go" env GOARCH)
date=$(git show -s --format=%ct HEAD 2>/dev/null || echo 0)
deb=$(hack/package.sh deb)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
chmod 755 "$tmp" # the package manager reads below it as another user

mapfile -t sources < <(find /etc/apt -name '*.list' -o -name '*.sources' | sort)
codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
# tini is process 1 of a container: it waits for processes whose parent has ended. git receives pushes.
depends=tini,git,$(dpkg-deb --field "$deb" Depends | sed -e 's/([^)]*)//g' -e 's/ //g')
echo "image: Debian $codename with ${depends//,/, }" >&2
SOURCE_DATE_EPOCH=$date mmdebstrap --quiet --mode=root --variant=minbase --include="$depends" \
	--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
	--dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
	--essential-hook='mkdir -p "$1/etc/postgresql-common" && echo "create_main_cluster = false" >"$1/etc/postgresql-common/createcluster.conf"' \
	--customize-hook='rm -rf "$1"/var/log/*' \
	"$codename" "$tmp/system.tar" "${sources[@]}"

mkdir "$tmp/root"
dpkg-deb --extract "$deb" "$tmp/root"
# Debian's /bin is a link, which the directories of a layer would replace: the package has /usr only.
tar --create --sort=name --mtime="@$date" --owner=0 --group=0 --numeric-owner --directory="$tmp/root" --file="$tmp/runtime.tar" usr
image=$out/runtime-$version-image-$arch.tar
"$go" run ./hack/image -name "runtime:$version" -arch "$arch" -time "$date" -o "$tmp/image.tar" "$tmp/system.tar" "$tmp/runtime.tar"
mv "$tmp/image.tar" "$image"
(cd "$out" && sha256sum "$(basename "$image")" >"$(basename "$image").sha256")
echo "$image"
