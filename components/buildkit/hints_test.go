package buildkit

import (
	"slices"
	"strings"
	"testing"
)

func TestHintsNameTheCause(t *testing.T) {
	for name, tt := range map[string]struct {
		f    Failure
		hint string
	}{
		"no output folder": {Failure{Step: "[stage-1 1/1] COPY --from=build /app/dist/ /site/",
			Message: `failed to compute cache key: failed to calculate checksum of ref abc: "/app/dist": not found`}, "no earlier stage made /app/dist"},
		"a file that is ignored": {Failure{Step: "[2/2] COPY a.txt /", Message: `failed to compute cache key: failed to calculate checksum of ref abc: "/a.txt": not found`},
			"is it ignored by .gitignore"},
		"no compiler":       {Failure{ExitCode: 1, Log: []string{"npm error gyp ERR! find Python", "npm error gyp ERR! not ok"}}, `packages = ["g++", "make", "python3"]`},
		"no header":         {Failure{ExitCode: 1, Log: []string{"x.c:1:10: fatal error: foo/bar.h: No such file or directory"}}, "the header foo/bar.h is missing"},
		"no Python header":  {Failure{ExitCode: 1, Log: []string{"fatal error: Python.h: No such file or directory"}}, "python3-dev"},
		"no pg_config":      {Failure{ExitCode: 1, Log: []string{"Error: pg_config executable not found."}}, "libpq-dev"},
		"npm lock":          {Failure{ExitCode: 1, Log: []string{"npm error `npm ci` can only install packages when your package.json and package-lock.json are in sync."}}, "run `npm install`"},
		"pnpm lock":         {Failure{ExitCode: 1, Log: []string{" ERR_PNPM_OUTDATED_LOCKFILE  Cannot install"}}, "pnpm-lock.yaml do not agree"},
		"yarn lock":         {Failure{ExitCode: 1, Log: []string{"error Your lockfile needs to be updated, but yarn was run with `--frozen-lockfile`."}}, "yarn.lock do not agree"},
		"command not found": {Failure{ExitCode: 127}, "a command was not found"},
		"killed":            {Failure{ExitCode: 137}, "was killed"},
		"nothing known":     {Failure{ExitCode: 1, Log: []string{"oh"}}, ""},
	} {
		if got := tt.f.hint(); !strings.Contains(got, tt.hint) || tt.hint == "" && got != "" {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestLastLinesShowTheCause(t *testing.T) {
	got := causeLines(strings.Split("npm error code EUSAGE\nnpm error\nnpm error `npm ci` can only install packages when in sync.\nnpm error Missing: x@1 from lock file\nnpm error\n"+
		"npm error Clean install a project\nnpm error\nnpm error Usage:\nnpm error npm ci\nnpm error Options:\nnpm error [--install-strategy <hoisted>]\nnpm error Run \"npm help ci\" for more info\n"+
		"npm notice\nnpm notice New major version\nnpm error A complete log of this run can be found in: /root/.npm/_logs/x.log", "\n"))
	if want := []string{"npm error code EUSAGE", "npm error `npm ci` can only install packages when in sync.", "npm error Missing: x@1 from lock file"}; !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	if got := causeLines([]string{"npm notice x"}); len(got) != 1 {
		t.Errorf("nothing else: %q", got)
	}
	if got := causeLines(slices.Repeat([]string{"x"}, 100)); len(got) != maxCauseLines {
		t.Errorf("%d lines", len(got))
	}
}
