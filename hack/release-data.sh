#!/usr/bin/env bash
# Makes the base images of a release for machines that reach no package registry, in bin/release:
#
#   hack/release-data.sh [IMAGE...]
#
#   runtime-images-<version>-linux-<arch>.tar          the images, for `r server import-images`
#   runtime-images-<version>-linux-<arch>.tar.sha256   its sum
#   runtime-images-<version>-linux-<arch>.tar.sha256.sig   the signature of the sum, if RELEASE_KEY names an SSH key
#
# Without names it has the images of all stacks in the versions that are the default, those of addons and those of
# sandboxes. They have the packages of the day, so unlike the files of hack/release.sh they are not the same twice. Made
# images stay in the cache of the build. Needs root, bin/runtime and the toolchain.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "release-data.sh: needs root, as mmdebstrap does" >&2; exit 1; }
go=$(hack/go.sh)
cache=${RUNTIME_CACHE:-${HOME:-/root}/.cache/miren-runtime}
name=runtime-images-$(cat VERSION)-linux-$("$go" env GOHOSTARCH).tar
sandboxes=()
if [ $# = 0 ]; then
	set -- buildpack-deps runtime/{debian,go,go-cgo,node,python,php,ruby,ruby-build,java,java-build,rust,rust-run,deno,postgres,valkey,mysql,s3}
	sandboxes=(-sandboxes)
fi
"$go" build -o bin/test/baseimages ./components/baseimage/cmd/baseimages
images=$(bin/test/baseimages -dir "$cache/baseimages" "${sandboxes[@]}" "$@")
mkdir -p bin/release
rm -f "bin/release/$name"*
# shellcheck disable=SC2086 # names have no spaces
bin/runtime server export-images "bin/release/$name" $images --cache-dir "$cache" --state-dir "$PWD/bin/none" --toolchain-dir "$PWD/bin"
(cd bin/release && sha256sum "$name" >"$name.sha256")
[ -z "${RELEASE_KEY:-}" ] || hack/sign.sh "bin/release/$name.sha256"
(cd bin/release && ls -l "$name"* | awk '{ printf "%8.1f MB  %s\n", $5 / 1e6, $9 }')
