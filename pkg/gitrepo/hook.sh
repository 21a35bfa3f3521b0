#!/bin/sh
# Asks the server, by file descriptors 3 and 4, whether the push is accepted. Without the
# word "accept" it is not: the server refused it, or was killed.
printf 'quarantine %s\n' "$GIT_QUARANTINE_PATH" >&3 || exit 1
i=0
while [ "$i" -lt "${GIT_PUSH_OPTION_COUNT:-0}" ]; do
	eval "option=\$GIT_PUSH_OPTION_$i"
	case "$option" in
	*'
'*)
		echo "error: a push option has more than one line"
		exit 1
		;;
	esac
	printf 'option %s\n' "$option" >&3 || exit 1
	i=$((i + 1))
done
cat >&3 || exit 1
printf 'end\n' >&3 || exit 1
while IFS= read -r line <&4; do
	case "$line" in
	accept) exit 0 ;;
	*) printf '%s\n' "${line#.}" ;;
	esac
done
exit 1
