#!/usr/bin/env bash
# Builds the corpus: sources that repeat the idioms of popular templates, in every stack. Each is built by BuildKit in
# gVisor, answers over HTTP, is ended and answers again. Prints a table. docs/stacks.md says what is known to fail.
#
#   hack/corpus.sh [NAME...]     # only the sources whose names begin so: hack/corpus.sh php ruby-sinatra
#
# Base images of languages that are not there yet are made first, which takes minutes each.
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in
-h | --help)
	sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' hack/corpus.sh
	exit
	;;
esac
[ "$(id -u)" = 0 ] || { echo "the corpus needs root: run make corpus as root" >&2; exit 1; }
export CORPUS="$*"
hack/toolchain.sh
. hack/testenv.sh
# As a program of its own: go test shows the table only of a run that fails.
"$go" test -tags corpus -c -o bin/test/corpus.test ./components/buildkit
cd components/buildkit
exec ../../bin/test/corpus.test -test.timeout 90m -test.run TestCorpus
