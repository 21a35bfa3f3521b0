package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// TestBuildStepsHarmNobody lets a build step use all the memory it can get: the step ends, an app answers all the time,
// and database and server keep running.
func TestBuildStepsHarmNobody(t *testing.T) {
	// With less memory than the default, the step ends sooner.
	s := own(t, "hungry", "--build-memory-bytes", fmt.Sprint(512<<20))
	calm, dir := "calm", copyExample(t, "static-site")
	s.r(t, dir, "app", "deploy", "--app", calm)
	before := s.pid(t, "postgres")
	stop := s.watchApp(calm)
	hungry := t.TempDir()
	write(t, filepath.Join(hungry, "Dockerfile"), "FROM debian\nRUN head -c 10G /dev/zero | tail\n") // tail keeps all of a line
	res := s.try(t, hungry, "app", "deploy", "--app", "hungry")
	failed, all := stop()
	for _, want := range []string{"out of memory: it used more than 512 MiB", "build.memory_bytes"} {
		if !strings.Contains(res.Stderr, want) {
			t.Errorf("the explanation lacks %q: %s", want, res)
		}
	}
	if res.Code != 3 {
		t.Errorf("want exit code 3: %s", res)
	}
	if failed > 0 || all == 0 {
		t.Errorf("%d of %d requests to another app failed", failed, all)
	}
	if after := s.pid(t, "postgres"); after != before {
		t.Errorf("the database was process %d, and is %d", before, after)
	}
	s.healthy(t)
}

// TestReleaseCommand runs a migration before each new version, and keeps the old version when one fails.
func TestReleaseCommand(t *testing.T) {
	name, dir := "migrating", copyExample(t, "go-http")
	procfile := filepath.Join(dir, "Procfile")
	write(t, procfile, "release: echo migrated for version $RUNTIME_VERSION\n")
	shared.r(t, dir, "app", "deploy", "--app", name)
	shared.answers(t, name, "/", "v1")
	if out := shared.r(t, "", "app", "logs", name, "--service", "release"); !strings.Contains(out, "migrated for version 1") {
		t.Errorf("logs of the release command: %s", out)
	}
	write(t, procfile, "release: echo no such table; exit 9\n")
	edit(t, filepath.Join(dir, "main.go"), "v1", "v2")
	res := shared.try(t, dir, "app", "deploy", "--app", name)
	for _, want := range []string{"the release command ended with exit code 9", "no such table"} {
		if !strings.Contains(res.Stderr, want) {
			t.Errorf("the explanation lacks %q: %s", want, res)
		}
	}
	if res.Code != 4 {
		t.Errorf("want exit code 4: %s", res)
	}
	shared.answers(t, name, "/", "v1")
	shared.r(t, "", "app", "delete", name, "--yes")
}

// TestStackBesideADockerfile follows the hint of a Dockerfile that cannot be built.
func TestStackBesideADockerfile(t *testing.T) {
	name, dir := "beside", copyExample(t, "static-site")
	write(t, filepath.Join(dir, "Dockerfile"), "FROM debian\nRUN exit 5\n")
	res := shared.try(t, dir, "app", "deploy", "--app", name)
	if res.Code != 3 || !strings.Contains(res.Stderr, "r deploy --stack static") {
		t.Errorf("want exit code 3 and an offer: %s", res)
	}
	shared.r(t, dir, "app", "deploy", "--app", name, "--stack", "static")
	shared.answers(t, name, "/", "v1")
	shared.r(t, "", "app", "delete", name, "--yes")
}
