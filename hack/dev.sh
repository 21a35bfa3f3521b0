#!/usr/bin/env bash
# A server from this checkout for developing (make dev, dev-shell, dev-stop, dev-tmux): hack/dev/main.go has the rest.
# Has its own state directory (DEV_STATE) and port (DEV_PORT), so that checkouts do not disturb each other.
set -euo pipefail
cd "$(dirname "$0")/.."
go=$(hack/go.sh)
mkdir -p bin/dev
"$go" build -trimpath -buildvcs=false -o bin/dev/supervisor ./hack/dev

case ${1:-run} in
run | -*)
	case " $* " in *" --help "* | *" -h "* | *" -help "*) ;; *) RUNTIME_BIN=$PWD/bin/dev hack/toolchain.sh >/dev/null ;; esac
	;;
tmux) exec hack/dev-tmux.sh ;;
esac
exec bin/dev/supervisor "$@"
