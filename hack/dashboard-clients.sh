#!/usr/bin/env bash
# Installs what drives the browser in the tests of the dashboard (puppeteer-core, axe-core) and prints its directory. It is
# installed with npm ci, as e2e/testdata/dashboard/package-lock.json has it, into
# ${RUNTIME_CACHE:-~/.cache/miren-runtime}/dashboard-clients, once for each lock file. The browser is a package of the
# distribution (hack/packages.sh test).
set -euo pipefail
cd "$(dirname "$0")/../e2e/testdata/dashboard"
cache=${RUNTIME_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/miren-runtime}/dashboard-clients

die() {
	printf 'dashboard-clients.sh: %s\n' "$*" >&2
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
