#!/usr/bin/env bash
# The JavaScript libraries of the dashboard are files of npm packages in web/static/vendor. The build needs no Node.js.
#
#   hack/web.sh            fetches them anew, with npm
#   hack/web.sh --check    fails if the files differ from the packages
#
# To use another version: change it in the list below, run the script, commit the result.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(preact@11.2.0 htm@3.1.1 @preact/signals@2.11.4 @preact/signals-core@1.14.5 @xterm/xterm@6.0.0
	@xterm/addon-fit@0.11.0)

die() {
	printf 'web.sh: %s\n' "$*" >&2
	exit 1
}

command -v npm >/dev/null || die "npm is not installed (hack/packages.sh lint)"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
static=$work/out
mkdir -p "$static"
for p in "${packages[@]}"; do
	(cd "$work" && npm pack --silent "$p" >/dev/null) || die "npm pack $p failed"
	name=${p%@*}
	flat=${name#@} flat=${flat//\//-}
	mkdir -p "$work/$flat"
	tar -xzf "$work/$flat-${p##*@}.tgz" -C "$work/$flat" --strip-components=1
	cp "$work/$flat/LICENSE" "$static/LICENSE.$flat"
done

# take FROM TO: a module, whose imports name files, since browsers know no packages. Source maps are not shipped.
take() {
	sed -e 's|from"preact"|from"./preact.js"|g' -e 's|from"preact/hooks"|from"./hooks.js"|g' \
		-e 's|from"@preact/signals-core"|from"./signals-core.js"|g' -e '/^\/\/# sourceMappingURL=/d' \
		-e '/^\/\*# sourceMappingURL=/d' "$work/$1" >"$2"
}
take preact/dist/preact.mjs "$static/preact.js"
take preact/hooks/dist/hooks.mjs "$static/hooks.js"
take htm/dist/htm.mjs "$static/htm.js"
take preact-signals-core/dist/signals-core.mjs "$static/signals-core.js"
take preact-signals/dist/signals.mjs "$static/signals.js"
take xterm-xterm/lib/xterm.mjs "$static/xterm.js"
take xterm-xterm/css/xterm.css "$static/xterm.css"
take xterm-addon-fit/lib/addon-fit.mjs "$static/addon-fit.js"
printf '%s\n' "${packages[@]}" >"$static/VERSIONS"

if grep -ohE '(from|import) ?"[^."][^"]*"' "$static"/*.js | sort -u | grep .; then
	die "these imports name packages: add them to take"
fi
if [ "${1:-}" = --check ]; then
	diff -r "$static" web/static/vendor || die "web/ differs from the packages: run hack/web.sh"
	exit 0
fi
rm -rf web/static/vendor
cp -r "$static" web/static/vendor
