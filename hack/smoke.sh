#!/usr/bin/env bash
# Proves the toolchain by hand: a private containerd runs containers from a Debian root in gVisor, through our shim;
# they are executed in, checkpointed, restored, killed and deleted; BuildKit builds in gVisor; nothing is left behind.
#
#   hack/smoke.sh [--keep]     needs root; --keep leaves the state directory and its logs
#
# The Debian root is made once (17 s) and kept in the cache.

# shellcheck disable=SC2016 # the scripts in single quotes are for the shell in the container
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${RUNTIME_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/miren-runtime}/smoke
keep=false
[ "${1:-}" != --keep ] || keep=true

[ "$(id -u)" -eq 0 ] || { echo "smoke.sh: needs root" >&2; exit 1; }
"$root/hack/toolchain.sh" --check >/dev/null || "$root/hack/toolchain.sh"
bin=$("$root/hack/toolchain.sh" --print-dir)

dir=$(mktemp -d /tmp/smoke.XXXXXX) # short: there are sockets in it
id=${dir##*.}
pids=()

failed() {
	echo "smoke: FAILED: $*" >&2
	grep -hE 'level=(error|fatal)|panic' "$dir"/*.log | tail -n 20 >&2 || true
	exit 1
}
step() { printf 'smoke: %-58s' "$1"; began=$(date +%s%N); }
done_() { printf ' %5d ms\n' $((($(date +%s%N) - began) / 1000000)); }

# left lists our remaining objects on the machine: processes, mounts, network namespaces, links, shim sockets.
left() {
	local p
	for p in /proc/[0-9]*; do
		[ "${p#/proc/}" != "$$" ] || continue
		if tr '\0' ' ' <"$p/cmdline" 2>/dev/null | grep -qF -- "$dir"; then
			echo "process ${p#/proc/}: $(tr '\0' ' ' <"$p/cmdline" | cut -c1-120)"
		fi
	done
	grep -F "$dir" /proc/self/mounts | sed 's/^/mount /' || true
	ip netns list | grep "^smoke-$id" | sed 's/^/netns /' || true
	ip -o link | grep -E " sm-$id" | sed 's/^/link /' || true
	find /sys/fs/cgroup -type d -name "smoke-$id" | sed 's/^/cgroup /'
	iptables-save 2>/dev/null | grep -F "smoke-$id" | sed 's/^/rule /' || true
	find "$dir/s" -type s 2>/dev/null | sed 's/^/socket /'
}

stop() { # the processes we started, by their ids
	local p
	for p in "${pids[@]}"; do kill "$p" 2>/dev/null || true; done
	for p in "${pids[@]}"; do
		for _ in $(seq 50); do kill -0 "$p" 2>/dev/null || break; sleep 0.1; done
		kill -9 "$p" 2>/dev/null || true
	done
	pids=()
}

cleanup() {
	local status=$? n m
	set +e
	if [ $status -ne 0 ] && [ -S "$dir/c.sock" ]; then
		for n in $(ctr tasks ls -q); do ctr tasks rm -f "$n"; done
		for n in $(ctr containers ls -q); do ctr containers rm "$n"; done
	fi >/dev/null 2>&1
	stop
	remove_netns
	remove_cgroups
	ip link del "sm-$id" 2>/dev/null
	# runsc leaves a mount of a network namespace under its root; deepest first.
	grep -oF "$dir" /proc/self/mounts >/dev/null && awk -v d="$dir" 'index($2, d) == 1 { print $2 }' /proc/self/mounts |
		sort -r | while read -r m; do umount "$m"; done
	if $keep; then echo "smoke: kept $dir"; else rm -rf "$dir"; fi
	exit $status
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

ctr() { "$bin/ctr" -a "$dir/c.sock" -n smoke "$@" 2> >(grep -v 'DEPRECATION' >&2); }
# The cgroups of the containers are removed with them; their parents are not. cgroup v1 has them once per hierarchy.
remove_cgroups() {
	find /sys/fs/cgroup -depth -type d \( -path "*/smoke-$id" -o -path "*/smoke-$id/buildkit" \) -exec rmdir {} + 2>/dev/null || true
}
# Listed, not remembered: some are made in subshells.
remove_netns() {
	local n
	for n in $(ip netns list | grep -o "^smoke-$id-[a-z0-9]*"); do ip netns del "$n"; done
}
run() { # run NAME [ctr run options] -- COMMAND...
	local name=$1 options=()
	shift
	while [ "$1" != -- ]; do options+=("$1"); shift; done
	shift
	ip netns add "smoke-$id-$name"
	ctr run --runtime "$bin/containerd-shim-runsc-v1" --runtime-config-path "$dir/runsc.toml" \
		--with-ns "network:/run/netns/smoke-$id-$name" --cgroup "/smoke-$id/$name" "${options[@]}" "$image" "$name" "$@"
}
wait_for() { for _ in $(seq 100); do "$@" >/dev/null 2>&1 && return; sleep 0.05; done; failed "waited for: $*"; }
# In this file only: a pipeline would hide the status of the first command.
expect() { # expect PATTERN COMMAND...
	local pattern=$1 out
	shift
	out=$("$@" 2>&1) || failed "$* exited with $?: $out"
	grep -qE -- "$pattern" <<<"$out" || failed "$*: no $pattern in: $out"
}

if [ ! -f "$cache/debian.tar" ]; then
	step "Debian root by mmdebstrap"
	mkdir -p "$cache"
	# This machine's own distribution: its sources and keys are at hand.
	# shellcheck source=/dev/null
	suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
	mmdebstrap --quiet --variant=minbase --include=ca-certificates "$suite" "$cache/new.$$.tar" >"$dir/mmdebstrap.log" 2>&1 ||
		{ tail -n 20 "$dir/mmdebstrap.log" >&2; failed "mmdebstrap"; }
	mv "$cache/new.$$.tar" "$cache/debian.tar"
	done_
fi

step "containerd starts"
cat >"$dir/containerd.toml" <<-EOF
	version = 3
	root = "$dir/root"
	state = "$dir/state"
	disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.internal.v1.opt"]
	[grpc]
	address = "$dir/c.sock"
	[ttrpc]
	address = "$dir/c.sock.ttrpc"
	[plugins."io.containerd.shim.v1.manager"]
	socket_dir = "$dir/s"
EOF
cat >"$dir/runsc.toml" <<-EOF
	binary_name = "$bin/runsc"
	root = "$dir/runsc"
	[runsc_config]
	network = "sandbox"
	platform = "systrap"
	host-uds = "open"
	allow-flag-override = "true"
	[runtime]
	ca_bundle = "/etc/ssl/certs/ca-certificates.crt"
EOF
# An environment of its own: shims and their children inherit it.
env -i PATH="$bin:/usr/sbin:/usr/bin:/sbin:/bin" setsid "$bin/containerd" -c "$dir/containerd.toml" >"$dir/containerd.log" 2>&1 &
pids+=($!)
wait_for test -S "$dir/c.sock"
wait_for ctr version
done_

step "image from the Debian root"
# An image as an OCI layout: one uncompressed layer.
layout=$dir/layout blobs=$dir/layout/blobs/sha256
mkdir -p "$blobs"
put() { # put FILE: becomes a blob; prints its digest and size
	local sum
	sum=$(sha256sum "$1" | cut -d' ' -f1)
	mv "$1" "$blobs/$sum"
	printf '"digest":"sha256:%s","size":%d' "$sum" "$(stat -c %s "$blobs/$sum")"
}
ln "$cache/debian.tar" "$dir/layer" 2>/dev/null || cp "$cache/debian.tar" "$dir/layer"
layer=$(put "$dir/layer")
arch=$("$("$root/hack/go.sh")" env GOARCH)
diff_id=$(grep -o 'sha256:[0-9a-f]*' <<<"$layer")
printf '{"architecture":"%s","os":"linux","config":{"Env":["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],"Cmd":["/bin/sh"]},"rootfs":{"type":"layers","diff_ids":["%s"]}}' \
	"$arch" "$diff_id" >"$dir/config"
config=$(put "$dir/config")
printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json",%s},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar",%s}]}' \
	"$config" "$layer" >"$dir/manifest"
manifest=$(put "$dir/manifest")
image=docker.io/library/smoke:base
printf '{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json",%s,"annotations":{"io.containerd.image.name":"%s"}}]}' \
	"$manifest" "$image" >"$layout/index.json"
printf '{"imageLayoutVersion":"1.0.0"}' >"$layout/oci-layout"
tar -C "$layout" -cf "$dir/image.tar" .
ctr images import "$dir/image.tar" >/dev/null
rm -rf "$dir/image.tar" "$layout"
done_

step "run uname -a: create, start, exit, delete"
expect 'gvisor' run one --rm -- uname -a
done_

step "run dmesg"
expect 'Starting gVisor' run dmesg --rm -- dmesg
done_

step "exit status passes"
status=0
run status --rm -- sh -c 'exit 7' || status=$?
[ $status -eq 7 ] || failed "exit status $status, want 7"
done_

step "start a service, exec into it"
run service -d -- sh -c 'i=0; while :; do i=$((i+1)); echo $i >/count; sleep 0.05; done'
expect '^uid=0' ctr task exec --exec-id x service id
done_

step "the CA bundle, where an annotation asks for it"
expect '^/run/runtime/ca-certificates.crt$' run ca --rm --annotation dev.miren.runtime/ca=true -- \
	sh -c 'test -s "$SSL_CERT_FILE" && test -s /etc/ssl/certs/ca-certificates.crt && echo $SSL_CERT_FILE'
expect '^none$' run noca --rm -- sh -c 'echo ${SSL_CERT_FILE:-none}'
done_

step "a second container in the same sandbox, one shim"
run poda -d --annotation io.kubernetes.cri.container-type=sandbox --annotation io.kubernetes.cri.sandbox-id=poda -- sleep 1000
ctr run -d --runtime "$bin/containerd-shim-runsc-v1" --runtime-config-path "$dir/runsc.toml" \
	--with-ns "network:/run/netns/smoke-$id-poda" --cgroup "/smoke-$id/podb" --annotation io.kubernetes.cri.container-type=container \
	--annotation io.kubernetes.cri.sandbox-id=poda "$image" podb sleep 1000
[ "$(pgrep -fc -- "containerd-shim-runsc-v1 .*$dir/c.sock -id pod[ab]")" -eq 1 ] || failed "not one shim for both"
expect '^ok' ctr task exec --exec-id x podb echo ok
for c in podb poda; do
	ctr task kill -s KILL "$c"
	wait_for ctr task delete "$c"
	ctr container delete "$c"
done
done_

step "checkpoint, and a container restored from it"
before=$(ctr task exec --exec-id x service cat /count)
mkdir "$dir/checkpoint"
# Not by ctr, whose client also makes an image of the container's files.
"$bin/runsc" --root "$dir/runsc/smoke" checkpoint --image-path "$dir/checkpoint" service
wait_for ctr task delete service
ctr container delete service
run restored -d --annotation "dev.miren.runtime/restore-image=$dir/checkpoint" -- \
	sh -c 'i=0; while :; do i=$((i+1)); echo $i >/count; sleep 0.05; done'
after=$(ctr task exec --exec-id x restored cat /count)
[ "${after:-0}" -ge "$before" ] || failed "the restored container counts $after, the checkpointed one had $before"
done_

step "kill and delete"
ctr task kill -s KILL restored
wait_for ctr task delete restored
ctr container delete restored
done_

step "a killed shim leaves no sandbox"
run orphan -d -- sleep 1000
kill -9 "$(pgrep -f -- "containerd-shim-runsc-v1 .*$dir/c.sock -id orphan")"
gone() { ! pgrep -f -- "^runsc-sandbox.*$dir/.* orphan" >/dev/null; }
wait_for gone
ctr task delete orphan >/dev/null 2>&1 || true
ctr container delete orphan
done_

step "containerd restarts, the container runs on"
run survivor -d -- sleep 1000
stop
env -i PATH="$bin:/usr/sbin:/usr/bin:/sbin:/bin" setsid "$bin/containerd" -c "$dir/containerd.toml" >>"$dir/containerd.log" 2>&1 &
pids+=($!)
wait_for ctr version
expect '^alive' ctr task exec --exec-id x survivor echo alive
ctr task kill -s KILL survivor
wait_for ctr task delete survivor
ctr container delete survivor
done_

step "BuildKit starts"
sed 's/^host-uds.*/overlay2 = "none"/; s/^allow-flag.*//; s/^\[runtime\]/&\nca = "env"\nrestore_network = true/' \
	"$dir/runsc.toml" >"$dir/build.toml"
subnet=10.$((RANDOM % 100 + 150)).$((RANDOM % 250)).0/24
cat >"$dir/build.conflist" <<-EOF
	{"cniVersion":"1.0.0","name":"smoke-$id","plugins":[{"type":"bridge","bridge":"sm-$id","isGateway":true,"ipMasq":true,
	 "ipam":{"type":"host-local","dataDir":"$dir/cni","ranges":[[{"subnet":"$subnet"}]],"routes":[{"dst":"0.0.0.0/0"}]}}]}
EOF
cat >"$dir/buildkitd.toml" <<-EOF
	root = "$dir/buildkit"
	[grpc]
	address = ["unix://$dir/b.sock"]
	[cdi]
	disabled = true
	[worker.oci]
	enabled = false
	[worker.containerd]
	enabled = true
	address = "$dir/c.sock"
	namespace = "smoke"
	snapshotter = "overlayfs"
	defaultCgroupParent = "smoke-$id"
	networkMode = "cni"
	cniConfigPath = "$dir/build.conflist"
	cniBinaryPath = "$bin/cni"
	[worker.containerd.runtime]
	name = "io.containerd.runsc.v1"
	path = "$bin/containerd-shim-runsc-v1"
	[worker.containerd.runtime.options]
	TypeUrl = "io.containerd.runsc.v1.options"
	ConfigPath = "$dir/build.toml"
EOF
env -i PATH="$bin:/usr/sbin:/usr/bin:/sbin:/bin" setsid "$bin/buildkitd" --config "$dir/buildkitd.toml" >"$dir/buildkitd.log" 2>&1 &
pids+=($!)
wait_for "$bin/buildctl" --addr "unix://$dir/b.sock" debug workers
done_

step "build an image in gVisor: COPY, three RUN, two with network"
mkdir "$dir/src"
echo hello >"$dir/src/file"
gateway=${subnet%0/24}1
cat >"$dir/src/Dockerfile" <<-EOF
	FROM $image
	COPY file /file
	RUN dmesg | grep -q 'Starting gVisor' && test -s "\$SSL_CERT_FILE" && cp /file /made
	RUN grep -q "\$(printf '%02X' ${gateway//./ } | sed 's/\(..\)\(..\)\(..\)\(..\)/\4\3\2\1/')" /proc/net/route
	RUN grep -q "\$(printf '%02X' ${gateway//./ } | sed 's/\(..\)\(..\)\(..\)\(..\)/\4\3\2\1/')" /proc/net/route
EOF
"$bin/buildctl" --addr "unix://$dir/b.sock" build --progress=plain --frontend dockerfile.v0 --local "context=$dir/src" \
	--local "dockerfile=$dir/src" --opt image-resolve-mode=local \
	--output type=image,name=docker.io/library/smoke:built >"$dir/build.log" 2>&1 || { tail -n 30 "$dir/build.log" >&2; failed build; }
done_

step "run what was built; the build left no trace of the CA bundle"
image=docker.io/library/smoke:built
expect '^hello clean$' run built --rm -- sh -c 'echo $(cat /made) $(test -e /run/runtime || echo clean)'
done_

step "nothing is left behind"
stop
remove_netns
remove_cgroups
ip link del "sm-$id"
for m in "$dir"/runsc/*/null-netns; do umount "$m"; done # the one thing runsc leaves
rest=$(left)
[ -z "$rest" ] || failed "left behind:
$rest"
done_
echo "smoke: all good"
