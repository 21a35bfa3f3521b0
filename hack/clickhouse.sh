#!/usr/bin/env bash
# Installs the engine of ClickHouse for tests, 50 MB, and prints the Python that has it. It is that of
# testsupport/clickhousetest/requirements.txt, installed with pip into
# ${RUNTIME_CACHE:-~/.cache/miren-runtime}/clickhouse, once for each version of that file.
set -euo pipefail
cd "$(dirname "$0")/../testsupport/clickhousetest"
cache=${RUNTIME_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/miren-runtime}/clickhouse

die() {
	printf 'clickhouse.sh: %s\n' "$*" >&2
	exit 1
}

env=$cache/env-$(sha256sum requirements.txt | cut -c1-20)
if [ ! -e "$env/complete" ]; then
	command -v python3 >/dev/null || die "python3 is not installed"
	mkdir -p "$cache"
	exec 9>"$cache/lock"
	flock 9
	if [ ! -e "$env/complete" ]; then
		rm -rf "$cache"/env-* # of other versions, or of an installation that did not end
		python3 -m venv "$env" || die "python3 has no module venv: install python3-venv"
		"$env/bin/pip" install --quiet --disable-pip-version-check --no-deps --only-binary :all: --requirement requirements.txt >&2
		touch "$env/complete"
	fi
fi
printf '%s\n' "$env/bin/python"
