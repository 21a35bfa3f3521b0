#!/usr/bin/env bash
# Checks that a package has a test, for hack/run: hack/find-test.sh DIRECTORY TEST
# Exit code 2 if not, with similar names, or with all if TEST is empty.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=${1:?usage: hack/find-test.sh DIRECTORY TEST} wanted=${2:-}

tests=$(sed -nE 's/^func ((Test|Example|Fuzz)[A-Za-z0-9_]*)\(.*/\1/p' "$dir"/*_test.go | grep -vx TestMain | LC_ALL=C sort)
if [ -z "$wanted" ]; then
	printf 'which test? %s has:\n%s\n' "$dir" "$tests" >&2
	exit 2
fi
if ! grep -qxF -- "$wanted" <<<"$tests"; then
	near=$(hack/nearest.sh "$wanted" <<<"$tests")
	if [ -n "$near" ]; then
		printf 'no test %s in %s; did you mean: %s?\n' "$wanted" "$dir" "${near//$'\n'/, }" >&2
	else
		printf 'no test %s in %s; hack/run %s lists them\n' "$wanted" "$dir" "$dir" >&2
	fi
	exit 2
fi
