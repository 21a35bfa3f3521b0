#!/usr/bin/env bash
# Installs E2B's published clients, for the tests of servers/e2b, and prints the directory that has them: node_modules, with an
# older version as e2b-old, venv/bin/python, and venv-old/bin/python with an older version. They are those of
# e2e/testdata/e2b/package-lock.json and requirements*.txt, installed once for each version of these files into
# ${RUNTIME_CACHE:-~/.cache/miren-runtime}/e2b.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=${RUNTIME_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/miren-runtime}/e2b

for tool in npm node python3; do
	command -v "$tool" >/dev/null || {
		printf 'e2b-clients.sh: %s is not installed: hack/packages.sh lint\n' "$tool" >&2
		exit 1
	}
done
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
cd e2e/testdata/e2b
dir=$cache/$(cat package.json package-lock.json requirements.txt requirements-old.txt | sha256sum | cut -c1-20)
if [ ! -e "$dir/complete" ]; then
	rm -rf "$cache"/*/
	mkdir "$dir"
	cp package.json package-lock.json "$dir"
	(cd "$dir" && npm ci --silent --ignore-scripts --no-audit --no-fund) >&2
	for old in '' -old; do
		python3 -m venv "$dir/venv$old" >&2
		"$dir/venv$old/bin/pip" install --quiet --disable-pip-version-check --no-deps --requirement "requirements$old.txt" >&2
	done
	touch "$dir/complete"
fi
printf '%s\n' "$dir"
