#!/usr/bin/env bash
# Prints the directory of a package with tests, for hack/it and hack/run: hack/find-package.sh PACKAGE
# PACKAGE is a directory, an import path, or the end of one. Exit code 2, with similar names, if none or several match.
set -euo pipefail
cd "$(dirname "$0")/.."

wanted=${1:?usage: hack/find-package.sh PACKAGE}
wanted=${wanted#./}
wanted=${wanted#miren.dev/runtime/}
wanted=${wanted%/}

mapfile -t all < <(find . -name '*_test.go' -not -path './bin/*' -not -path '*/testdata/*' -not -path '*/node_modules/*' -printf '%h\n' |
	sed 's|^\./||' | LC_ALL=C sort -u)

matches=()
for p in "${all[@]}"; do
	if [ "$p" = "$wanted" ]; then
		echo "$p"
		exit
	fi
	[[ $p != */"$wanted" ]] || matches+=("$p")
done
if [ ${#matches[@]} -eq 1 ]; then
	echo "${matches[0]}"
	exit
fi

if [ ${#matches[@]} -gt 1 ]; then
	printf '%s is ambiguous: %s\n' "$wanted" "${matches[*]}" >&2
	exit 2
fi
if [ -d "$wanted" ] && compgen -G "$wanted/*.go" >/dev/null; then
	echo "$wanted has no tests" >&2
	exit 2
fi
near=$(printf '%s\n' "${all[@]}" | hack/nearest.sh "$wanted")
if [ -n "$near" ]; then
	printf 'no package %s with tests; did you mean: %s?\n' "$wanted" "${near//$'\n'/, }" >&2
else
	printf 'no package %s with tests; `go list ./...` prints all packages\n' "$wanted" >&2
fi
exit 2
