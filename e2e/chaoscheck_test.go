package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"miren.dev/runtime/testsupport/wait"
)

// chaosEntity holds the parts of an entity that TestChaos reads.
type chaosEntity struct {
	ID, Name, Project string
	Spec              struct {
		Host, Path string // of a route
		Volumes    []struct {
			Disk     string
			ReadOnly bool `json:"read_only"`
		}
	}
	Status struct {
		Phase, Address string
		Traffic        []struct {
			Version, Host string
			Weight        int
		}
	}
}

// deletedKinds have no entity when all that clients made is deleted.
var deletedKinds = []string{
	"addon", "addon_attachment", "app", "app_version", "build", "deploy_lease", "deployment", "disk", "disk_copy", "disk_mount", "disk_snapshot", "route", "sandbox_pool",
	"secret", "snapshot", "task_run", "task_schedule", "tcp_route",
}

// settled is how long everything may take to be as it should, on a busy machine.
const settled = 2 * time.Minute

func (c *chaos) list(kind string) (all []chaosEntity) {
	c.t.Helper()
	c.json(c.t, &all, "entity", "list", kind)
	return all
}

// delete deletes all entities of a kind, by a command. What was refused because others
// have not ended yet is repeated.
func (c *chaos) delete(kind string, command func(e chaosEntity) []string) {
	c.t.Helper()
	wait.NoError(c.t, "every "+kind+" is deleted", func() error {
		var failed error
		for _, e := range c.list(kind) {
			if kind == "sandbox" && over(e) || e.Status.Phase == "deleting" {
				continue
			}
			if _, f := c.call(c.t.Context(), command(e)...); f != nil {
				failed = errors.Join(failed, fmt.Errorf("%v: %s", command(e), f))
			}
		}
		return failed
	}, wait.Within(settled), wait.Every(500*time.Millisecond))
}

// over reports whether a sandbox has ended.
func over(e chaosEntity) bool { return e.Status.Phase == "stopped" || e.Status.Phase == "failed" }

// deleteEverything deletes what clients made.
func (c *chaos) deleteEverything() {
	c.delete("addon", func(e chaosEntity) []string { return []string{"addon", "delete", e.Name, "--yes", "--force"} })
	c.delete("secret", func(e chaosEntity) []string { return []string{"secret", "delete", e.Name} })
	c.delete("app", func(e chaosEntity) []string { return []string{"app", "delete", e.Name, "--yes"} })
	c.delete("sandbox", func(e chaosEntity) []string { return []string{"sandbox", "delete", e.ID} })
	c.delete("snapshot", func(e chaosEntity) []string { return []string{"snapshot", "delete", e.ID} })
	names := map[string]string{}
	for _, d := range c.list("disk") {
		names[d.ID] = d.Name
	}
	c.delete("disk_snapshot", func(e chaosEntity) []string {
		var s struct {
			Spec struct{ Disk, Name string }
		}
		c.json(c.t, &s, "entity", "get", "disk_snapshot", e.ID)
		return []string{"disk", "delete-snapshot", names[s.Spec.Disk] + "@" + s.Spec.Name}
	})
	c.delete("disk", func(e chaosEntity) []string { return []string{"disk", "delete", e.Name, "--yes"} })
	c.delete("warm_pool", func(e chaosEntity) []string { return []string{"pool", "delete", e.Name} })
}

// checkEntities: no entity is in a state that something should have ended.
func (c *chaos) checkEntities() {
	for _, kind := range deletedKinds {
		wait.NoError(c.t, "there is no "+kind, func() error {
			if left := c.list(kind); len(left) > 0 {
				return fmt.Errorf("there are %+v", left)
			}
			return nil
		}, wait.Within(settled), wait.Every(500*time.Millisecond))
	}
	for kind, final := range map[string][]string{"sandbox": {"stopped", "failed"}, "execution": {"ended"}} {
		wait.NoError(c.t, "every "+kind+" has ended", func() error {
			for _, e := range c.list(kind) {
				if !slices.Contains(final, e.Status.Phase) {
					return fmt.Errorf("%s is %s", e.ID, e.Status.Phase)
				}
			}
			return nil
		}, wait.Within(settled), wait.Every(500*time.Millisecond))
	}
}

// host lists the parts of the installation on the machine.
func (c *chaos) host() []string {
	lines, _ := (&faulty{server: c.server, in: c.in}).host(c.t)
	return lines
}

// idle waits until no sandbox is on the machine.
func (c *chaos) idle() {
	wait.NoError(c.t, "no sandbox is on the machine", func() error {
		if _, ids := (&faulty{server: c.server, in: c.in}).host(c.t); len(ids) > 0 {
			return fmt.Errorf("%v", ids)
		}
		return nil
	}, wait.Within(settled), wait.Every(500*time.Millisecond))
}

// checkHost fails if a process, mount, interface or rule of the test remains on the machine.
func (c *chaos) checkHost(before []string) {
	c.idle()
	wait.NoError(c.t, "nothing of the test remains on the machine", func() error {
		if got := c.host(); !slices.Equal(got, before) {
			return errors.New(difference(got, before))
		}
		return nil
	}, wait.Within(settled), wait.Every(500*time.Millisecond))
}

// checkDoctor: no check of r doctor fails.
func (c *chaos) checkDoctor() {
	out, f := c.call(c.t.Context(), "doctor")
	var found struct {
		Checks []struct{ Name, Level, Found string }
	}
	if err := json.Unmarshal([]byte(out), &found); err != nil || len(found.Checks) == 0 {
		c.problem("r doctor: %v: %s", f, out)
		return
	}
	for _, check := range found.Checks {
		if check.Level == "fail" {
			c.problem("r doctor: %s: %s", check.Name, check.Found)
		}
	}
}
