#!/usr/bin/env bash
# Builds the project's own binaries into bin/, with version, commit and date
# stamped in. Usage: hack/build.sh [--debug | --faults | --client FILE]
#   --debug   bin/runtime-debug: unoptimised, with the race detector
#   --faults  bin/runtime-faults: with the points of pkg/fault, for tests
#   --client  FILE: the client alone, for the system that GOOS and GOARCH name
# RUNTIME_BIN is another directory than bin/, RUNTIME_COMMIT another commit to stamp.
set -euo pipefail
cd "$(dirname "$0")/.."
go=$(hack/go.sh)

version=$(cat VERSION)
commit=unknown date=unknown
if git rev-parse --git-dir >/dev/null 2>&1 && git rev-parse HEAD >/dev/null 2>&1; then
	commit=$(git rev-parse --short=12 HEAD)
	date=$(git show -s --format=%cI HEAD)
	[ -z "$(git status --porcelain 2>/dev/null)" ] || commit+=-dirty
fi
commit=${RUNTIME_COMMIT:-$commit}
bin=${RUNTIME_BIN:-bin}
mkdir -p "$bin"
pkg=miren.dev/runtime/pkg/version
stamp="-X $pkg.Version=$version -X $pkg.Commit=$commit -X $pkg.Date=$date"

if [ "${1:-}" = --debug ]; then
	"$go" build -buildvcs=false -race -gcflags='all=-N -l' -ldflags "$stamp" -o "$bin"/runtime-debug ./cmd/runtime
	exit
fi
if [ "${1:-}" = --faults ]; then
	CGO_ENABLED=0 "$go" build -buildvcs=false -trimpath -tags faultpoints -ldflags "-s -w $stamp" -o "$bin"/runtime-faults ./cmd/runtime
	exit
fi
if [ "${1:-}" = --client ]; then
	CGO_ENABLED=0 "$go" build -buildvcs=false -trimpath -ldflags "-s -w $stamp" -o "${2:?which file?}" ./cmd/r
	exit
fi
CGO_ENABLED=0 "$go" build -buildvcs=false -trimpath -ldflags "-s -w $stamp" -o "$bin"/runtime ./cmd/runtime
[ ! -L "$bin"/r ] || rm "$bin"/r # an earlier build linked it to runtime
CGO_ENABLED=0 "$go" build -buildvcs=false -trimpath -ldflags "-s -w $stamp" -o "$bin"/r ./cmd/r
ln -sf r "$bin"/sandbox-run
ln -sf r "$bin"/mcp-sandboxd
CGO_ENABLED=0 "$go" build -buildvcs=false -trimpath -ldflags "-s -w $stamp" -o "$bin"/runtime-agent ./cmd/runtime-agent
CGO_ENABLED=0 "$go" build -buildvcs=false -trimpath -ldflags "-s -w" -o "$bin"/static-server ./cmd/static-server
CGO_ENABLED=0 "$go" build -buildvcs=false -trimpath -ldflags "-s -w" -o "$bin"/runtime-launch ./cmd/runtime-launch
