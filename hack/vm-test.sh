#!/usr/bin/env bash
# Tests what depends on the kernel in a virtual machine with cgroup v2 alone,
# as systemd has it, whatever the host has: hack/vm-test.sh
#
# Debian's kernel boots in QEMU with an initramfs that holds busybox and the
# test binaries; what they print comes over the serial console. Without KVM, or
# with one that does not run the kernel, the machine is emulated: about 10 s.
#
#   RUNTIME_VM_ACCEL=kvm   use KVM (default: tcg, which works everywhere)
#   RUNTIME_VM_TIMEOUT=300 seconds that it may take
set -euo pipefail
cd "$(dirname "$0")/.."
hack/packages.sh base vm
go=$(hack/go.sh)
cache=${RUNTIME_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/miren-runtime}/vm
case $(uname -m) in
x86_64) arch=amd64 ;;
*)
	echo "vm-test.sh: only x86_64 is known" >&2
	exit 2
	;;
esac

# The kernel, from the distribution's package: nothing is installed.
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
package=$(apt-cache depends "linux-image-cloud-$arch" | awk '$1 == "Depends:" && $2 ~ /^linux-image-[0-9]/ { print $2; exit }')
[ -n "$package" ] || { echo "vm-test.sh: apt knows no package linux-image-cloud-$arch (apt-get update)" >&2; exit 1; }
kernel=$cache/$package
tmp=$(mktemp -d "$cache/tmp.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
if [ ! -s "$kernel" ]; then
	echo "vm-test.sh: fetching $package"
	(cd "$tmp" && apt-get -qq -o APT::Sandbox::User=root download "$package")
	dpkg-deb -x "$tmp"/*.deb "$tmp/kernel"
	mv "$tmp"/kernel/boot/vmlinuz-* "$kernel"
fi

root=$tmp/root
mkdir -p "$root"/{bin,dev,proc,sys,tmp,tests}
cp "$(command -v busybox)" "$root/bin/busybox"
for package in components/cgroup; do
	CGO_ENABLED=0 "$go" test -c -o "$root/tests/${package//\//-}" "./$package"
done
cat >"$root/init" <<'INIT'
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
for t in /tests/*; do
	echo "vm: $t"
	(cd /tmp && "$t" -test.v) || failed=1
done
echo "vm: failed=$failed"
poweroff -f
INIT
chmod +x "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet | gzip -1 >"$tmp/initramfs")

timeout "${RUNTIME_VM_TIMEOUT:-300}" qemu-system-x86_64 -accel "${RUNTIME_VM_ACCEL:-tcg,thread=multi}" -cpu max -m 1024 -smp 2 \
	-kernel "$kernel" -initrd "$tmp/initramfs" -append "console=ttyS0 panic=-1 quiet" \
	-nographic -no-reboot -net none </dev/null 2>&1 | tr -d '\r' | tee "$tmp/console" || true
if ! grep -qx 'vm: failed=0' "$tmp/console" || grep -q -- '^--- SKIP' "$tmp/console"; then
	echo "vm-test.sh: failed, or skipped, or did not get to the end" >&2
	exit 1
fi
