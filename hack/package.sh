#!/usr/bin/env bash
# Makes the archive that is installed, bin/package/runtime-<version>-linux-<arch>.tar.gz, and its SHA-256 beside it.
#
#   hack/package.sh               needs the toolchain and bin/runtime (make package builds them)
#   hack/package.sh --print-dir   print the directory of the archive
#
# It has the licence and the programs of bin/ that the server runs, where the server looks for them. The same binaries
# give the same archive: all times are the commit's, and root owns every file.
set -euo pipefail
cd "$(dirname "$0")/.."
out=bin/package
if [ "${1:-}" = --print-dir ]; then
	echo "$out"
	exit
fi

name=runtime-$(cat VERSION)-linux-$("$(hack/go.sh)" env GOARCH)
files=(runtime r sandbox-run mcp-sandboxd runtime-agent runtime-launch static-server)
while read -r component _ path; do
	case $component in
	minio | versitygw | etcd | kubernetes | containerd-cri) ;; # only tests start them
	*) files+=("${path#"$PWD/bin/"}") ;;
	esac
done < <(RUNTIME_BIN='' hack/toolchain.sh --list)
for f in "${files[@]}"; do
	[ -e "bin/$f" ] || {
		echo "package.sh: bin/$f is not built: make package" >&2
		exit 1
	}
done

date=$(git show -s --format=%ct HEAD 2>/dev/null || echo 0)
mkdir -p "$out"
tar --create --mtime="@$date" --owner=0 --group=0 --numeric-owner --mode=go-w --transform="s|^|$name/|S" \
	--directory="$PWD" LICENSE --directory="$PWD/bin" "${files[@]}" | gzip -n -3 >"$out/$name.tar.gz.new"
mv "$out/$name.tar.gz.new" "$out/$name.tar.gz"
(cd "$out" && sha256sum "$name.tar.gz" >"$name.tar.gz.sha256")
echo "$out/$name.tar.gz"
