python3 -m pip install --quiet --no-cache-dir --no-compile --no-deps --only-binary=:all: --break-system-packages --ignore-installed \
	--root-user-action=ignore --requirement /usr/local/share/runtime/requirements.txt
# A fifth of the files: the packages' own tests.
find /usr/local/lib/python3*/dist-packages -mindepth 2 -type d -name tests -prune -exec rm -r {} +
# Matplotlib looks through all fonts when it runs for the first time.
setpriv --reuid user --regid user --clear-groups env HOME=/home/user python3 -c 'import matplotlib.font_manager'
