package e2e

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"miren.dev/runtime/testsupport/leakcheck"
)

// watch fails the test if what holds at every moment does not hold: sandboxes have addresses of their own, a disk has
// one sandbox that writes to it, and the versions of an app get all requests, once.
func (c *chaos) watch(ctx context.Context) {
	for pause(ctx, 3*time.Second) == nil {
		if boxes, ok := c.listNow(ctx, "sandbox"); ok {
			c.watchAddresses(boxes)
			c.watchWriters(boxes)
		}
		if apps, ok := c.listNow(ctx, "app"); ok {
			c.watchTraffic(apps)
		}
	}
}

// listNow lists entities; false: the server does not answer.
func (c *chaos) listNow(ctx context.Context, kind string) (list []chaosEntity, ok bool) {
	out, f := c.call(ctx, "entity", "list", kind)
	if f != nil {
		return nil, false
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		c.problem("the list of %s: %v", kind, err)
		return nil, false
	}
	return list, true
}

func (c *chaos) watchAddresses(boxes []chaosEntity) {
	has := map[string]string{}
	for _, sb := range boxes {
		if a := sb.Status.Address; a != "" && sb.Status.Phase == "running" {
			if other := has[a]; other != "" {
				c.problem("%s and %s have the address %s", other, sb.ID, a)
			}
			has[a] = sb.ID
		}
	}
}

// watchWriters looks at the processes: a sandbox whose entity says that it has ended writes as long as one of its
// processes lives.
func (c *chaos) watchWriters(boxes []chaosEntity) {
	items, err := leakcheck.List(c.in)
	if err != nil {
		return // of objects that vanish meanwhile
	}
	alive := map[string]bool{}
	for _, i := range items {
		if i.Kind == "process" && strings.Contains(i.Name, "runsc-sandbox") {
			for _, id := range sandboxID.FindAllString(i.Name, -1) {
				alive[id] = true
			}
		}
	}
	writes := map[string]string{}
	for _, sb := range boxes {
		for _, v := range sb.Spec.Volumes {
			if v.ReadOnly || !alive[sb.ID] {
				continue
			}
			if other := writes[v.Disk]; other != "" && other != sb.ID {
				c.problem("%s and %s write to %s", other, sb.ID, v.Disk)
			}
			writes[v.Disk] = sb.ID
		}
	}
}

func (c *chaos) watchTraffic(apps []chaosEntity) {
	for _, a := range apps {
		sum, has := 0, map[string]bool{}
		for _, share := range a.Status.Traffic {
			if share.Host != "" {
				continue // a preview gets the requests of its host alone
			}
			sum += share.Weight
			if has[share.Version] {
				c.problem("%s has %s twice: %+v", a.Name, share.Version, a.Status.Traffic)
			}
			has[share.Version] = true
		}
		if len(has) > 0 && sum != 100 {
			c.problem("the versions of %s get %d%% of its requests: %+v", a.Name, sum, a.Status.Traffic)
		}
	}
}

// uniqueKinds have names that are unique in their project.
var uniqueKinds = []string{"addon", "app", "disk", "secret", "snapshot", "template"}

// checkNames: no two entities of a kind have the same name, and no two routes the same host and path.
func (c *chaos) checkNames() {
	for _, kind := range uniqueKinds {
		has := map[string]string{}
		for _, e := range c.list(kind) {
			if key := e.Project + "/" + e.Name; e.Name != "" {
				if has[key] != "" {
					c.problem("%s and %s are both named %s", has[key], e.ID, e.Name)
				}
				has[key] = e.ID
			}
		}
	}
	has := map[string]string{}
	for _, e := range c.list("route") {
		key := e.Spec.Host + e.Spec.Path
		if has[key] != "" {
			c.problem("routes %s and %s have the host %s", has[key], e.ID, key)
		}
		has[key] = e.ID
	}
}

// secretKinds might show the value of a secret.
var secretKinds = []string{"addon", "app", "app_version", "deployment", "event", "sandbox", "sandbox_pool", "secret"}

// checkSecrets: neither entities nor files have a secret in plain. Sandboxes, whose processes have them, are deleted.
func (c *chaos) checkSecrets() {
	for _, kind := range secretKinds {
		if out := c.r(c.t, "", "entity", "list", kind, "--json"); strings.Contains(out, secretMark) {
			c.problem("an entity of kind %s has a secret in plain", kind)
		}
	}
	noFileHas(c.t, secretMark, c.in.State(), c.in.RunDir)
}
