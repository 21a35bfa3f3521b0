#!/usr/bin/env bash
# Measures runtime against its peers (see bench/) and prints one table of ratios.
#
#   hack/bench.sh                       everything; the table goes to docs/benchmarks.md too
#   hack/bench.sh store rpc             only these: cli store rpc disks recovery diskstate filesystems logs memory sandbox agents faces deploy wake dashboard ingress
#   hack/bench.sh --quick ingress       fewer, shorter rounds: to see that it works
#   hack/bench.sh --json - store        results as JSON
#   hack/bench.sh --logs-size 10240 logs  the logs of apps with 10 GiB of text in place of 1 GiB
#   hack/bench.sh --profile DIR store   with CPU profiles of our side
#
# The first run builds Caddy, a peer of the ingress, which takes minutes.
# Needs root, bin/runtime and the toolchain (make bin/runtime toolchain). Leave the machine alone meanwhile.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "the benchmarks need root" >&2; exit 1; }
go=$(hack/go.sh)
(cd bench && GOWORK=off GOTOOLCHAIN=local "$go" build -buildvcs=false -o ../bin/bench .)
hack/toolchain.sh caddy minio
PATH="$(dirname "$go"):$PATH"
export PATH
# Only a full run is worth keeping.
keep=()
[ $# -gt 0 ] || keep=(--markdown docs/benchmarks.md)
exec bin/bench "${keep[@]}" "$@"
