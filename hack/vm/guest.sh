#!/bin/bash
# Runs in the virtual machine, under systemd. Each check prints "vm: ok NAME" or "vm: FAIL NAME".
export PATH=/opt/runtime/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root NO_COLOR=1
ok() { echo "vm: ok $1"; }
bad() { echo "vm: FAIL $1"; shift; printf '%s\n' "$@"; failed=1; }
failed=0
echo "vm: $(uname -r) $(systemctl --version | head -n1) controllers: $(cat /sys/fs/cgroup/cgroup.controllers), enabled: $(cat /sys/fs/cgroup/cgroup.subtree_control)"
(cd /tmp && /opt/tests/cgroup.test) && ok cgroup || bad cgroup
systemctl start runtime
for _ in $(seq 240); do out=$(r server status 2>&1) && break; sleep 1; done
r server status && ok server || bad server "$out" "$(journalctl -u runtime | tail -n 20)"
phase() { r sandbox show "$1" --json | grep -oE "\"$2\": \"?[^\",]*" | head -n1 | sed 's/.*: "*//'; }
await() { [ -n "$1" ] || return 1; for _ in $(seq 240); do [ "$(phase "$1" "$2")" = "$3" ] && return 0; sleep 0.5; done; r sandbox show "$1"; return 1; }

out=$(r sandbox run --image debian -- uname -a 2>&1); case $out in *gvisor*) ok gvisor ;; *) bad gvisor "$out" "$(journalctl -u runtime | tail -n 30)" ;; esac
id=$(r sandbox run --detach --image debian --memory 128MB -- sh -c 'tail /dev/zero; sleep 600')
await "$id" reason oom && ok memory || bad memory
out=$(r sandbox run --image debian --pids 20 -- sh -c 'for i in $(seq 60); do sleep 20 & done; echo not limited' 2>&1)
case $out in *"not limited"*) bad processes "$out" ;; *fork*) ok processes ;; *) bad processes "$out" ;; esac
# One CPU of the machine's two.
id=$(r sandbox run --detach --image debian --cpu 1 -- sh -c 'while :; do :; done & while :; do :; done')
await "$id" phase running || bad "cpu: it does not run" "$(journalctl -u runtime | tail -n 30)"
g=$(echo /sys/fs/cgroup/rt-*/"$id"); usage() { awk '$1 == "usage_usec" { print $2 }' "$g/cpu.stat"; }
a=$(usage) s=$(date +%s%N); sleep 8; b=$(usage) e=$(date +%s%N)
share=$(((b - a) * 100000 / (e - s)))
[ "$share" -gt 10 ] && [ "$share" -le 110 ] && ok "cpu ($share%)" || bad cpu "used $share% of a CPU with a limit of 100%"

systemctl restart runtime
for _ in $(seq 120); do r server status >/dev/null 2>&1 && break; sleep 1; done
[ "$(phase "$id" phase)" = running ] && [ "$(usage)" -gt "$b" ] && ok restart || bad restart "$(r sandbox show "$id")"
systemctl kill -s KILL runtime; sleep 1
[ "$(cat "$g/cgroup.procs" | wc -l)" -gt 0 ] && ok "kill: sandboxes go on" || bad kill
systemctl daemon-reload
for _ in $(seq 120); do r server status >/dev/null 2>&1 && break; sleep 1; done
[ "$(phase "$id" phase)" = running ] && ok "restarted by systemd" || bad "restarted by systemd" "$(systemctl status runtime)"
systemctl stop runtime
r server stop >/dev/null && ok stop || bad stop
left=$(find /sys/fs/cgroup -name 'rt-*'; ip netns list; ip -o link | grep -E ' rt'; ip rule | grep -E ' rt'; nft list tables | grep rt-; grep -E '/rt-|/netns' /proc/mounts; pgrep -af 'containerd|runsc|postgres|buildkitd')
[ -z "$left" ] && ok "nothing is left" || bad "nothing is left" "$left"
echo "vm: failed=$failed"
systemctl poweroff --force --force
