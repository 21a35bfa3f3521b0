#!/usr/bin/env bash
# Fails if a test run left something on the host: hack/clean-check.sh before
# notes what is there of any installation, hack/clean-check.sh after compares.
# Installations that ran before the tests are not the tests' business.
set -euo pipefail
note=${TMPDIR:-/tmp}/runtime-clean-check.$(id -u)

host() {
	{
		ip netns list 2>/dev/null | awk '$1 ~ /^rt-/ {print "network namespace " $1}'
		ip -o link show 2>/dev/null | awk -F': ' '$2 ~ /^rt[a-z0-9]+(br|bb|x[0-9a-f]+)/ {print "link " $2}' | sed 's/@.*//'
		nft list tables 2>/dev/null | awk '$3 ~ /^rt-/ {print "nftables " $2 " " $3}'
		awk '$2 ~ /(^|\/)rt-[a-z0-9]+/ {print "mount " $2}' /proc/mounts
		awk '$3 == "fuse.lsvd" {print "mount " $2}' /proc/mounts
		find /sys/fs/cgroup -maxdepth 3 -type d -name 'rt-*' 2>/dev/null | sed 's/^/cgroup /'
		losetup -l -n -O BACK-FILE 2>/dev/null | sed -n 's/^/loop /p'
		for p in /proc/[0-9]*; do
			{ tr '\0' ' ' <"$p/cmdline"; } 2>/dev/null | grep -aoE '(containerd-shim-runsc-v1|runsc-sandbox|runsc-gofer|postgres: rt-|containerd --config|buildkitd --config)[^ ]*( [^ ]*rt[a-z0-9-]*[^ ]*)?' | sed "s|^|process ${p#/proc/} |" || true
		done
	} | sort -u
}

case ${1:-} in
before) host >"$note" ;;
after)
	left=$(host | comm -13 "$note" -)
	rm -f "$note"
	if [ -n "$left" ]; then
		printf 'The tests left on the host:\n%s\n' "$left" >&2
		exit 1
	fi
	echo "ok    the host is as it was"
	;;
*)
	echo "usage: hack/clean-check.sh before|after" >&2
	exit 2
	;;
esac
