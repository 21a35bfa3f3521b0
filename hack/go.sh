#!/usr/bin/env bash
# Prints the path of a Go that can build this project, fetching one if the machine has none.
#
#   GO=$(hack/go.sh) && "$GO" build ./...
#
# It looks in this order: $GO, the PATH, the usual places, the Go that an earlier run fetched. A fetched Go is the
# golang.org/toolchain module of the Go module proxy, so it needs some older Go to fetch it: the distribution's
# golang-go, which is installed when there is none and this runs as root. Messages go to standard error.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${RUNTIME_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/miren-runtime}

# The version to fetch; raised to the version that the modules require, if that is newer.
fetch=1.26.8

say() { printf 'go.sh: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

# at_least A B: whether version A is B or newer.
at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n1)" = "$2" ]; }

# The highest `go` line of the modules of this repository.
wanted=$(cat "$root"/go.mod "$root"/components/shim/go.mod "$root"/hack/toolchain/*/go.mod 2>/dev/null |
	awk '$1 == "go" { print $2 }' | sort -V | tail -n1)
[ -n "$wanted" ] || die "no go.mod with a go line under $root"
at_least "$fetch" "$wanted" || fetch=$wanted

# version GO: its version without the "go" prefix; fails when it is no Go.
# GOTOOLCHAIN=local: its own version, not the version it would switch to.
version() {
	local v
	v=$(cd / && GOTOOLCHAIN=local "$1" env GOVERSION 2>/dev/null) || return 1
	v=${v#go}
	printf '%s\n' "${v%% *}"
}

usable() {
	local v
	[ -n "$1" ] && [ -x "$1" ] && v=$(version "$1") && at_least "$v" "$wanted"
}

fetched=$cache/go/go$fetch
for go in "${GO:-}" "$(command -v go || true)" /usr/local/go/bin/go /usr/lib/go*/bin/go "$fetched/bin/go"; do
	if usable "$go"; then
		printf '%s\n' "$go"
		exit 0
	fi
done

# None is new enough: fetch one, with any older one.
older=
for go in "$(command -v go || true)" /usr/local/go/bin/go /usr/lib/go*/bin/go; do
	if [ -n "$go" ] && [ -x "$go" ] && version "$go" >/dev/null; then
		older=$go
		break
	fi
done
if [ -z "$older" ]; then
	say "no Go found, installing the distribution's golang-go to fetch Go $fetch with"
	"$root/hack/packages.sh" go >&2 || die "install Go $wanted or newer (https://go.dev/dl) and run this again"
	older=$(command -v go) || die "the distribution's golang-go brought no go command"
fi

case $(uname -m) in
x86_64) arch=amd64 ;;
aarch64) arch=arm64 ;;
*) die "no Go toolchain is known for $(uname -m): install Go $wanted or newer" ;;
esac

say "fetching Go $fetch with $(version "$older") (wanted: $wanted or newer)"
mkdir -p "$cache/go"
exec 9>"$cache/go/lock"
flock 9
if [ ! -x "$fetched/bin/go" ]; then
	tmp=$(mktemp -d "$cache/go/tmp.XXXXXX")
	# The module cache is read-only; without this the clean-up of a failed fetch would fail.
	trap 'chmod -R u+w "$tmp"; rm -rf "$tmp"' EXIT
	(cd "$tmp" && GOFLAGS=-modcacherw GOWORK=off GOTOOLCHAIN=local GOMODCACHE=$tmp \
		"$older" mod download "golang.org/toolchain@v0.0.1-go$fetch.linux-$arch") >&2 ||
		die "could not fetch Go $fetch: is the Go module proxy reachable?"
	unpacked=$tmp/golang.org/toolchain@v0.0.1-go$fetch.linux-$arch
	# A module carries no execute bits.
	chmod -R u+w "$unpacked"
	chmod +x "$unpacked"/bin/* "$unpacked"/pkg/tool/*/*
	rm -rf "$fetched"
	mv "$unpacked" "$fetched"
fi
usable "$fetched/bin/go" || die "$fetched/bin/go does not run"
printf '%s\n' "$fetched/bin/go"
