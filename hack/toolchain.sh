#!/usr/bin/env bash
# Builds the pinned toolchain from Go modules and puts it into bin/.
#
#   hack/toolchain.sh [component...]   build components that are out of date (default: the runtime's)
#   hack/toolchain.sh test             build the servers that only tests start
#   hack/toolchain.sh caddy            build the peer of the ingress in make bench
#   hack/toolchain.sh cluster          build the Kubernetes that make test-kubernetes starts; some ten minutes
#   hack/toolchain.sh --check          list components that are out of date and exit 1; build nothing
#   hack/toolchain.sh --print-dir      print the directory the binaries are in
#   hack/toolchain.sh --list           print the runtime's components, their versions and binaries
#
# GOARCH chooses another architecture than this machine's; RUNTIME_BIN must then be another directory than bin/.
#
# Versions are pinned, and sums held, by the go.mod and go.sum of each module below. A build is kept outside the
# checkout, in ${RUNTIME_CACHE:-~/.cache/miren-runtime}/toolchain/<component>/<key>; the key covers everything
# that goes into it, so checkouts share builds and changing one component rebuilds only that one. bin/, or $RUNTIME_BIN,
# gets hard links (copies across file systems), so pruning the cache never takes a binary away.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bin=${RUNTIME_BIN:-$root/bin}
cache=${RUNTIME_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/miren-runtime}/toolchain
keep=2 # builds kept per component

# Raise to rebuild everything although no input changed.
generation=1

components=(containerd cni buildkit runsc shim launch versitygw)
# Servers and tools that only tests start; make toolchain does not build them.
servers=(minio etcd pebble otelcol helm)
# A cluster for tests: API server and kubelet, and a containerd that serves the kubelet.
cluster=(kubernetes containerd-cri)
# What only make bench starts, beside servers of tests.
peers=(caddy)

# describe COMPONENT sets what is built: module (its directory), pinned (the required module whose version it
# shows), packages, binary (its name, of a single package not named like it), tags, dir (below bin/), flags (extra linker
# flags; VERSION stands for the version). A component that
# go build alone does not make has a script (called as build.sh of runsc says) and sources of ours that go into it.
describe() {
	tags='' dir=. flags='' script='' sources=() binary=''
	case $1 in
	containerd)
		module=hack/toolchain/containerd
		pinned=github.com/containerd/containerd/v2
		packages=("$pinned/cmd/containerd" "$pinned/cmd/ctr" "$pinned/cmd/containerd-shim-runc-v2")
		# Neither Kubernetes nor these snapshotters are used; without them it builds faster and is smaller.
		tags=no_cri,no_btrfs,no_devmapper,no_zfs,urfave_cli_no_docs
		flags="-X $pinned/version.Version=VERSION"
		;;
	cni)
		module=hack/toolchain/cni
		pinned=github.com/containernetworking/plugins
		packages=("$pinned/plugins/main/bridge" "$pinned/plugins/main/loopback"
			"$pinned/plugins/ipam/host-local" "$pinned/plugins/meta/portmap")
		dir=cni
		flags="-X $pinned/pkg/utils/buildversion.BuildVersion=VERSION"
		;;
	buildkit)
		module=hack/toolchain/buildkit
		pinned=github.com/moby/buildkit
		packages=("$pinned/cmd/buildkitd" "$pinned/cmd/buildctl")
		flags="-X $pinned/version.Version=VERSION"
		;;
	runsc) # In the shim's module, so that the two can never be of different versions.
		module=components/shim
		pinned=gvisor.dev/gvisor
		packages=("$pinned/runsc")
		flags="-X $pinned/runsc/version.version=VERSION"
		script=hack/toolchain/runsc/build.sh
		sources=(hack/toolchain/runsc components/shim/precompile)
		;;
	shim)
		module=components/shim
		pinned=gvisor.dev/gvisor
		packages=(.)
		binary=containerd-shim-runsc-v1
		;;
	launch) # What starts the shim, in a fraction of its time.
		module=components/shim
		pinned=gvisor.dev/gvisor
		packages=(./containerd-shim-runsc-launch-v1)
		;;
	minio)
		module=hack/toolchain/minio
		pinned=github.com/minio/minio
		packages=("$pinned")
		;;
	versitygw) # Object stores of addons; a few tests use it too.
		module=hack/toolchain/versitygw
		pinned=github.com/versity/versitygw
		packages=("$pinned/cmd/versitygw")
		;;
	etcd)
		module=hack/toolchain/etcd
		pinned=go.etcd.io/etcd/server/v3
		packages=("$pinned")
		binary=etcd
		;;
	pebble) # An ACME authority, and the name server and more that it validates with.
		module=hack/toolchain/pebble
		pinned=github.com/letsencrypt/pebble/v2
		packages=("$pinned/cmd/pebble" "$pinned/cmd/pebble-challtestsrv")
		;;
	otelcol) # An OpenTelemetry Collector that receives OTLP and writes a file.
		module=hack/toolchain/otelcol
		pinned=go.opentelemetry.io/collector/otelcol
		packages=(.)
		binary=otelcol
		flags="-X main.version=VERSION"
		;;
	helm) # It lints and renders the chart.
		module=hack/toolchain/helm
		pinned=helm.sh/helm/v4
		packages=("$pinned/cmd/helm")
		;;
	caddy)
		module=hack/toolchain/caddy
		pinned=github.com/caddyserver/caddy/v2
		packages=("$pinned/cmd/caddy")
		;;
	kubernetes)
		module=hack/toolchain/kubernetes
		pinned=k8s.io/kubernetes
		packages=("$pinned/cmd/kube-apiserver" "$pinned/cmd/kubelet")
		flags="-X k8s.io/component-base/version.gitVersion=VERSION"
		;;
	containerd-cri)
		module=hack/toolchain/containerd
		pinned=github.com/containerd/containerd/v2
		packages=("$pinned/cmd/containerd")
		binary=containerd-cri
		tags=no_btrfs,no_devmapper,no_zfs,urfave_cli_no_docs
		flags="-X $pinned/version.Version=VERSION"
		;;
	*)
		echo "toolchain.sh: no component $1; there are: ${components[*]} ${servers[*]} ${cluster[*]} ${peers[*]}, test (${servers[*]}) and cluster (${cluster[*]})" >&2
		exit 2
		;;
	esac
	version=$(awk -v m="$pinned" '$1 == m { print $2 } $1 == "require" && $2 == m { print $3 }' "$root/$module/go.mod" | head -n1)
	flags=${flags//VERSION/$version}
	binaries=()
	local p
	for p in "${packages[@]}"; do
		binaries+=("${binary:-${p##*/}}")
	done
	[ "$1" != runsc ] || binaries+=(gvisor-bin/gvisor_sentry gvisor-bin/gvisor-sentry-prewarmer)
}

# key: a hash of everything the described component is made from. A package of another module leaves out the .go
# files beside the go.mod.
key() {
	{
		echo "$generation $goversion $target $module ${packages[*]} tags=$tags flags=$flags"
		cat "$root/$module/go.mod" "$root/$module/go.sum"
		if [[ ${packages[0]} = .* ]]; then
			find "$root/$module" -name '*.go' ! -name '*_test.go' -print0 | LC_ALL=C sort -z | xargs -0 cat
		fi
		if [ ${#sources[@]} -gt 0 ]; then
			(cd "$root" && find "${sources[@]}" -type f -print0 | LC_ALL=C sort -z | xargs -0 cat)
		fi
	} | sha256sum | cut -c1-20
}

# installed DIR: whether bin/ holds what the build in DIR made.
installed() {
	local b
	for b in "${binaries[@]}"; do
		[ "$bin/$dir/$b" -ef "$1/$b" ] || cmp -s "$bin/$dir/$b" "$1/$b" || return 1
	done
}

# install DIR puts the build into bin/. By rename: a running binary is replaced, not written to.
install() {
	local b
	for b in "${binaries[@]}"; do
		[ ! "$bin/$dir/$b" -ef "$1/$b" ] || continue
		mkdir -p "$(dirname "$bin/$dir/$b")"
		rm -f "$bin/$dir/$b.new"
		ln "$1/$b" "$bin/$dir/$b.new" 2>/dev/null || cp -p "$1/$b" "$bin/$dir/$b.new"
		mv -f "$bin/$dir/$b.new" "$bin/$dir/$b"
	done
}

# build DIR makes the described component in DIR, in the background; its process id goes to $child.
build() {
	local out=$1/
	[ -z "$binary" ] || out=$1/$binary
	(
		cd "$root/$module"
		export CGO_ENABLED=0 GOWORK=off GOTOOLCHAIN=local GOFLAGS=-mod=readonly
		[ -z "$script" ] || exec "$root/$script" "$go" "$root/$module" "$1" "-s -w $flags"
		exec "$go" build -trimpath -buildvcs=false -tags "$tags" -ldflags "-s -w $flags" -o "$out" "${packages[@]}"
	) >"$2" 2>&1 &
	child=$!
}

# prune removes all but the newest builds of component $1.
prune() {
	local old
	# The names are hashes: nothing in them to trip over.
	# shellcheck disable=SC2012
	ls -t "$cache/$1" | tail -n +$((keep + 1)) | while read -r old; do
		rm -rf "${cache:?}/$1/$old"
	done
}

tmp='' child=''
cleanup() {
	if [ -n "$child" ]; then
		kill "$child" 2>/dev/null || true
		wait "$child" 2>/dev/null || true
	fi
	[ -z "$tmp" ] || rm -rf "$tmp"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

check=false
wanted=()
for arg; do
	case $arg in
	--check) check=true ;;
	--print-dir)
		echo "$bin"
		exit 0
		;;
	--list)
		for c in "${components[@]}"; do
			describe "$c"
			for b in "${binaries[@]}"; do p=$bin/$dir/$b && echo "$c $version ${p//\/.\//\/}"; done
		done
		exit 0
		;;
	-h | --help)
		sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
		exit 0
		;;
	-*)
		echo "toolchain.sh: unknown option $arg (--check, --print-dir, --list, --help)" >&2
		exit 2
		;;
	test) wanted+=("${servers[@]}" versitygw) ;;
	cluster) wanted+=("${cluster[@]}") ;;
	*) wanted+=("$arg") ;;
	esac
done
[ ${#wanted[@]} -gt 0 ] || wanted=("${components[@]}")

go=$("$root/hack/go.sh")
{ read -r goversion && read -r goos && read -r goarch; } < <(cd / && GOTOOLCHAIN=local "$go" env GOVERSION GOOS GOARCH)
target=$goos/$goarch
# Builds for another architecture are kept apart, so that neither prunes those of the other.
if [ "$goarch" != "$(cd / && env -u GOARCH "$go" env GOARCH)" ]; then
	[ -n "${RUNTIME_BIN:-}" ] || { echo "toolchain.sh: RUNTIME_BIN is missing: bin/ is for programs of this machine, not $goarch" >&2; exit 2; }
	cache=$cache/$goarch
fi

mkdir -p "$cache/logs"
if ! $check; then
	exec 9>"$cache/lock"
	if ! flock -n 9; then
		echo "waiting for another toolchain build to finish" >&2
		flock 9
	fi
	# A killed run left it: no other run works while this one holds the lock.
	rm -rf "$cache"/tmp.*
fi

n=0 stale=0
for c in "${wanted[@]}"; do
	describe "$c"
	n=$((n + 1))
	label="[$n/${#wanted[@]}] $c $version ..."
	k=$(key)
	built=$cache/$c/$k
	if [ -d "$built" ] && installed "$built"; then
		echo "$label up to date"
		continue
	fi
	if $check; then
		echo "$label not up to date"
		stale=$((stale + 1))
		continue
	fi
	if [ -d "$built" ]; then
		touch "$built" # used now, so pruned last
		install "$built"
		echo "$label from the cache"
		continue
	fi

	printf '%s ' "$label"
	log=$cache/logs/$c.log
	tmp=$(mktemp -d "$cache/tmp.XXXXXX")
	started=$SECONDS
	build "$tmp" "$log"
	if [ -t 1 ]; then
		while kill -0 "$child" 2>/dev/null; do
			printf '\r%s %d s ' "$label" $((SECONDS - started))
			sleep 0.5
		done
		printf '\r\033[K%s ' "$label"
	fi
	status=0
	wait "$child" || status=$?
	child=''
	if [ $status -ne 0 ]; then
		echo "failed after $((SECONDS - started)) s"
		echo "--- the last lines of $log" >&2
		tail -n 30 "$log" >&2
		echo "toolchain.sh: building $c failed; the whole log is $log" >&2
		exit 1
	fi
	chmod -R u+rwX,go+rX "$tmp"
	mkdir -p "$cache/$c"
	mv -T "$tmp" "$built"
	tmp=''
	install "$built"
	prune "$c"
	echo "built in $((SECONDS - started)) s"
done
if [ $stale -gt 0 ]; then
	echo "run hack/toolchain.sh to build them" >&2
	exit 1
fi
