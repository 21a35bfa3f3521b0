#!/usr/bin/env bash
# Installs the foreign clients of the tests of the MCP face and prints the directory in which they are. They are
# installed with npm ci, as e2e/testdata/mcp/package-lock.json has them, into
# ${RUNTIME_CACHE:-~/.cache/miren-runtime}/mcp-clients, once for each lock file.
set -euo pipefail
cd "$(dirname "$0")/../e2e/testdata/mcp"
cache=${RUNTIME_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/miren-runtime}/mcp-clients

die() {
	printf 'mcp-clients.sh: %s\n' "$*" >&2
	exit 1
}

key=$(cat package.json package-lock.json | sha256sum | cut -c1-20)
modules=$cache/modules-$key
if [ ! -d "$modules" ]; then
	command -v npm >/dev/null || die "npm is not installed: hack/packages.sh lint"
	mkdir -p "$cache"
	exec 9>"$cache/lock"
	flock 9
	if [ ! -d "$modules" ]; then
		new=$(mktemp -d "$cache/new.XXXXXX")
		trap 'rm -rf "$new"' EXIT
		cp package.json package-lock.json "$new"
		(cd "$new" && npm ci --silent --ignore-scripts --no-audit --no-fund >&2)
		mv -T "$new" "$modules"
	fi
fi
printf '%s\n' "$modules"
