#!/usr/bin/env bash
# Installs foreign tools of tests that are Python packages, and prints the directory with their programs:
#
#   hack/rest-clients.sh        of the REST face: a validator of OpenAPI documents, a property-based tester of HTTP APIs
#   hack/rest-clients.sh s3     a client of S3, and what decodes CBOR
#
# They are installed with pip, as requirements.txt in e2e/testdata/rest or e2e/testdata/s3 has them, into
# ${RUNTIME_CACHE:-~/.cache/miren-runtime}/rest-clients, once for each list.
set -euo pipefail
cd "$(dirname "$0")/../e2e/testdata/${1:-rest}"
cache=${RUNTIME_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/miren-runtime}/rest-clients

die() {
	printf 'rest-clients.sh: %s\n' "$*" >&2
	exit 1
}

key=$(sha256sum requirements.txt | cut -c1-20)
env=$cache/env-$key
if [ ! -e "$env/complete" ]; then
	command -v python3 >/dev/null || die "python3 is not installed"
	mkdir -p "$cache"
	exec 9>"$cache/lock"
	flock 9
	if [ ! -e "$env/complete" ]; then
		rm -rf "$env" # of an installation that did not end; such an environment cannot be moved
		python3 -m venv "$env" || die "python3 has no module venv: install python3-venv"
		"$env/bin/pip" install --quiet --disable-pip-version-check --requirement requirements.txt >&2
		touch "$env/complete"
	fi
fi
printf '%s\n' "$env/bin"
