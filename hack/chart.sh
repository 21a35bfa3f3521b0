#!/usr/bin/env bash
# Makes the Helm chart with the version of this checkout:
#
#   hack/chart.sh DIR     DIR/runtime-<version>.tgz
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:?which directory?}
version=$(cat VERSION)
date=$(git show -s --format=%ct HEAD 2>/dev/null || echo 0)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir -p "$out"
cp -r charts/runtime "$tmp"
sed -i -e "s/^version: .*/version: $version/" -e "s/^appVersion: .*/appVersion: $version/" -e '/^# hack\/chart.sh/d' "$tmp/runtime/Chart.yaml"
tar --create --sort=name --mtime="@$date" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --directory="$tmp" runtime |
	gzip -n >"$tmp/chart.tgz"
mv "$tmp/chart.tgz" "$out/runtime-$version.tgz"
echo "$out/runtime-$version.tgz"
