#!/bin/sh
# Asks the server, by file descriptors 3 and 4, whether the push is accepted. Without the
# word "accept" it is not: the server refused it, or was killed.
printf 'quarantine %s\n' "$GIT_QUARANTINE_PATH" >&3 || exit 1
cat >&3 || exit 1
printf 'end\n' >&3 || exit 1
while IFS= read -r line <&4; do
	case "$line" in
	accept) exit 0 ;;
	*) printf '%s\n' "${line#.}" ;;
	esac
done
exit 1
