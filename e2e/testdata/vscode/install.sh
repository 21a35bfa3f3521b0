# What the extension Remote-SSH has a bash without a terminal read from its standard
# input, in short: it looks at the machine, unpacks the server that was copied here
# unless it is there, starts it unless it runs, and prints where it listens.
echo "$SCRIPT_ID: running"
case "$(uname -s) $(uname -m)" in
"Linux x86_64") ARCH=x64 ;;
"Linux aarch64") ARCH=arm64 ;;
*) echo "$SCRIPT_ID: unsupported $(uname -rsv)" && exit 31 ;;
esac
DIR="$HOME/.vscode-server"
LOG="$DIR/.test.log" PIDFILE="$DIR/.test.pid" TOKENFILE="$DIR/.test.token"
mkdir -p "$DIR/bin" && cd "$DIR" || exit 32
exec 9>"$DIR/.lock" && flock -w 20 9 || exit 33
if [ ! -f "$DIR/bin/test/server-main.js" ]; then
	mkdir -p "$DIR/bin/test" && tar -xzf "$DIR/server.tar.gz" -C "$DIR/bin/test" || exit 34
fi
REUSED=no
if [ -f "$PIDFILE" ] && ps -p "$(cat "$PIDFILE")" -o args= | grep -q server-main.js; then
	REUSED=yes
else
	umask 077
	TOKEN=$(cat /proc/sys/kernel/random/uuid)
	echo "$TOKEN" >"$TOKENFILE"
	rm -f "$LOG"
	nohup node "$DIR/bin/test/server-main.js" --host=127.0.0.1 --port=0 --connection-token="$TOKEN" >"$LOG" 2>&1 </dev/null 9>&- &
	echo $! >"$PIDFILE"
fi
for _ in $(seq 200); do
	PORT=$(sed -n 's/.*Extension host agent listening on \([0-9]*\).*/\1/p' "$LOG" 2>/dev/null)
	[ -z "$PORT" ] || break
	sleep 0.1
done
exec 9>&-
echo "$SCRIPT_ID: start"
echo "listeningOn==$PORT=="
echo "connectionToken==$(cat "$TOKENFILE")=="
echo "arch==$ARCH=="
echo "reused==$REUSED=="
echo "$SCRIPT_ID: end"
