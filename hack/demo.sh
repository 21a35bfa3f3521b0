#!/usr/bin/env bash
# make demo: a server of its own, an example app, an answer over HTTP, code in
# a sandbox. `hack/demo.sh stop` ends and removes everything. Safe to repeat.
set -euo pipefail
cd "$(dirname "$0")/.."
state=${DEMO_STATE:-/var/lib/runtime-demo}
port=${DEMO_PORT:-8080}
r=$PWD/bin/r
export RUNTIME_SERVER="" RUNTIME_STATE_DIR=$state

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }

if [ "${1:-}" = stop ]; then
	if [ -d "$state" ]; then
		"$r" server stop
		rm -rf "$state"
	fi
	echo "The demo is stopped and removed."
	exit
fi

say "Starting the server"
"$r" server start --ingress-http-address "127.0.0.1:$port"
"$r" server status

say "Deploying examples/go-http"
"$r" app deploy --dir examples/go-http

say "What it answers at http://go-http.localhost:$port/"
curl -fsS --resolve "go-http.localhost:$port:127.0.0.1" "http://go-http.localhost:$port/"
echo

say "Code in a sandbox"
"$r" sandbox run --image python -- python3 -c 'import platform; print("hello from", platform.uname().release, "in gVisor;", sum(range(101)))'

cat <<TXT

Try next (with RUNTIME_STATE_DIR=$state):
  bin/r app list
  bin/r app logs go-http
  bin/r app history go-http
  change examples/go-http/main.go, then bin/r app deploy --dir examples/go-http
  bin/r app rollback go-http
  bin/r sandbox run -t --image python -- python3

Stop and remove everything:  make demo-stop
TXT
