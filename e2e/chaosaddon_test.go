package e2e

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

// chaosAddon is a Valkey with keys.
type chaosAddon struct {
	name    string
	keys    []string       // acknowledged
	gone    []string       // keys that a restore has removed
	backups map[string]int // number of keys that each has at least
	order   []string       // names of the backups
}

const maxAddons = 1 // of a client, since the app can have one address of a Valkey

func (c *chaosClient) addon() *chaosAddon {
	if len(c.addons) == 0 {
		return nil
	}
	return c.addons[0]
}

func (c *chaosClient) createAddon(ctx context.Context) {
	name := c.name("cache")
	if len(c.addons) >= maxAddons {
		return
	}
	if _, f := c.op(ctx, true, "addon", "create", "valkey", name, "--size", "64M", "--memory", "96M"); f == nil {
		c.addons = append(c.addons, &chaosAddon{name: name, backups: map[string]int{}})
	}
}

// notConnected is what the client of Valkey says while it cannot be reached.
var notConnected = regexp.MustCompile(`Could not connect|Connection (refused|reset)|Server closed|LOADING|I/O error`)

// console has the client of the addon run commands.
func (c *chaosClient) console(ctx context.Context, a *chaosAddon, commands string) (string, *failure) {
	out, f := c.callIn(ctx, chaosInput{stdin: commands}, "addon", "console", a.name)
	if f != nil && f.Class == "" && notConnected.MatchString(f.Message) {
		f.Class = errs.Unavailable // it was killed, and starts
	}
	c.judge("addon console "+a.name, f, false)
	return out, f
}

// writeAddon sets a key and has Valkey sync it: the key is there from then on.
func (c *chaosClient) writeAddon(ctx context.Context) {
	key := c.name("key")
	a := c.addon()
	if a == nil {
		return
	}
	out, f := c.console(ctx, a, "set "+key+" 1\nwaitaof 1 0 20000\n")
	if lines := strings.Fields(out); f == nil && len(lines) >= 2 && lines[0] == "OK" && lines[1] == "1" {
		a.keys = append(a.keys, key)
	}
}

// attachAddon gives the app the address of the addon, or takes it away.
func (c *chaosClient) attachAddon(ctx context.Context) {
	a := c.addon()
	if a == nil || !c.app.deployed {
		return
	}
	verb, addon := "attach", a.name
	if c.app.addon == a.name {
		verb, addon = "detach", ""
	}
	done := c.rollout(ctx, chaosInput{}, "addon", verb, a.name, "--app", c.app.name)
	if c.app.addon = addon; !done {
		c.app.addon, c.app.changing = "", true
	}
}

func (c *chaosClient) backupAddon(ctx context.Context) {
	name := c.name("backup")
	a := c.addon()
	if a == nil {
		return
	}
	if _, f := c.op(ctx, true, "addon", "backup", a.name, "--name", name); f == nil {
		a.backups[name] = len(a.keys)
		a.order = append(a.order, name)
	}
}

// restoreAddon restores the latest backup in place.
func (c *chaosClient) restoreAddon(ctx context.Context) {
	a := c.addon()
	if a == nil || len(a.order) == 0 {
		return
	}
	name := a.order[len(a.order)-1]
	_, f := c.op(ctx, true, "addon", "restore", a.name, name, "--in-place", "--yes")
	n := a.backups[name]
	if f == nil {
		a.gone = append(a.gone, a.keys[n:]...)
	}
	a.keys = a.keys[:n]
	a.order = a.order[:len(a.order)-1]
}

// deleteAddon repeats the deletion until the addon is gone: the app keeps its address until then, and so cannot get that
// of another one.
func (c *chaosClient) deleteAddon(ctx context.Context) {
	a := c.addon()
	if a == nil {
		return
	}
	for began := time.Now(); ctx.Err() == nil; {
		_, f := c.op(ctx, false, "addon", "delete", a.name, "--yes", "--force")
		if f == nil || f.Class == errs.NotFound {
			break
		}
		if time.Since(began) > operationLimit {
			c.problem("client %d: addon %s cannot be deleted: %s", c.n, a.name, f)
			break
		}
	}
	c.app.addon, c.app.changing = "", true
	c.addons = slices.DeleteFunc(c.addons, func(o *chaosAddon) bool { return o == a })
}

// checkAddon: an addon has its keys, and none that a restore has removed.
func (c *chaosClient) checkAddon(a *chaosAddon) {
	wait.NoError(c.t, "addon "+a.name+" answers", func() error {
		out, f := c.callIn(c.t.Context(), chaosInput{stdin: "keys *\n"}, "addon", "console", a.name)
		if f != nil {
			return fmt.Errorf("%s", f)
		}
		has := strings.Fields(out)
		for _, k := range a.keys {
			if !slices.Contains(has, k) {
				return fmt.Errorf("%s lacks %s; it has %q", a.name, k, has)
			}
		}
		for _, k := range a.gone {
			if slices.Contains(has, k) {
				return fmt.Errorf("%s has %s, which a restore has removed", a.name, k)
			}
		}
		return nil
	}, wait.Within(settled))
}
