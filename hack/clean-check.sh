#!/usr/bin/env bash
# Fails if a test run left something on the host: hack/clean-check.sh before [NOTE] notes what is there of any
# installation in the file NOTE, hack/clean-check.sh after [NOTE] compares and removes the file. It does not count what
# belongs to an installation (by the id in its name) that was there before, such as that of make demo or make dev, or
# that a running test holds.
set -euo pipefail
note=${2:-${TMPDIR:-/tmp}/runtime-clean-check.$(id -u)}

# Each list is empty where it may not be read.
host() {
	{
		ip netns list 2>/dev/null | awk '$1 ~ /^rt-/ {print "network namespace " $1}' || true
		ip -o link show 2>/dev/null | awk -F': ' '$2 ~ /^rt[a-z0-9]+(br|bb|x[0-9a-f]+)/ {print "link " $2}' | sed 's/@.*//' || true
		nft list tables 2>/dev/null | awk '$3 ~ /^rt-/ {print "nftables " $2 " " $3}' || true
		awk '$2 ~ /(^|\/)rt-[a-z0-9]+/ {print "mount " $2}' /proc/mounts
		awk '$3 == "fuse.lsvd" {print "mount " $2}' /proc/mounts
		find /sys/fs/cgroup -maxdepth 3 -type d -name 'rt-*' 2>/dev/null | sed 's/^/cgroup /' || true
		losetup -l -n -O BACK-FILE 2>/dev/null | sed -n 's/^/loop /p' || true
		for p in /proc/[0-9]*; do
			{ tr '\0' ' ' <"$p/cmdline"; } 2>/dev/null | grep -aoE '(containerd-shim-runsc-v1|runsc-sandbox|runsc-gofer|postgres: rt-|(containerd|buildkitd) --config )[^ ]*( [^ ]*rt[a-z0-9-]*[^ ]*)?' |
				sed "s|^|process ${p#/proc/} $(grep -aoE -m1 'rt-[a-z0-9]{8}' "$p/cgroup" 2>/dev/null || true) |" || true
		done
	} | sort -u
}

# ids prints the ids in what host has printed: in names that begin with rt, and in the paths of configurations.
ids() {
	grep -oE '\brt-?[a-z0-9]{8}(-|br|bb|x|\b)|/[a-z0-9]{8}/(containerd|buildkit)/' |
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
