#!/usr/bin/env bash
# Makes a release of the commit that is checked out, in bin/release:
#
#   hack/release.sh [--unsigned] [--check]
#
#   runtime-<version>-linux-{amd64,arm64}.tar.gz    the server (make package)
#   runtime_<version>_{amd64,arm64}.deb             the same as a Debian package
#   r-<version>-<system>-<arch>.tar.gz or .zip      the client for Linux, macOS and Windows
#   runtime-<version>.tgz                           the Helm chart
#   modules-<version>.cdx.json                      the Go modules in the clients, in CycloneDX; those of the server are in its archive
#   SHA256SUMS                                      of all of them
#   SHA256SUMS.sig                                  its signature, which docs/install.md says how to verify
#
# RELEASE_KEY names the SSH key that signs (hack/sign.sh). --unsigned makes a release without signature. --check makes
# it again in a clone, with caches of its own, and fails if a byte differs.
set -euo pipefail
cd "$(dirname "$0")/.."

die() {
	printf 'release.sh: %s\n' "$*" >&2
	exit 1
}

sign=true check=false
for arg; do
	case $arg in
	--unsigned) sign=false ;;
	--check) check=true ;;
	-h | --help)
		sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
		exit
		;;
	*)
		echo "release.sh: unknown option $arg (--unsigned, --check, --help)" >&2
		exit 2
		;;
	esac
done
if $sign; then
	[ -n "${RELEASE_KEY:-}" ] || die "no key to sign with: set RELEASE_KEY to the file of an SSH key, or give --unsigned"
	[ -r "$RELEASE_KEY" ] || die "RELEASE_KEY: $RELEASE_KEY cannot be read"
	RELEASE_KEY=$(realpath "$RELEASE_KEY")
fi
[ -z "$(git status --porcelain)" ] || die "the checkout has changes: a release is made of a commit"
hack/packages.sh base release
go=$(hack/go.sh)
version=$(cat VERSION) date=$(git show -s --format=%ct HEAD)
out=$PWD/bin/release
rm -rf "$out"
mkdir -p "$out"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

host=$("$go" env GOHOSTARCH)
for arch in amd64 arm64; do
	bin=$PWD/bin
	[ "$arch" = "$host" ] || bin=$tmp/$arch
	echo "release: linux/$arch"
	(
		export GOARCH=$arch RUNTIME_BIN=$bin RUNTIME_PACKAGES=$out
		hack/toolchain.sh
		hack/build.sh
		hack/package.sh
		hack/package.sh deb
	)
done
rm "$out"/*.sha256 # SHA256SUMS has them

clients=()
for platform in linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64; do
	os=${platform%/*} arch=${platform#*/}
	name=r-$version-$os-$arch
	echo "release: client for $platform"
	mkdir "$tmp/$name"
	client=$tmp/$name/r
	[ "$os" != windows ] || client+=.exe
	GOOS=$os GOARCH=$arch hack/build.sh --client "$client"
	clients+=("$client")
	cp LICENSE "$tmp/$name"
	find "$tmp/$name" -exec touch --date="@$date" {} +
	if [ "$os" = windows ]; then
		(cd "$tmp" && TZ=UTC zip -qrX "$out/$name.zip" "$name")
	else
		tar --create --sort=name --mtime="@$date" --owner=0 --group=0 --numeric-owner --mode=go-w --directory="$tmp" "$name" |
			gzip -n >"$out/$name.tar.gz"
	fi
done
"$go" run ./hack/bom -name r -version "$version" -time "$date" -o "$out/modules-$version.cdx.json" "${clients[@]}"
hack/chart.sh "$out"

(cd "$out" && sha256sum -- * >"$tmp/SHA256SUMS" && mv "$tmp/SHA256SUMS" .)
if $check; then
	echo "release: again, in a clone with caches of its own"
	git clone -q . "$tmp/again"
	git -C "$tmp/again" checkout -q --detach "$(git rev-parse HEAD)"
	GOCACHE=$tmp/gocache RUNTIME_CACHE=$tmp/cache "$tmp/again/hack/release.sh" --unsigned
	diff "$out/SHA256SUMS" "$tmp/again/bin/release/SHA256SUMS" || die "the two differ: the build depends on more than the commit"
	echo "release: both are the same, byte for byte"
fi
if $sign; then
	hack/sign.sh "$out/SHA256SUMS"
fi
(cd "$out" && ls -l | awk 'NR > 1 { printf "%8.1f MB  %s\n", $5 / 1e6, $9 }')
