#!/usr/bin/env bash
# Fails if a test run left something on the host: hack/clean-check.sh before [NOTE] records the objects of all
# installations in the file NOTE, hack/clean-check.sh after [NOTE] compares and removes the file. It does not count objects
# of an installation (by the id in their names) that existed before, such as one of make demo or make dev, or that a
# running test holds.
set -euo pipefail
note=${2:-${TMPDIR:-/tmp}/runtime-clean-check.$(id -u)}

# processes prints what installations run, each with the id in its control group.
processes() {
	local all pid args
	all=$(ps -eww -o pid=,args=) # first, so that the grep is not among them
	LC_ALL=C grep -aE '(containerd-shim-runsc-v1|runsc-sandbox|runsc-gofer|postgres: rt-|(containerd|buildkitd) --config )' <<<"$all" |
		while read -r pid args; do
			echo "process $pid $(grep -aoE -m1 'rt-[a-z0-9]{8}' "/proc/$pid/cgroup" 2>/dev/null || true) ${args:0:300}"
		done
}

# Each list is empty where it may not be read.
host() {
	{
		ip netns list 2>/dev/null | awk '$1 ~ /^rt-/ {print "network namespace " $1}' || true
		ip -o link show 2>/dev/null | awk -F': ' '$2 ~ /^rt[a-z0-9]+(br|bb|x[0-9a-f]+)/ {print "link " $2}' | sed 's/@.*//' || true
		ip rule list 2>/dev/null | grep -oE 'iif rt[a-z0-9]{8}(br|bb)' | sed 's/^iif/routing rule of/' || true
		nft list tables 2>/dev/null | awk '$3 ~ /^rt-/ {print "nftables " $2 " " $3}' || true
		awk '$2 ~ /(^|\/)rt-[a-z0-9]+/ {print "mount " $2}' /proc/mounts
		grep -oE ' [^ ]*/[a-z0-9]{8}/(netns|runsc|buildkit)(/[^ ]*)? ' /proc/mounts | sed 's/^/mount/' || true
		awk '$3 == "fuse.lsvd" {print "mount " $2}' /proc/mounts
		find /sys/fs/cgroup -maxdepth 3 -type d -name 'rt-*' 2>/dev/null | sed 's/^/cgroup /' || true
		losetup -l -n -O BACK-FILE 2>/dev/null | sed -n 's/^/loop /p' || true
		processes || true
	} | sort -u
}

# ids prints the ids in what host has printed: in names that begin with rt, and in the paths of run directories.
ids() {
	grep -oE '\brt-?[a-z0-9]{8}(-|br|bb|x|\b)|/[a-z0-9]{8}/(containerd|buildkit|netns|runsc)/' |
		sed -E 's/^rt-?(.{8}).*/\1/; s|^/(.{8})/.*|\1|' | sort -u || true
}

# held prints the ids of the installations that running tests have (testsupport/leakcheck).
held() {
	local f dir
	for f in "${TMPDIR:-/tmp}/rt-tests-$(id -u)"/*.dir; do
		[ -f "$f" ] || continue
		if ! flock -n -s "$f" true; then
			dir=$(cat "$f")
			cat "$dir/state/instance-id" 2>/dev/null || true
		fi
	done
}

case ${1:-} in
before) host >"$note" ;;
after)
	left=$(host | comm -13 "$note" -)
	others=$({ ids <"$note" && held; } | sed '/^$/d')
	rm -f "$note"
	if [ -n "$others" ]; then
		left=$(grep -vF "$others" <<<"$left" || true)
	fi
	if [ -n "$left" ]; then
		printf 'The tests left on the host:\n%s\n' "$left" >&2
		exit 1
	fi
	echo "ok    the host is as it was"
	;;
*)
	echo "usage: hack/clean-check.sh before|after [NOTE]" >&2
	exit 2
	;;
esac
