package attachtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"miren.dev/runtime/lsvd/frontend/loop"
	"miren.dev/runtime/testsupport/wait"
)

// owners matches an owner of attachments that Owner has named; the group is the process.
var owners = regexp.MustCompile(`lsvd:(test-(\d+)-[^:\s]+):`)

// Owner returns a name for the owner of a test's attachments, which are removed
// at its end. First it removes the attachments of tests whose process was killed.
func Owner(t testing.TB, more ...string) string {
	t.Helper()
	if err := sweepKilled(); err != nil {
		t.Fatal(err)
	}
	name := strings.ReplaceAll(strings.Join(append([]string{t.Name()}, more...), "-"), "/", "-")
	name = fmt.Sprintf("test-%d-%s", os.Getpid(), name)
	name = name[:min(len(name), 64)]
	t.Cleanup(func() {
		if err := sweep(name); err != nil {
			t.Error(err)
		}
	})
	return name
}

func sweepKilled() error {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return err
	}
	for _, f := range append(files, "/proc/self/mountinfo") {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // the device was detached meanwhile
		}
		for _, m := range owners.FindAllStringSubmatch(string(b), -1) {
			if _, err := os.Stat("/proc/" + m[2]); err == nil {
				continue
			}
			if err := sweep(m[1]); err != nil {
				return fmt.Errorf("attachments of a killed test: %w", err)
			}
		}
	}
	return nil
}

func sweep(owner string) error {
	ctx, cancel := context.WithTimeout(context.Background(), wait.Limit)
	defer cancel()
	_, err := loop.Sweep(ctx, owner, func(string) bool { return false })
	return err
}
