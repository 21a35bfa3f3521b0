#!/usr/bin/env bash
# Runs the Go tests with the race detector: hack/test.sh unit|root|e2e|packages|probe|kubernetes|image.
# unit: packages that need neither root nor the runtime's components; S3 tests
# start the servers of hack/toolchain.sh test. root: the real
# components, then e2e. Instances are isolated, so packages run in parallel.
# packages: popular packages of Python and Node.js, installed and used in sandboxes.
# probe: the tests that try to escape from a sandbox, and to use up the machine.
# kubernetes: sandboxes as pods, with an API server and a kubelet that are built first.
# image: the image of make image, started by Docker.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/testenv.sh
mapfile -t all < <("$go" list ./... | grep -Ev '/(e2e|hack/deptest)$') # make lint runs deptest
# make lint vets too, and without debugging information a test is linked in half of the time.
test=("$go" test -vet=off -ldflags=-w)

pick() { printf '%s\n' "${all[@]}" | grep -E "$@" || true; }

case ${1:?unit, root, e2e, packages, probe, kubernetes or image} in
unit)
	"${test[@]}" -race -tags faultpoints ./pkg/fault
	mapfile -t pkgs < <(pick -v "$root_re")
	# They wait half of their time.
	exec "${test[@]}" -race -p "$((2 * $(nproc)))" -timeout 25m "${pkgs[@]}"
	;;
root)
	[ "$(id -u)" = 0 ] || { echo "these tests need root: run make test as root" >&2; exit 1; }
	mapfile -t pkgs < <(pick "$root_re")
	# The images for sandboxes take minutes the first time, which is not the time of a test.
	"$go" build -o bin/test/baseimages ./components/baseimage/cmd/baseimages
	bin/test/baseimages -dir "${RUNTIME_CACHE:-${HOME:-/root}/.cache/miren-runtime}/baseimages" -sandboxes
	# A package that fails does not keep the others from showing theirs.
	rc=0
	"${test[@]}" -race -timeout 25m "${pkgs[@]}" || rc=$?
	(cd components/shim && "$go" test -race ./...) || rc=$?
	"$0" e2e || rc=$?
	exit "$rc"
	;;
e2e)
	[ "$(id -u)" = 0 ] || { echo "these tests need root: run make e2e as root" >&2; exit 1; }
	hack/build.sh --faults
	# The tests wait most of their time.
	exec "${test[@]}" -timeout 55m -count=1 -parallel 3 ./e2e
	;;
packages)
	[ "$(id -u)" = 0 ] || { echo "these tests need root: run make test-packages as root" >&2; exit 1; }
	exec "$go" test -tags packages -timeout 60m -count=1 -v -run TestPopularPackages ./components/baseimage
	;;
probe)
	[ "$(id -u)" = 0 ] || { echo "these tests need root: run make probe as root" >&2; exit 1; }
	tests='Probes|Bombs|SeesNothingOfHost|CannotFillTheHost|OnlyItsDisks|Hostile|Confined|Protected|SocketNeedsToken|UnknownMessages|ExceedsItsBound'
	tests+='|Destinations|NoIPv6|ConnectionLimit|ReachOnlyTheOutside|FlushedRules|EgressPolicies'
	exec "$go" test -count=1 -v -timeout 20m -run "$tests" ./components/runsc ./components/agent ./components/network
	;;
kubernetes)
	[ "$(id -u)" = 0 ] || { echo "these tests need root: run make test-kubernetes as root" >&2; exit 1; }
	hack/toolchain.sh etcd cluster
	hack/build.sh
	"$go" test -race -tags kubernetes -count=1 -v -timeout 60m ./components/kubernetes
	exec "$go" test -tags kubernetes -count=1 -v -timeout 30m -run TestKubernetesDriver ./e2e
	;;
image)
	[ "$(id -u)" = 0 ] || { echo "these tests need root: run make test-image as root" >&2; exit 1; }
	exec "$go" test -tags image -count=1 -v -timeout 30m -run TestImage ./e2e
	;;
*)
	echo "unknown set of tests: $1 (unit, root, e2e, packages, probe, kubernetes or image)" >&2
	exit 2
	;;
esac
