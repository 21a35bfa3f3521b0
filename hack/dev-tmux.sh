#!/usr/bin/env bash
# make dev in a tmux session of three panes: builds and restarts, the logs, a shell with r. Attaches if it exists.
# Ctrl-C in the first pane stops everything and ends the session.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v tmux >/dev/null || {
	echo "dev-tmux.sh: tmux is not installed: hack/packages.sh dev" >&2
	exit 1
}
session=runtime-dev-$(basename "$PWD" | tr -c 'a-zA-Z0-9_\n' _)-$(cksum <<<"$PWD" | cut -d' ' -f1)

if ! tmux has-session -t "=$session" 2>/dev/null; then
	state=$(bin/dev/supervisor state)
	mkdir -p "$state/logs"
	tmux new-session -d -s "$session" -x 200 -y 50 -c "$PWD" \
		"hack/dev.sh run --quiet || { echo 'Enter closes the session'; read -r _; }; tmux kill-session -t '=$session'"
	tmux split-window -t "=$session:" -v -c "$PWD" "tail -n 0 -F '$state/logs/server.log' '$state/logs/ingress.log'"
	tmux split-window -t "=$session:" -v -c "$PWD" "until [ -x bin/dev/r ]; do sleep 0.2; done; exec hack/dev.sh shell"
	tmux select-layout -t "=$session:" even-vertical
fi
if ! [ -t 1 ]; then
	echo "tmux attach -t $session"
elif [ -n "${TMUX:-}" ]; then
	exec tmux switch-client -t "=$session"
else
	exec tmux attach -t "=$session"
fi
