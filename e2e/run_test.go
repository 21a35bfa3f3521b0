package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/testsupport/wait"
)

// TestRunKilledAtAnyMoment kills a hundred `r sandbox run` with SIGKILL, from
// before they have dialed until after their command runs. A minute later
// nothing of them is left.
func TestRunKilledAtAnyMoment(t *testing.T) {
	t.Parallel()
	const label = "killed=at-any-moment"
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(uint64(seed), 0))
	delays := make(chan time.Duration, 100)
	for range cap(delays) {
		delays <- time.Duration(rng.Int64N(int64(time.Second)))
	}
	close(delays)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for d := range delays {
				cmd := shared.command(t.Context(), "", "sandbox", "run", "--image", "debian", "--memory", "64MB", "--cpu", "0.05", "-l", label, "--", "sleep", "1000")
				if err := cmd.Start(); err != nil {
					t.Error(err)
					return
				}
				time.AfterFunc(d, func() { _ = cmd.Process.Kill() }) // the test ends here if that fails
				if err := cmd.Wait(); err == nil {
					t.Error("it ended by itself")
				}
			}
		})
	}
	wg.Wait()
	wait.NoError(t, "no sandbox is left", func() error {
		var list []struct {
			ID     string            `json:"id"`
			Labels map[string]string `json:"labels"`
		}
		shared.json(t, &list, "sandbox", "list")
		for _, sb := range list {
			if sb.Labels["killed"] != "" {
				return fmt.Errorf("%s is left", sb.ID)
			}
		}
		return nil
	})
}

// TestRunNamesTheEndOfItsSandbox: the command names the end of a sandbox that
// ran out of memory or time.
func TestRunNamesTheEndOfItsSandbox(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"memory": {[]string{"--memory", "128MB", "--", "tail", "/dev/zero"}, "killed: out of memory: the limit of its sandbox is 128 MiB: make it with a larger --memory"},
		"ttl":    {[]string{"--ttl", "2s", "--", "sleep", "600"}, "time to live of 2s"},
	} {
		t.Run(name, func(t *testing.T) {
			res := shared.try(t, "", append([]string{"sandbox", "run", "--image", "debian"}, c.args...)...)
			if res.Code < 128 || !strings.Contains(res.Stderr, c.want) {
				t.Errorf("%s", res)
			}
		})
	}
}

// TestRunOnAFullNode requests more than the node has: the reason comes at once,
// the end at the deadline.
func TestRunOnAFullNode(t *testing.T) {
	t.Parallel()
	res := shared.try(t, "", "sandbox", "run", "--image", "debian", "--memory", "1000GiB", "--wait", "1s", "--", "true")
	if res.Code == 0 || !strings.Contains(res.Stderr, "waiting: ") || !strings.Contains(res.Stderr, "did not run within 1s") {
		t.Errorf("%s", res)
	}
}

// scratch answers, or prints its arguments.
const scratch = `package main

import (
	"fmt"
	"net/http"
	"os"
)

func main() {
	if len(os.Args) > 1 {
		fmt.Println(os.Args[1:])
		return
	}
	http.ListenAndServe(":"+os.Getenv("PORT"), nil)
}
`

// TestRunInAnImageWithoutPrograms runs the only program that an image has.
func TestRunInAnImageWithoutPrograms(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"main.go": scratch, "go.mod": "module scratch\n\ngo 1.26\n",
		"Dockerfile": "FROM scratch\nCOPY scratch /scratch\nCMD [\"/scratch\"]\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	build := exec.CommandContext(ctx, "go", "build", "-o", "scratch", ".")
	build.Dir, build.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	shared.r(t, dir, "app", "deploy", "--app", "scratch")
	if out := shared.r(t, "", "sandbox", "run", "--app", "scratch", "--", "/scratch", "it", "runs"); out != "[it runs]\n" {
		t.Errorf("%q", out)
	}
	if res := shared.try(t, "", "sandbox", "run", "--app", "scratch", "--", "sleep", "1"); res.Code != 127 {
		t.Errorf("%s", res)
	}
	shared.r(t, "", "app", "delete", "scratch", "--yes")
}
