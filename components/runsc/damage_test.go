package runsc_test

import (
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/types/known/anypb"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/testsupport/runsctest"
)

// TestDamagedRecords: damage by a guest or a power loss to the records of one
// sandbox ends that sandbox, and affects no other.
func TestDamagedRecords(t *testing.T) {
	m := machine{runsctest.New(t)}
	m.ensure(t, m.spec("healthy", "sleep"))
	logs := func(id string, name ...string) string {
		return m.Instance.State(append([]string{"logs", "sandboxes", id}, name...)...)
	}
	write := func(content string, path ...string) func(t *testing.T, id string) {
		return func(t *testing.T, id string) {
			if err := os.WriteFile(logs(id, path...), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		name   string
		damage func(t *testing.T, id string)
	}{
		{"empty", write("", "spool", "exit")},
		{"garbage", write("\x00\xffexit is \x01", "spool", "exit")},
		{"endless", write(string(make([]byte, 1<<20)), "spool", "exit")},
		{"ended-empty", write("", "ended")},
		{"ended-garbage", write("{\"Cause\":", "ended")},
		{"link", func(t *testing.T, id string) {
			if err := os.Symlink("/etc/passwd", logs(id, "spool", "exit")); err != nil {
				t.Fatal(err)
			}
		}},
		{"directory", func(t *testing.T, id string) {
			if err := os.Mkdir(logs(id, "spool", "exit"), 0o700); err != nil {
				t.Fatal(err)
			}
		}},
		{"no-directory", func(t *testing.T, id string) {
			if err := os.Rename(logs(id, "spool"), logs(id, "moved")); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(logs(id, "spool"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m.ensure(t, m.spec(c.name, "sleep"))
			c.damage(t, c.name)
			in, err := m.Driver.Get(t.Context(), c.name)
			if err != nil || in.Phase != execution.Exited || in.Exit == nil || in.Exit.Cause != execution.CauseCrash || in.Exit.Message == "" {
				t.Errorf("Get = %+v %+v, %v", in, in.Exit, err)
			}
			all, err := m.Driver.List(t.Context())
			if err != nil || len(all) != 2 {
				t.Errorf("List = %+v, %v", all, err)
			}
			for _, i := range all {
				if i.ID == "healthy" && i.Phase != execution.Running || i.Err != nil {
					t.Errorf("List has %+v", i)
				}
			}
			if in, err = m.Driver.Stop(t.Context(), c.name, 0); err != nil || in.Exit == nil || in.Exit.Cause != execution.CauseCrash {
				t.Errorf("Stop = %+v, %v", in, err)
			}
			again, err := m.Driver.Get(t.Context(), c.name)
			if err != nil || again.Exit == nil || !again.Exit.At.Equal(in.Exit.At) {
				t.Errorf("the end changed from %+v to %+v, %v", in.Exit, again.Exit, err)
			}
			m.delete(t, c.name)
		})
	}
	t.Run("container", func(t *testing.T) {
		m.ensure(t, m.spec("container", "sleep"))
		c, err := m.Containerd.Client()
		if err != nil {
			t.Fatal(err)
		}
		containers := c.ContainerService()
		record, err := containers.Get(t.Context(), "container.sandbox")
		if err != nil {
			t.Fatal(err)
		}
		for key := range record.Extensions {
			record.Extensions[key] = &anypb.Any{TypeUrl: record.Extensions[key].GetTypeUrl(), Value: []byte("{")}
		}
		if _, err := containers.Update(t.Context(), record, "extensions"); err != nil {
			t.Fatal(err)
		}
		m.crashed(t, "container")
		m.delete(t, "container")
	})
	t.Run("address", func(t *testing.T) {
		m.ensure(t, m.spec("address", "sleep"))
		if err := os.WriteFile(filepath.Join(m.Instance.RunDir, "network", "address"), []byte("\x00"), 0o600); err != nil {
			t.Fatal(err)
		}
		m.Restart(t)
		m.crashed(t, "address")
		m.delete(t, "address")
	})
	t.Run("start", func(t *testing.T) {
		m.ensure(t, m.spec("start", "sleep"))
		if err := os.WriteFile(filepath.Join(m.Instance.RunDir, "sandboxes", "start", "started"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		in, err := m.Driver.Get(t.Context(), "start")
		if err != nil || in.Phase != execution.Running || in.StartedAt.IsZero() {
			t.Errorf("Get = %+v, %v", in, err)
		}
		m.delete(t, "start")
	})
	t.Run("shutdown", func(t *testing.T) {
		m.ensure(t, m.spec("last", "sleep"))
		write("", "spool", "exit")(t, "last")
		// The end of the test shuts the driver down, and fails if anything is left.
	})
}
