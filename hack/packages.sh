#!/usr/bin/env bash
# Installs the distribution packages this project needs and lacks, and nothing else.
#
#   hack/packages.sh [group...]            install (group base unless named)
#   hack/packages.sh --check [group...]    list missing packages and exit 1; install nothing
#
# Groups: base (to run), test (further tools of tests), lint (for hack/lint.sh), dev (for make dev-tmux), vm (for
# hack/vm-test.sh), release (for hack/release.sh), go (an old Go, to fetch a newer one with; see go.sh).
# For Debian and Ubuntu. Elsewhere it says what to install. A package counts as present when its needed files are,
# wherever they came from.
set -euo pipefail

die() {
	printf 'packages.sh: %s\n' "$*" >&2
	exit 1
}

has() { command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ]; }

# PostgreSQL's server is off the PATH on Debian. Version 14 or newer.
has_postgres() {
	local candidate version
	for candidate in $(command -v postgres) /usr/lib/postgresql/*/bin/postgres /usr/pgsql-*/bin/postgres; do
		[ -x "$candidate" ] || continue
		version=$("$candidate" --version 2>/dev/null | grep -oE '[0-9]+' | head -n1)
		[ "${version:-0}" -ge 14 ] && [ -x "${candidate%/*}/initdb" ] && return 0
	done
	return 1
}

# A Chromium or Chrome that testsupport/browser finds.
has_browser() {
	local name
	for name in chromium-headless-shell chromium chromium-browser google-chrome; do
		has "$name" && return 0
	done
	return 1
}

missing=()
# need PACKAGE CHECK...: the package is missing unless the check passes.
need() {
	local package=$1
	shift
	"$@" || missing+=("$package")
}

group() {
	case $1 in
	base)
		need ca-certificates test -s /etc/ssl/certs/ca-certificates.crt
		need curl has curl
		need e2fsprogs has mkfs.ext4
		# For one small program of the toolchain, without a C library.
		need gcc has gcc
		need git has git
		need iproute2 has ip
		need iptables has iptables
		need make has make
		need nftables has nft
		# Base images from packages: 17 s, where debootstrap took 30 s.
		need mmdebstrap has mmdebstrap
		need postgresql has_postgres
		need util-linux has flock
		need util-linux has losetup
		;;
	test)
		need bubblewrap has bwrap
		# For the tests of the dashboard: a browser without a window.
		need chromium-headless-shell has_browser
		# For components/docker, which runs it in namespaces of its own. It brings containerd and runc.
		need docker.io has dockerd
		need fio has fio
		# For the race detector.
		need libc6-dev test -e /usr/include/stdlib.h
		need libnbd-bin has nbdcopy
		need nbdkit has nbdkit
		need openssh-client has ssh
		need procps has pgrep
		# For the tools of hack/rest-clients.sh.
		need jq has jq
		need python3-libnbd has nbdsh
		need python3-venv python3 -c 'import ensurepip, venv'
		need qemu-utils has qemu-io
		need rsync has rsync
		need rsyslog has rsyslogd
		need tmux has tmux
		need xfsprogs has mkfs.xfs
		;;
	lint)
		need nodejs has node
		need npm has npm
		# For the generators of hack/sdk.sh.
		need python3-venv python3 -c 'import ensurepip, venv'
		;;
	dev)
		need tmux has tmux
		;;
	vm)
		need busybox-static has busybox
		need cpio has cpio
		need qemu-system-x86 has qemu-system-x86_64
		;;
	release)
		# Programs for the other architecture; QEMU runs one of them during the build.
		case $(uname -m) in
		x86_64)
			need binutils-aarch64-linux-gnu has aarch64-linux-gnu-strip
			need gcc-aarch64-linux-gnu has aarch64-linux-gnu-gcc
			need qemu-user has qemu-aarch64
			;;
		aarch64)
			need binutils-x86-64-linux-gnu has x86_64-linux-gnu-strip
			need gcc-x86-64-linux-gnu has x86_64-linux-gnu-gcc
			need qemu-user has qemu-x86_64
			;;
		esac
		need openssh-client has ssh-keygen
		need zip has zip
		;;
	go)
		need golang-go has go
		;;
	*) die "no group $1; there are: base, test, lint, dev, vm, release, go" ;;
	esac
}

check=false groups=()
for arg; do
	case $arg in
	--check) check=true ;;
	-h | --help)
		sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
		exit 0
		;;
	-*) die "unknown option $arg (--check, --help)" ;;
	*) groups+=("$arg") ;;
	esac
done
[ ${#groups[@]} -gt 0 ] || groups=(base)
for g in "${groups[@]}"; do group "$g"; done

if [ ${#missing[@]} -eq 0 ]; then
	echo "packages: all present (${groups[*]})"
	exit 0
fi
mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)
if $check; then
	printf 'missing: %s\n' "${missing[*]}"
	exit 1
fi
has apt-get || die "no apt-get here: install what these Debian packages hold, then run this again: ${missing[*]}"
[ "$(id -u)" -eq 0 ] || die "not root; run: sudo $0 ${groups[*]} (would install: ${missing[*]})"

# Debian's postgresql makes and starts a cluster when installed, and other packages start their daemons. We want the
# binaries: no cluster is made, and for the time of the install nothing may start.
policy=/usr/sbin/policy-rc.d cluster=/etc/postgresql-common/createcluster.conf
made=()
cleanup() { [ ${#made[@]} -eq 0 ] || rm -f "${made[@]}"; }
trap cleanup EXIT
if [ ! -e "$policy" ]; then
	made+=("$policy")
	printf '#!/bin/sh\nexit 101\n' >"$policy"
	chmod 755 "$policy"
fi
if [[ " ${missing[*]} " == *" postgresql "* ]] && [ ! -e "$cluster" ]; then
	# The file stays, so that no later upgrade makes a cluster either. An administrator's own file is not changed.
	mkdir -p "${cluster%/*}"
	printf 'create_main_cluster = false\n' >"$cluster"
fi

echo "packages: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
apt() {
	# Lock::Timeout: wait for another apt instead of failing.
	if ! apt-get -q -o DPkg::Lock::Timeout=300 -o Dpkg::Options::=--force-confold "$@" >"$log" 2>&1; then
		tail -n 30 "$log" >&2
		die "apt-get $* failed; the whole log is $log"
	fi
}
apt update
apt install -y --no-install-recommends "${missing[@]}"
rm -f "$log"

# An installed package may be unusable: check again.
wanted=("${missing[@]}") missing=()
for g in "${groups[@]}"; do group "$g"; done
[ ${#missing[@]} -eq 0 ] || die "installed ${wanted[*]}, but these still lack what is needed of them: ${missing[*]}"
echo "packages: installed ${wanted[*]}"
