package buildkit

import (
	"regexp"
	"strings"
)

// hintRule is what to do about a failure that is seen often.
type hintRule struct {
	exitCode int            // of the step; 0: any
	step     *regexp.Regexp // its name; nil: any
	text     *regexp.Regexp // in the message or the output; nil: any
	hint     string         // may have $1 of text
}

func re(s string) *regexp.Regexp { return regexp.MustCompile(s) }

// packagesHint begins hints that name Debian packages.
const packagesHint = "name the Debian packages that have it in .runtime/app.toml (in a Dockerfile: apt-get install), here\n[build]\npackages = "

// hintRules are tried in their order.
var hintRules = []hintRule{
	{text: re(`failed to resolve source metadata|failed to do request`),
		hint: "the base image could not be fetched: no registry is reachable and no local image has this name"},
	{text: re(`[Nn]o space left on device`),
		hint: "a disk was full: /dev/shm of a step has 64 MiB; `r doctor` says what uses the disk of the server"},
	{exitCode: 137,
		hint: "the step was killed, by itself or with its kernel"},
	{text: re(`apk: (command )?not found`),
		hint: "the local base images are made from Debian packages: use apt-get instead of apk"},
	{text: re(`certificate signed by unknown authority|unable to get local issuer certificate|CERTIFICATE_VERIFY_FAILED`),
		hint: "a server's certificate is not trusted: add its authority to the host's CA bundle"},

	{text: re(`npm (?:error|ERR!) code E40[13]|ERR_PNPM_FETCH_40[13]|YN0041|401 Unauthorized|401 Error, Credentials not correct|403 Forbidden`),
		hint: "a registry asks for a login: `r app env set --secret NAME` keeps its token, and `secrets = [\"NAME\"]` in [build] of app.toml lets steps of the build read it"},

	// Lock files that are not up to date.
	{text: re("`npm ci` can only install|package-lock.json or npm-shrinkwrap.json are in sync"),
		hint: "package.json and package-lock.json do not agree: run `npm install` and commit both"},
	{text: re(`ERR_PNPM_OUTDATED_LOCKFILE`), hint: "package.json and pnpm-lock.yaml do not agree: run `pnpm install` and commit both"},
	{text: re(`ERR_PNPM_LOCKFILE_BREAKING_CHANGE|not compatible with current pnpm|ERR_PNPM_NO_LOCKFILE`),
		hint: "pnpm-lock.yaml is of another version of pnpm: name yours in package.json, as \"packageManager\": \"pnpm@9.15.0\""},
	{text: re("Your lockfile needs to be updated|YN0028"), hint: "package.json and yarn.lock do not agree: run `yarn install` and commit both"},
	{text: re(`missing go.sum entry|go: updates to go.mod needed`), hint: "go.mod and go.sum do not agree: run `go mod tidy` and deploy again"},
	{text: re(`pyproject.toml changed significantly since poetry.lock`), hint: "pyproject.toml and poetry.lock do not agree: run `poetry lock` and commit both"},
	{text: re("The lockfile at `uv.lock` needs to be updated|Unable to find lockfile at `uv.lock`"), hint: "pyproject.toml and uv.lock do not agree: run `uv lock` and commit both"},

	// Native modules.
	{text: re(`gyp ERR! find Python|gyp ERR! stack Error: not found: make|g\+\+: (not found|No such file)|make: (g\+\+|cc|c\+\+): No such file`),
		hint: "a native module is compiled, for which the image has no compiler: " + packagesHint + `["g++", "make", "python3"]`},
	{text: re(`pg_config (executable )?not found|libpq-fe\.h`), hint: "the headers of PostgreSQL's client are missing: " + packagesHint + `["gcc", "libc6-dev", "libpq-dev", "python3-dev"]`},
	{text: re(`mysql_config: not found|Can not find valid pkg-config name|mysql\.h: No such file`),
		hint: "the headers of MySQL's client are missing: " + packagesHint + `["gcc", "libc6-dev", "default-libmysqlclient-dev", "pkg-config", "python3-dev"]`},
	{text: re(`Python\.h: No such file`), hint: "the headers of Python are missing: " + packagesHint + `["gcc", "libc6-dev", "python3-dev"]`},
	{text: re(`command '(?:x86_64-linux-gnu-|aarch64-linux-gnu-)?(?:gcc|g\+\+|cc)' failed|Unknown compiler\(s\)|error: linker .?cc.? not found|C compiler "gcc" not found`),
		hint: "something is compiled, for which the image has no compiler: " + packagesHint + `["g++", "gcc", "libc6-dev", "make", "python3-dev"]`},
	{text: re(`fatal error: (\S+\.h(?:pp)?): No such file`), hint: "the header $1 is missing: " + packagesHint + `["lib...-dev"]`},
	{text: re(`No package '(\S+)' found|Package (\S+) was not found in the pkg-config search path`), hint: "the library $1$2 is missing: " + packagesHint + `["lib...-dev"]`},
	{text: re(`(?:/bin/sh: \d+: |sh: \d+: )?git: (?:command )?not found|Cannot find command 'git'|spawn git ENOENT`), hint: "git is called: " + packagesHint + `["git"]`},

	// Steps that use what is not there.
	{step: re(`--from=`), text: re(`"(/[^"]*)": not found`),
		hint: "no earlier stage made $1: does the build put it elsewhere? Say where with build.output of app.toml, or in the COPY of the Dockerfile"},
	{text: re(`failed to calculate checksum of ref|failed to compute cache key`),
		hint: "a file that is copied is not in the source: is it ignored by .gitignore or .dockerignore?"},
	{text: re(`Missing script: "?([\w:.-]+)|Command "([\w:.-]+)" not found|ERR_PNPM_NO_SCRIPT`), hint: "package.json has no such script: $1$2"},
	{text: re(`collectstatic`), step: re(`collectstatic`),
		hint: "collecting the static files of Django failed: settings that need variables get them from [env] of app.toml; DISABLE_COLLECTSTATIC = \"1\" there leaves it out"},
	{exitCode: 127, hint: "a command was not found: is what provides it installed in an earlier step?"},
}

// hint says what to do about failures that are seen often.
func (f *Failure) hint() string {
	all := f.Message + "\n" + f.Step + "\n" + strings.Join(f.Log, "\n")
	for _, r := range hintRules {
		if r.exitCode != 0 && r.exitCode != f.ExitCode || r.step != nil && !r.step.MatchString(f.Step) {
			continue
		}
		if r.text == nil {
			return r.hint
		}
		if m := r.text.FindStringSubmatchIndex(all); m != nil {
			return string(r.text.ExpandString(nil, r.hint, all, m))
		}
	}
	return ""
}

// Lines that say nothing about the cause: advertisements, and where else to read.
var noiseLine = re(`^(npm (notice|warn deprecated|error|ERR!)?\s*$|npm notice|npm (error|ERR!)\s+(A complete log of this run|/root/\.npm/_logs)|` +
	`npm warn deprecated|info Visit https?://yarnpkg\.com|\[notice\]|note: This (error originates|is an issue with the package)|hint: See above for|` +
	`npm (error|ERR!) (Clean install a project|Install a package)\s*$)`)

// usage is the help that a program prints when it is called wrongly, from its first line to its last.
var usageBegin, usageEnd = re(`^npm (error|ERR!) Usage:`), re(`^npm (error|ERR!) Run "npm help`)

// maxCauseLines bounds what is kept of a step's output.
const maxCauseLines = 60

// causeLines are the last lines of a step without those that hide the cause. When nothing else is left, it is all of them.
func causeLines(lines []string) []string {
	var kept []string
	inUsage := false
	for _, l := range lines {
		switch {
		case usageBegin.MatchString(l):
			inUsage = true
		case inUsage:
			inUsage = !usageEnd.MatchString(l)
		case !noiseLine.MatchString(l):
			kept = append(kept, l)
		}
	}
	if len(kept) == 0 {
		kept = lines
	}
	return kept[max(0, len(kept)-maxCauseLines):]
}
