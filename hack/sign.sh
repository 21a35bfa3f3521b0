#!/usr/bin/env bash
# Signs a file of a release with the SSH key that RELEASE_KEY names; the signature is FILE.sig:
#
#   hack/sign.sh FILE
#
# RELEASE_KEY is the file of a private key, or of a public one whose private half is in ssh-agent. docs/install.md says
# how a signature is verified. It is valid for the name miren-runtime, and no other use of the same key.
set -euo pipefail
file=${1:?which file?}
[ -n "${RELEASE_KEY:-}" ] || { echo "sign.sh: RELEASE_KEY is not set: it names the file of an SSH key" >&2; exit 1; }
[ -r "$RELEASE_KEY" ] || { echo "sign.sh: RELEASE_KEY: $RELEASE_KEY cannot be read" >&2; exit 1; }
exec ssh-keygen -q -Y sign -f "$RELEASE_KEY" -n miren-runtime "$file"
