#!/usr/bin/env bash
# Runs the tests of disks, and one each of the store and of sandboxes, for long, as `make test` does for short. Every seed and every failure is printed.
#
#   hack/soak.sh                  all parts, one after the other
#   hack/soak.sh simulation fuzz  only these
#
# Parts: simulation (seeds), replay (of recorded runs, up to a power loss), writers (that overlap), metamorphic (seeds), faults (of the store, an outage of 60 s, two machines), verify (fio, by NBD and on a
# block device), snapshots (100 clones), trim (10 GiB), handover (100 killed daemons), database (ext4 and xfs, 100 killed
# daemons each), store (PostgreSQL stopped for a minute with 100,000
# entities, a deletion of 12,000), amplification (16384 blocks),
# damage (1000 flipped bits), sandboxes (100 at once, 200 idle, 10,000 one after the other), load (500 sessions, 2,000
# executions, 50 SSH clients, webhooks that fail, the server killed in the middle of each), constantload (100,000 requests
# through deployments, restarts and kills), dead (the ingress serves for DEAD, 24h, without a process of the control plane), chaos (random operations and kills for CHAOS, 2h), fuzz.
# SEEDS (10000) and FIRST (a number from the clock) choose the simulation's seeds, SOAK (10m) how long verify and each
# fuzzer run. Needs root, bin/runtime and the toolchain with its test group: a skipped test is a failure. Logs go to LOGS (a new directory under TMPDIR).
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "soaking needs root" >&2; exit 1; }
go=$(hack/go.sh)
PATH="$PWD/bin:$(dirname "$go"):$PATH"
export PATH
seeds=${SEEDS:-10000} first=${FIRST:-$(date +%s)} soak=${SOAK:-10m}
logs=${LOGS:-$(mktemp -d "${TMPDIR:-/tmp}/soak.XXXXXX")}
mkdir -p "$logs"

# run NAME ENV... -- PACKAGE ARGS...: one test run with a log of its own.
run() {
	local name=$1 env=() began=$SECONDS
	shift
	while [ "$1" != -- ]; do env+=("$1") && shift; done
	shift
	if env "${env[@]}" "$go" test -count=1 -timeout 0 -v "$@" >"$logs/$name.log" 2>&1 && ! grep -q -- '--- SKIP' "$logs/$name.log"; then
		printf 'ok    %-14s %4d s\n' "$name" $((SECONDS - began))
	else
		printf 'FAIL  %-14s %4d s  %s\n' "$name" $((SECONDS - began)) "$logs/$name.log" >&2
		grep -E '^ *(---|[a-z_]+_test\.go:)|seed' "$logs/$name.log" | tail -n 20 >&2
		return 1
	fi
}

# Seeds are split between the processors.
simulation() {
	local n=$((seeds / $(nproc))) i jobs=() failed=0
	for ((i = 0; i < $(nproc); i++)); do
		run "simulation-$i" LSVD_SEED=$((first + i * n)) LSVD_SEEDS=$n -- -run '^TestSimulation$' ./lsvd &
		jobs+=($!)
	done
	for i in "${jobs[@]}"; do wait "$i" || failed=1; done
	echo "      seeds $first to $((first + n * $(nproc) - 1))"
	return $failed
}
# replay and writers lose power at every other operation of recorded runs, and in the midst of overlapping writes.
replay() {
	local failed=0
	run replay LSVD_SEED="$first" LSVD_SEEDS=$((seeds / 500 + 1)) LSVD_REPLAY=2 -- -run '^TestReplay$' ./lsvd || failed=1
	run digest LSVD_SEED="$first" LSVD_SEEDS=$((seeds / 50 + 1)) -- -run '^TestSameSeedSameEvents$' ./lsvd || failed=1
	return $failed
}
writers() { run writers LSVD_SEED="$first" LSVD_SEEDS=$((seeds / 100 + 1)) -- -run '^TestOverlappingWriters$' ./lsvd; }
metamorphic() { run metamorphic LSVD_SEED="$first" LSVD_SEEDS=$((seeds / 50)) -- -run '^TestMetamorphic$' ./lsvd; }
faults() {
	local failed=0
	run faults-store LSVD_OUTAGE=60s -- -run '^Test(Wire.*|TwoOwners)$' ./lsvd || failed=1
	run faults-daemon LSVD_OUTAGE=310s -- -run '^TestRestartInAnOutage$' ./lsvd/node/daemon || failed=1
	run faults-fio LSVD_OUTAGE=60s -- -run '^TestExperiment(Faults|Outage)$' ./lsvd/frontend/nbd || failed=1
	run faults-hosts -- -count=20 -run '^TestTwoHosts$' ./cli/lsvd || failed=1
	return $failed
}
verify() {
	local failed=0 p
	for p in nbd loop; do run "verify-$p" LSVD_SOAK="$soak" -- -run '^TestExperimentVerify$' "./lsvd/frontend/$p" || failed=1; done
	return $failed
}
snapshots() { run snapshots LSVD_CLONES=100 -- -run '^TestSnapshots$' ./lsvd; }
trim() { run trim LSVD_FILL=10240 -- -run '^TestTrimFreesStore$' ./lsvd; }
damage() { run damage LSVD_FLIPS=1000 -- -run '^TestFlippedBitInLog$' ./lsvd; }
handover() { run handover LSVD_HANDOVERS=100 -- -run '^TestHandover$' ./lsvd/frontend/loop; }
store() { run store RUNTIME_SOAK=1 -- -run '^(TestFrozenDatabase|TestDeletionOfMany)$' ./entity/pgstore; }
database() { run database LSVD_SOAK="$soak" -- -run '^TestDatabaseOnDisk$' ./e2e; }
amplification() { run amplification LSVD_AMPLIFICATION=16384 -- -run '^TestWriteAmplification$' ./lsvd; }
sandboxes() {
	run sandboxes SANDBOXES_AT_ONCE=100 SANDBOXES_IDLE=200 SANDBOXES_IN_A_ROW="${SANDBOXES:-10000}" -- -run '^TestManySandboxes$' ./components/runsc
}
load() { run load LOAD_SESSIONS=500 LOAD_AT_ONCE=30 LOAD_EXECUTIONS=2000 LOAD_CLIENTS=50 -- -run '^TestLoad$' ./e2e; }
constantload() { run constantload -- -run '^TestConstantLoad$' ./e2e -load.time="${LOAD:-9m}"; }
dead() { run dead -- -run '^TestConstantLoad$' ./e2e -load.events=dead -load.dead="${DEAD:-24h}"; }
chaos() { run chaos -- -run '^TestChaos$' ./e2e -chaos.time="${CHAOS:-2h}" -chaos.seed="$first"; }
fuzz() {
	local f failed=0
	while IFS=: read -r f name; do
		run "fuzz-$(basename "$(dirname "$f")")-$name" -- -run '^$' -fuzz "^$name\$" -fuzztime "$soak" "./$(dirname "$f")" || failed=1
	done < <(grep -roE --include='*_test.go' '^func Fuzz[A-Za-z]+' lsvd | sed 's/func //')
	return $failed
}

all=(simulation replay writers metamorphic faults verify snapshots trim handover database store amplification damage sandboxes load constantload dead chaos fuzz)
[ $# -gt 0 ] || set -- "${all[@]}"
for part; do
	[[ " ${all[*]} " == *" $part "* ]] || { echo "unknown part: $part (${all[*]})" >&2; exit 2; }
done
failed=0
for part; do "$part" || failed=1; done
exit $failed
