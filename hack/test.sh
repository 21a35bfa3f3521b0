#!/usr/bin/env bash
# Runs the Go tests with the race detector: hack/test.sh all|unit|root|e2e|packages|probe|kubernetes|image.
# unit: packages that need neither root nor the runtime's components; S3 tests
# start the servers of hack/toolchain.sh test. root: the real
# components, then e2e. Instances are isolated, so packages run in parallel. all: both.
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

as_root() { [ "$(id -u)" = 0 ] || { echo "these tests need root: run make $1 as root" >&2; exit 1; }; }

# Tests of packages, one package more beside each other than there are processors: they wait at times.
packages() { "${test[@]}" -race -p "$(($(nproc) + 1))" -timeout 40m "$@"; }

# With its tag, which the vet of make lint does not have.
fault_points() { "$go" test -race -tags faultpoints ./pkg/fault; }

# The images for sandboxes take minutes the first time, which is not the time of a test.
sandbox_images() {
	"$go" build -o bin/test/baseimages ./components/baseimage/cmd/baseimages &&
		bin/test/baseimages -dir "${RUNTIME_CACHE:-${HOME:-/root}/.cache/miren-runtime}/baseimages" -sandboxes
}

case ${1:?all, unit, root, e2e, packages, probe, kubernetes or image} in
unit)
	fault_points
	mapfile -t pkgs < <(pick -v "$root_re")
	packages "${pkgs[@]}"
	;;
all | root)
	as_root test
	# What fails does not keep the others from showing theirs.
	rc=0
	if [ "$1" = all ]; then
		fault_points || rc=$?
	else
		mapfile -t all < <(pick "$root_re")
	fi
	sandbox_images || rc=$?
	packages "${all[@]}" || rc=$?
	(cd components/shim && "$go" test -race ./...) || rc=$?
	"$0" e2e || rc=$?
	exit "$rc"
	;;
e2e)
	as_root e2e
	hack/build.sh --faults
	# The tests wait most of their time.
	exec "${test[@]}" -timeout 55m -count=1 -parallel 3 ./e2e
	;;
packages)
	as_root test-packages
	exec "$go" test -tags packages -timeout 60m -count=1 -v -run TestPopularPackages ./components/baseimage
	;;
probe)
	as_root probe
	tests='Probes|Bombs|SeesNothingOfHost|CannotFillTheHost|OnlyItsDisks|Hostile|Confined|Protected|SocketNeedsToken|UnknownMessages|ExceedsItsBound'
	tests+='|Destinations|NoIPv6|ConnectionLimit|ReachOnlyTheOutside|FlushedRules|EgressPolicies'
	exec "$go" test -count=1 -v -timeout 20m -run "$tests" ./components/runsc ./components/agent ./components/network
	;;
kubernetes)
	as_root test-kubernetes
	hack/toolchain.sh etcd cluster
	hack/build.sh
	"$go" test -race -tags kubernetes -count=1 -v -timeout 60m ./components/kubernetes
	exec "$go" test -tags kubernetes -count=1 -v -timeout 30m -run TestKubernetesDriver ./e2e
	;;
image)
	as_root test-image
	exec "$go" test -tags image -count=1 -v -timeout 30m -run TestImage ./e2e
	;;
*)
	echo "unknown set of tests: $1 (all, unit, root, e2e, packages, probe, kubernetes or image)" >&2
	exit 2
	;;
esac
