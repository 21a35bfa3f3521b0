# The files of an image have a time of their own, by which Python would take its compiled modules for outdated: compile
# them again, to be used as they are.
for dir in /usr/lib/python3* /usr/local/lib/python3*; do
	[ ! -d "$dir" ] || PYTHONDONTWRITEBYTECODE= python3 -m compileall -q -f -j 0 --invalidation-mode unchecked-hash "$dir" || true
done
