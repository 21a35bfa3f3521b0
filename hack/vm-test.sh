#!/usr/bin/env bash
# Tests the parts that depend on the kernel and the init system in a virtual machine that
# has cgroup v2 alone, whatever the host has:
#
#   hack/vm-test.sh [cgroup] [server]    both unless named
#
# cgroup: Debian's kernel boots in QEMU with an initramfs that holds busybox and
# the test binary of components/cgroup; 10 s.
# server: Debian with systemd boots from a disk image; the server runs as a unit
# (hack/vm/runtime.service), sandboxes are limited, the server is restarted and
# killed, and nothing may be left (hack/vm/guest.sh); some minutes.
#
# What they print comes over the serial console. The machine has no network.
#
#   RUNTIME_VM_ACCEL=kvm     use KVM (default: tcg, emulation, which works everywhere)
#   RUNTIME_VM_TIMEOUT=1800  seconds that one machine may run
set -euo pipefail
cd "$(dirname "$0")/.."
hack/packages.sh base vm
go=$(hack/go.sh)
cache=${RUNTIME_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/miren-runtime}/vm
[ "$(uname -m)" = x86_64 ] || { echo "vm-test.sh: only x86_64 is known" >&2; exit 2; }
[ $# -gt 0 ] || set -- cgroup server

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
tmp=$(mktemp -d "$cache/tmp.XXXXXX")
# PostgreSQL's user must enter the state directory, which it may not below a home directory.
state=$(mktemp -d /var/tmp/vm-test.XXXXXX)
chmod o+x "$state"
trap 'rm -rf "$tmp" "$state"' EXIT

# boot MEMORY ARGUMENT...: runs a machine until it powers off, and fails unless
# its console says that nothing failed.
boot() {
	local memory=$1
	shift
	timeout "${RUNTIME_VM_TIMEOUT:-1800}" qemu-system-x86_64 -accel "${RUNTIME_VM_ACCEL:-tcg,thread=multi}" -cpu max -m "$memory" -smp 2 \
		"$@" -nographic -no-reboot -nic none </dev/null 2>&1 | tr -d '\r' | tee "$tmp/console" || true
	if ! grep -qx 'vm: failed=0' "$tmp/console" || grep -q -- '^--- SKIP' "$tmp/console"; then
		echo "vm-test.sh: failed, or skipped, or did not get to the end" >&2
		exit 1
	fi
}
# An emulated timer on a busy host does not pass the kernel's check.
append="console=ttyS0 panic=-1 quiet no_timer_check"

cgroup_tests() {
	CGO_ENABLED=0 "$go" test -c -o "$1" ./components/cgroup
}

# The kernel, from the distribution's package: nothing is installed.
test_cgroup() {
	local package kernel root=$tmp/root
	package=$(apt-cache depends linux-image-cloud-amd64 | awk '$1 == "Depends:" && $2 ~ /^linux-image-[0-9]/ { print $2; exit }')
	[ -n "$package" ] || { echo "vm-test.sh: apt knows no package linux-image-cloud-amd64 (apt-get update)" >&2; exit 1; }
	kernel=$cache/$package
	if [ ! -s "$kernel" ]; then
		echo "vm-test.sh: fetching $package"
		(cd "$tmp" && apt-get -qq -o APT::Sandbox::User=root download "$package")
		dpkg-deb -x "$tmp"/*.deb "$tmp/kernel"
		mv "$tmp"/kernel/boot/vmlinuz-* "$kernel"
	fi
	mkdir -p "$root"/{bin,dev,proc,sys,tmp}
	cp "$(command -v busybox)" "$root/bin/busybox"
	cgroup_tests "$root/cgroup.test"
	cat >"$root/init" <<-'INIT'
		#!/bin/busybox sh
		/bin/busybox --install -s /bin
		export PATH=/bin HOME=/tmp
		mount -t devtmpfs dev /dev
		mount -t proc proc /proc
		mount -t sysfs sys /sys
		mount -t tmpfs tmp /tmp
		mount -t cgroup2 cgroup2 /sys/fs/cgroup
		echo "vm: $(uname -r), controllers: $(cat /sys/fs/cgroup/cgroup.controllers)"
		failed=0
		(cd /tmp && /cgroup.test -test.v) || failed=1
		echo "vm: failed=$failed"
		poweroff -f
	INIT
	chmod +x "$root/init"
	(cd "$root" && find . | cpio -o -H newc --quiet | gzip -1 >"$tmp/initramfs")
	boot 1024 -kernel "$kernel" -initrd "$tmp/initramfs" -append "$append"
}

# debian makes the root filesystem, as an archive that is kept.
debian() {
	local packages=systemd-sysv,postgresql,iproute2,nftables,iptables,e2fsprogs,ca-certificates,mmdebstrap,procps,kmod,linux-image-cloud-amd64
	debian=$cache/debian-$(sha256sum <<<"bookworm $packages" | cut -c1-12).tar
	if [ ! -s "$debian" ]; then
		echo "vm-test.sh: making Debian (some minutes, once)"
		mmdebstrap --quiet --variant=minbase --include="$packages" \
			--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
			--setup-hook='mkdir -p "$1/etc/postgresql-common"; echo "create_main_cluster = false" >"$1/etc/postgresql-common/createcluster.conf"' \
			bookworm "$tmp/debian.tar"
		mv "$tmp/debian.tar" "$debian"
	fi
}

# base puts the sandbox image into the host's cache, which the machine gets.
base() {
	echo "vm-test.sh: making the image of the sandboxes"
	RUNTIME_SERVER='' RUNTIME_STATE_DIR=$state bin/r server start --quiet --ingress-http-address ''
	RUNTIME_SERVER='' RUNTIME_STATE_DIR=$state bin/r sandbox run --image debian -- true
	RUNTIME_SERVER='' RUNTIME_STATE_DIR=$state bin/r server stop --quiet
}

test_server() {
	local root=$tmp/debian image=/var/cache/runtime/baseimages
	hack/toolchain.sh
	hack/build.sh
	debian
	base
	mkdir "$root"
	tar -x -C "$root" -f "$debian"
	cp "$root"/boot/vmlinuz-* "$tmp/vmlinuz"
	cp "$root"/boot/initrd.img-* "$tmp/initrd"
	mkdir -p "$root"/opt/{runtime/bin,tests} "$root$image" "$root/etc/systemd/system/default.target.wants"
	cp -L bin/{r,runtime,runtime-agent,runtime-launch,containerd,containerd-shim-runsc-v1,containerd-shim-runsc-launch-v1,containerd-shim-runc-v2,runsc,buildkitd,buildctl} "$root/opt/runtime/bin/"
	cp -rL bin/{cni,gvisor-bin} "$root/opt/runtime/bin/"
	cp -r "$image"/debian-* "$root$image/"
	# The name of the image depends on where packages come from.
	rm -rf "$root"/etc/apt/{sources.list,sources.list.d,apt.conf.d}
	cp -r /etc/apt/{sources.list.d,apt.conf.d} "$root/etc/apt/"
	[ ! -e /etc/apt/sources.list ] || cp /etc/apt/sources.list "$root/etc/apt/"
	cgroup_tests "$root/opt/tests/cgroup.test"
	cp hack/vm/guest.sh "$root/opt/tests/"
	cp hack/vm/{runtime,vm-test}.service "$root/etc/systemd/system/"
	ln -s ../vm-test.service "$root/etc/systemd/system/default.target.wants/"
	ln -sf /dev/null "$root/etc/systemd/system/serial-getty@ttyS0.service"
	: >"$root/etc/fstab"
	mke2fs -q -t ext4 -O '^has_journal' -d "$root" "$tmp/disk" 3G
	rm -rf "$root"
	boot 3072 -kernel "$tmp/vmlinuz" -initrd "$tmp/initrd" -drive "file=$tmp/disk,if=virtio,format=raw,cache=unsafe" \
		-append "root=/dev/vda rw systemd.show_status=0 $append"
}

for t; do
	case $t in
	cgroup | server) "test_$t" ;;
	*)
		echo "vm-test.sh: no test $t; there are: cgroup, server" >&2
		exit 2
		;;
	esac
done
