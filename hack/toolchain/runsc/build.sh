#!/usr/bin/env bash
# Builds runsc with its seccomp programs compiled ahead, with a limit of files and the errors of fsync, and the sidecars
# that it looks for beside itself:
#
#   hack/toolchain/runsc/build.sh GO MODULE OUT LDFLAGS
#
#   OUT/runsc
#   OUT/gvisor-bin/gvisor_sentry              the same file: what runsc starts as the sandbox
#   OUT/gvisor-bin/gvisor-sentry-prewarmer    see prewarmer.c
#
# The published module has an empty table of seccomp programs. Go refuses an overlay over the module cache, so a copy
# of the module gets the table, and is built in the module's place with the dependencies that MODULE pins.
set -euo pipefail
go=$1 module=$2 out=$3 ldflags=$4
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d "$out/work.XXXXXX")
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT

run=() prefix=''
if [ "$("$go" env GOARCH)" != "$("$go" env GOHOSTARCH)" ]; then
	case $("$go" env GOARCH) in
	amd64) machine=x86_64 ;;
	arm64) machine=aarch64 ;;
	*) echo "runsc is not built for $("$go" env GOARCH)" >&2; exit 1 ;;
	esac
	run=("qemu-$machine") prefix=$machine-linux-gnu-
fi

cd "$module"
"$go" mod download gvisor.dev/gvisor
src=$("$go" list -m -f '{{.Dir}}' gvisor.dev/gvisor)
cp -r "$src" "$work/gvisor"
chmod -R u+w "$work/gvisor"
cp go.mod "$work/go.mod"
cp go.sum "$work/go.sum"
echo "replace gvisor.dev/gvisor => $work/gvisor" >>"$work/go.mod"

# Which options are compiled is chosen by precompile, through this hook.
hook() { # PACKAGE LINE
	local file=$work/gvisor/$1/config_precompiled.go
	[ "$(grep -cF "$2" "$file")" = 1 ] || { echo "$1 of this gVisor is not as expected" >&2; exit 1; }
	sed -i "s/^\t\(opts.*:= optionsToPrecompile()\)$/\t\1\n\topts = slices.DeleteFunc(opts, func(o Options) bool { return !KeepPrecompiled(o) })/" "$file"
	sed -i '0,/^import (/s//import (\n\t"slices"/' "$file"
	printf '\n// KeepPrecompiled chooses the options whose programs are compiled ahead.\nvar KeepPrecompiled func(Options) bool\n' >>"$file"
}
hook runsc/boot/filter/config 'opts, err := optionsToPrecompile()'
hook runsc/fsgofer/filter/config 'opts := optionsToPrecompile()'

# The size of the upper layer may name a number of files too: BYTES/FILES. The layer, a tmpfs, can be bounded in both.
upper=$work/gvisor/runsc/boot/vfs.go
size='Data += "size=" + mountConf.Size'
[ "$(grep -cF "$size" "$upper")" = 1 ] || { echo "runsc/boot of this gVisor is not as expected" >&2; exit 1; }
sed -i "s|$size|Data += \"size=\" + strings.Replace(mountConf.Size, \"/\", \",nr_inodes=\", 1)|" "$upper"

# gVisor drops the error of the host's fsync, so that a program takes for durable what its disk has refused.
gofer=$work/gvisor/pkg/sentry/fsimpl/gofer/gofer.go
[ "$(grep -cP '^\t\t[rw]h\.sync(Data)?\(ctx\)$' "$gofer")" = 4 ] || { echo "pkg/sentry/fsimpl/gofer of this gVisor is not as expected" >&2; exit 1; }
sed -i -E 's/^(\t\t)([rw]h\.sync(Data)?\(ctx\))$/\1if err := \2; err != nil {\n\1\treturn err\n\1}/' "$gofer"

if [ ${#run[@]} -gt 0 ]; then
	# QEMU has no seccomp(2), by which precompile asks whether a program may kill the whole process: all kernels since 4.14 can.
	ask=$work/gvisor/pkg/seccomp/seccomp_unsafe.go
	[ "$(grep -c 'return false, errno$' "$ask")" = 1 ] || { echo "pkg/seccomp of this gVisor is not as expected" >&2; exit 1; }
	sed -i 's/return false, errno$/return errno == unix.ENOSYS, nil/' "$ask"
fi

build() { CGO_ENABLED=0 "$go" build -modfile "$work/go.mod" -trimpath -buildvcs=false "$@"; }
build -tags precompile -o "$work/precompile" ./precompile
"${run[@]}" "$work/precompile" "$work/gvisor"
build -ldflags "$ldflags" -o "$out/runsc" gvisor.dev/gvisor/runsc

mkdir -p "$out/gvisor-bin"
ln -f "$out/runsc" "$out/gvisor-bin/gvisor_sentry"
"${prefix}gcc" -O2 -static -nostdlib -ffreestanding -fno-stack-protector -fno-asynchronous-unwind-tables -Wall -Werror \
	-o "$out/gvisor-bin/gvisor-sentry-prewarmer" "$here/prewarmer.c"
"${prefix}strip" "$out/gvisor-bin/gvisor-sentry-prewarmer"
