package postgres

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"miren.dev/runtime/pkg/errs"
)

// minMajor is the oldest major version that works.
const minMajor = 14

// binaryDirs are where distributions put the server binaries, by version.
var binaryDirs = []string{"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/postgresql/*/bin"}

var versionPattern = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// findBinaries returns the directory of the binaries that can run the cluster
// in data: of its major version if the cluster exists, else the newest. If dir
// is given it considers no other.
func findBinaries(ctx context.Context, dir, data string) (string, error) {
	want := 0
	b, err := os.ReadFile(filepath.Join(data, "PG_VERSION"))
	switch {
	case err == nil:
		if want, err = strconv.Atoi(strings.TrimSpace(string(b))); err != nil {
			return "", errs.New(errs.Corrupt, "%s/PG_VERSION holds %q", data, b)
		}
	case !errors.Is(err, os.ErrNotExist):
		return "", errs.New(errs.Unavailable, "read version of the cluster: %w", err)
	}

	found := installed(ctx, dir)
	best, newest := "", 0
	for d, v := range found {
		if v == want {
			return d, nil
		}
		if v >= minMajor && v > newest {
			best, newest = d, v
		}
	}
	switch {
	case best == "":
		return "", errs.New(errs.FailedPrecondition, "no PostgreSQL server binaries (version %d or newer) are installed", minMajor).
			WithHint("install them (Debian, Ubuntu: apt install postgresql), or use a database of your own with --store-url")
	case want != 0:
		return "", errs.New(errs.FailedPrecondition, "the database in %s is of PostgreSQL %d, but only version %d is installed", data, want, newest).
			WithHint("install the binaries of PostgreSQL %d beside it, or convert the directory with pg_upgrade", want)
	}
	return best, nil
}

// installed returns the directories with a server and their major versions.
func installed(ctx context.Context, dir string) map[string]int {
	var dirs []string
	if dir != "" {
		dirs = []string{dir}
	} else {
		for _, pattern := range binaryDirs {
			m, _ := filepath.Glob(pattern) // the patterns are valid
			dirs = append(dirs, m...)
		}
		// A directory on the PATH may hold wrappers: follow the link.
		if p, err := exec.LookPath("postgres"); err == nil {
			if p, err = filepath.EvalSymlinks(p); err == nil {
				dirs = append(dirs, filepath.Dir(p))
			}
		}
	}
	found := map[string]int{}
	for _, d := range dirs {
		if _, err := os.Stat(filepath.Join(d, "initdb")); err != nil || found[d] != 0 {
			continue
		}
		out, err := exec.CommandContext(ctx, filepath.Join(d, "postgres"), "--version").Output()
		if err != nil {
			continue
		}
		if m := versionPattern.FindSubmatch(out); m != nil {
			found[d], _ = strconv.Atoi(string(m[1]))
		}
	}
	return found
}
