#!/usr/bin/env bash
# The cheap checks: formatting, vet, the client on every platform, staticcheck,
# generated code, the SDKs, scripts, import directions and docs links. Prints what to do about each failure.
set -uo pipefail
cd "$(dirname "$0")/.."
# Without paths of this checkout in them, builds and test results are shared by all checkouts of a machine.
export GOFLAGS="${GOFLAGS:+$GOFLAGS }-trimpath"
go=$(hack/go.sh) || exit 1
failed=0

check() { # NAME HINT COMMAND...
	local name=$1 hint=$2 out
	shift 2
	if out=$("$@" 2>&1); then
		printf 'ok    %s\n' "$name"
	else
		printf 'FAIL  %s\n%s\n      %s\n' "$name" "$out" "$hint"
		failed=1
	fi
}

unformatted() {
	local files
	files=$(git ls-files '*.go' | xargs "$("$go" env GOROOT)/bin/gofmt" -l)
	[ -z "$files" ] || { echo "$files"; return 1; }
}

staticcheck() {
	local cache=${RUNTIME_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/miren-runtime}/lint key
	key=$(cat hack/lint/go.sum <("$go" version) | sha256sum | cut -c1-16)
	if [ ! -x "$cache/staticcheck-$key" ]; then
		mkdir -p "$cache"
		GOFLAGS=-buildvcs=false "$go" build -C hack/lint -o "$cache/staticcheck-$key" honnef.co/go/tools/cmd/staticcheck || return 1
	fi
	PATH="$(dirname "$go"):$PATH" "$cache/staticcheck-$key" ./...
}

generated() {
	"$go" run ./entity/cmd/schemagen -root . -check &&
		"$go" run ./pkg/rpc/cmd/rpcgen -root . -check &&
		"$go" run ./pkg/config/cmd/configgen -root . -check &&
		"$go" run ./cli/cmd/clidoc -root . -check &&
		"$go" run ./servers/rest/cmd/openapigen -root . -check
}

# The client is for other systems too; vet compiles everything that it links.
client() {
	local p
	for p in linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64; do
		GOOS=${p%/*} GOARCH=${p#*/} CGO_ENABLED=0 "$go" vet ./cmd/r || { echo "cmd/r does not build for $p"; return 1; }
	done
}

# The server is released for arm64 too. These packages make system calls; the others would take minutes.
arm64() { GOARCH=arm64 CGO_ENABLED=0 "$go" vet ./lsvd/... ./components/agent/... ./components/filesystem ./cmd/runtime-agent ./cmd/runtime-launch; }

scripts() {
	local s
	for s in $(git ls-files 'hack/*.sh' hack/it hack/run .ci/run); do bash -n "$s" || return 1; done
}

check gofmt 'run gofmt -w on these files' unformatted
check vet 'fix what vet reports' "$go" vet ./...
check client 'keep cmd/r portable: put what needs Linux into a file _linux.go, with an honest answer elsewhere' client
check arm64 'use a system call that arm64 has too' arm64
check staticcheck 'fix what staticcheck reports' staticcheck
check generated 'run make generate and commit the result' generated
check SDKs 'run make generate, commit the result, and fit the hand-written code to it' hack/sdk.sh check
check 'libraries of the dashboard' 'run hack/web.sh and commit the result' hack/web.sh --check
check scripts 'fix the syntax of the script' scripts
check 'imports and docs' 'see hack/deptest' "$go" test -count=1 ./hack/deptest
check dagger 'fix the types or the pipeline in dagger/; hack/dagger.sh runs only this check' hack/dagger.sh
exit $failed
