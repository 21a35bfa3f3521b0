#!/usr/bin/env bash
# Makes what is installed, from the programs of bin/, which make package builds before:
#
#   hack/package.sh               the archive bin/package/runtime-<version>-linux-<arch>.tar.gz
#   hack/package.sh deb           the Debian package bin/package/runtime_<version>_<arch>.deb
#   hack/package.sh files         print the programs that the server needs, relative to bin/
#   hack/package.sh --print-dir   print the directory of the results
#
# Each has the licence, a list of the modules that are in the programs (modules.cdx.json, in CycloneDX), and its SHA-256
# beside it. The same programs give the same file: all times are the commit's, and root owns everything.
# RUNTIME_BIN is another directory with the programs, RUNTIME_PACKAGES another one for the results, and GOARCH the
# architecture of the programs.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${RUNTIME_PACKAGES:-bin/package}
bin=${RUNTIME_BIN:-bin}
go=$(hack/go.sh)
what=${1:-archive}
case $what in
--print-dir)
	echo "$out"
	exit
	;;
archive | deb | files) ;;
*)
	echo "package.sh: unknown argument $what (deb, files, --print-dir)" >&2
	exit 2
	;;
esac

version=$(cat VERSION) arch=$("$go" env GOARCH)
files=(runtime r sandbox-run mcp-sandboxd runtime-agent runtime-launch static-server)
while read -r _ _ path; do
	files+=("${path#"$PWD/bin/"}")
done < <(RUNTIME_BIN='' GOARCH='' hack/toolchain.sh --list)
if [ "$what" = files ]; then
	printf '%s\n' "${files[@]}"
	exit
fi
for f in "${files[@]}"; do
	[ -e "$bin/$f" ] || {
		echo "package.sh: $bin/$f is not built: make package" >&2
		exit 1
	}
done

date=$(git show -s --format=%ct HEAD 2>/dev/null || echo 0)
mkdir -p "$out"
out=$(cd "$out" && pwd) bin=$(cd "$bin" && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
GOARCH='' "$go" run ./hack/bom -name runtime -version "$version" -time "$date" -o "$tmp/modules.cdx.json" \
	"${files[@]/#/$bin/}"

# put FILE names the result, with its sum beside it.
put() {
	mv "$tmp/$1" "$out/$1"
	(cd "$out" && sha256sum "$1" >"$1.sha256")
	echo "$out/$1"
}

# pack prints an archive of all files, below the directory $1.
pack() {
	tar --create --mtime="@$date" --owner=0 --group=0 --numeric-owner --mode=go-w --transform="s|^|$1/|S" \
		--directory="$PWD" LICENSE --directory="$tmp" modules.cdx.json --directory="$bin" "${files[@]}"
}

if [ "$what" = archive ]; then
	name=runtime-$version-linux-$arch
	pack "$name" | gzip -n -3 >"$tmp/$name.tar.gz"
	put "$name.tar.gz"
	exit
fi

# The Debian package has the same files in /usr/lib/runtime. Its scripts are hack/deb.
root=$tmp/root name=runtime_${version}_$arch.deb
mkdir -p "$root/DEBIAN" "$root/usr/bin" "$root/usr/lib" "$root/usr/share/doc/runtime" "$root/usr/share/man/man1"
pack runtime | tar --extract --directory="$root/usr/lib"
mv "$root/usr/lib/runtime/LICENSE" "$root/usr/share/doc/runtime/copyright"
for f in r runtime sandbox-run mcp-sandboxd; do
	ln -s "../lib/runtime/$f" "$root/usr/bin/$f"
done
# The programs may be another architecture's; the manual is the same.
GOARCH='' "$go" run ./cmd/r man --quiet "$root/usr/share/man/man1"
gzip -n -9 "$root"/usr/share/man/man1/*
install -m 755 hack/deb/postinst hack/deb/prerm "$root/DEBIAN"
size=$(du -sk --apparent-size "$root/usr" | cut -f1)
sed -e "s/@VERSION@/$version/" -e "s/@ARCH@/$arch/" -e "s/@SIZE@/$size/" hack/deb/control >"$root/DEBIAN/control"
chmod -R u=rwX,go=rX "$root"
find "$root" -exec touch --no-dereference --date="@$date" {} +
SOURCE_DATE_EPOCH=$date dpkg-deb --root-owner-group -Zgzip -z3 --build "$root" "$tmp/$name" >/dev/null
put "$name"
