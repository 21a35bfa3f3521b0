//go:build faultpoints

package fault_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"miren.dev/runtime/pkg/fault"
)

// TestMain passes two points when it is run as a child.
func TestMain(m *testing.M) {
	if os.Getenv("FAULT_CHILD") != "" {
		fault.Point("area", "name", fault.Before)
		fault.Point("area", "name", fault.After)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestArmedPointKills(t *testing.T) {
	for _, c := range []struct {
		name, armed string
		killed      bool
		seen        []string
	}{
		{"not armed", "", false, nil},
		{"another point", "area/other/before", false, nil},
		{"armed", "area/name/after\n", true, nil},
		{"trace", "trace", false, []string{"area/name/before", "area/name/after"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "fault")
			if c.armed != "" {
				if err := os.WriteFile(file, []byte(c.armed), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			run := func() bool {
				cmd := exec.Command(os.Args[0])
				cmd.Env = append(os.Environ(), "FAULT_CHILD=1", fault.Env+"="+file)
				err := cmd.Run()
				var exit *exec.ExitError
				if errors.As(err, &exit) {
					st, _ := exit.Sys().(syscall.WaitStatus)
					return st.Signaled() && st.Signal() == syscall.SIGKILL
				}
				if err != nil {
					t.Fatal(err)
				}
				return false
			}
			if got := run(); got != c.killed {
				t.Errorf("killed: %v", got)
			}
			_, err := os.Stat(file + ".hit")
			if hit := err == nil; hit != c.killed {
				t.Errorf("%s.hit: %v", file, err)
			}
			b, err := os.ReadFile(file + ".seen")
			if seen := strings.Fields(string(b)); !slices.Equal(seen, c.seen) {
				t.Errorf("seen %v, %v", seen, err)
			}
			if c.killed && run() {
				t.Error("it strikes twice")
			}
		})
	}
}
