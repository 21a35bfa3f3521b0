package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"miren.dev/runtime/pkg/errs"
)

// chaosClient operates, and knows what was acknowledged. Its names are its own.
type chaosClient struct {
	*chaos
	n      int
	rng    *rand.Rand
	made   int // numbers for names and values
	boxes  []*chaosBox
	disks  []*chaosDisk
	addons []*chaosAddon
	app    chaosApp
}

// chaosBox is a sandbox with a file.
type chaosBox struct {
	id     string
	values []string // what the file may have: one, or more after a write of an unknown outcome
	unsure bool     // an operation on it has an unknown outcome, so that it may be paused or deleted
}

// chaosDisk is a disk with lines.
type chaosDisk struct {
	name      string
	lines     []string            // acknowledged
	snapshots map[string][]string // lines that each has at least
}

func newChaosClient(c *chaos, n int, seed uint64, source string) *chaosClient {
	return &chaosClient{chaos: c, n: n, rng: rand.New(rand.NewPCG(seed, uint64(n))), app: newChaosApp(n, copySource(c.t, source))}
}

const (
	maxBoxes = 3 // of a client
	maxDisks = 2
)

// chaosOperations are what a client does, each as often as its weight says.
var chaosOperations = []struct {
	weight int
	name   string
	do     func(*chaosClient, context.Context)
}{
	{3, "create", (*chaosClient).createBox},
	{4, "write", (*chaosClient).writeBox},
	{4, "read", (*chaosClient).readBox},
	{2, "pause", (*chaosClient).pauseBox},
	{2, "fork", (*chaosClient).forkBox},
	{1, "snapshot", (*chaosClient).snapshotBox},
	{2, "delete", (*chaosClient).deleteBox},
	{2, "disk", (*chaosClient).createDisk},
	{4, "disk-write", (*chaosClient).writeDisk},
	{2, "disk-snapshot", (*chaosClient).snapshotDisk},
	{1, "disk-clone", (*chaosClient).cloneDisk},
	{2, "deploy", (*chaosClient).deploy},
	{3, "app-read", (*chaosClient).readApp},
	{1, "canary", (*chaosClient).canary},
	{1, "rollback", (*chaosClient).rollback},
	{1, "preview", (*chaosClient).changePreviews},
	{1, "env", (*chaosClient).env},
	{2, "secret", (*chaosClient).appSecret},
	{1, "project-secret", (*chaosClient).projectSecret},
	{1, "addon", (*chaosClient).createAddon},
	{3, "addon-write", (*chaosClient).writeAddon},
	{1, "addon-attach", (*chaosClient).attachAddon},
	{1, "addon-backup", (*chaosClient).backupAddon},
	{1, "addon-restore", (*chaosClient).restoreAddon},
	{1, "addon-delete", (*chaosClient).deleteAddon},
	{1, "scale", (*chaosClient).scaleApp},
	{1, "restart", (*chaosClient).restartApp},
	{1, "task", (*chaosClient).runTask},
	{1, "route", (*chaosClient).changeRoutes},
	{2, "execution", (*chaosClient).execute},
}

// run operates until ctx ends.
func (c *chaosClient) run(ctx context.Context) {
	sum := 0
	for _, o := range chaosOperations {
		sum += o.weight
	}
	for ctx.Err() == nil {
		at := c.rng.IntN(sum)
		for _, o := range chaosOperations {
			if at -= o.weight; at < 0 {
				// An operation ends also when the time is over, since its outcome matters.
				o.do(c, c.t.Context())
				break
			}
		}
	}
}

// name makes a name that was not used before.
func (c *chaosClient) name(what string) string {
	c.made++
	return fmt.Sprintf("%s-%d-%d", what, c.n, c.made)
}

// op runs r and judges how it failed. sure says that nothing but what was acknowledged
// happened to the object of the operation.
func (c *chaosClient) op(ctx context.Context, sure bool, args ...string) (string, *failure) {
	return c.opIn(ctx, chaosInput{}, func() bool { return sure }, args...)
}

// opOn is op on a sandbox.
func (c *chaosClient) opOn(ctx context.Context, b *chaosBox, args ...string) (string, *failure) {
	return c.opIn(ctx, chaosInput{}, func() bool { return c.sure(b) }, args...)
}

// opIn is op in a directory, or with standard input. It asks sure when the operation has ended, since a process of
// its object may be killed during the operation.
func (c *chaosClient) opIn(ctx context.Context, in chaosInput, sure func() bool, args ...string) (string, *failure) {
	out, f := c.callIn(ctx, in, args...)
	c.judge(strings.Join(args, " "), f, sure())
	return out, f
}

// judge notes how a command ended.
func (c *chaosClient) judge(command string, f *failure, sure bool) {
	text := fmt.Sprintf("client %d: r %s", c.n, command)
	class := "ok"
	if f != nil {
		class = string(f.Class)
		c.note("%s: %s", text, f)
		if !retryable(f, sure) && !c.lostDevice(f) {
			c.problem("%s: %s", text, f)
		}
		if f.Class == errs.Unavailable { // clients come again later
			_ = pause(c.t.Context(), 300*time.Millisecond)
		}
	} else {
		c.note("%s: ok", text)
	}
	words := strings.Fields(command)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.outcomes[words[0]+" "+words[1]+" "+class]++
}

// retryable reports whether an operation may fail so: the documentation says that it is
// repeated, or, if something unknown happened to its object, that its state forbids it.
func retryable(f *failure, sure bool) bool {
	switch f.Class {
	case errs.Unavailable, errs.Conflict, errs.ResourceExhausted, errs.DeadlineExceeded:
		return true
	case errs.NotFound, errs.AlreadyExists, errs.FailedPrecondition, errs.Canceled:
		return !sure
	}
	return false
}

// box picks a sandbox, or returns nil.
func (c *chaosClient) box() *chaosBox {
	if len(c.boxes) == 0 {
		return nil
	}
	return c.boxes[c.rng.IntN(len(c.boxes))]
}

func (c *chaosClient) sure(b *chaosBox) bool { return !b.unsure && !c.wasKilled(b.id) }

// forget drops a sandbox that has ended or is unknown; the last step deletes it.
func (c *chaosClient) forget(b *chaosBox) {
	c.boxes = slices.DeleteFunc(c.boxes, func(o *chaosBox) bool { return o == b })
}

// sandboxIDs returns the ids in the output of a command.
func sandboxIDs(out string) (all []string) {
	for _, id := range sandboxID.FindAllString(out, -1) {
		if !slices.Contains(all, id) {
			all = append(all, id)
		}
	}
	return all
}

func (c *chaosClient) createBox(ctx context.Context) {
	name := c.name("box")
	if len(c.boxes) >= maxBoxes {
		return
	}
	args := []string{"sandbox", "create", "--template", "shell", "--name", name, "--wait", "2m"}
	out, f := c.callIn(ctx, chaosInput{}, args...)
	c.judge(strings.Join(args, " "), f, c.begins(f))
	if f == nil {
		c.boxes = append(c.boxes, &chaosBox{id: sandboxIDs(out)[0], values: []string{""}})
	}
}

// begins is false if f names a sandbox of which a process was killed while it began.
func (c *chaosClient) begins(f *failure) bool {
	return f == nil || !slices.ContainsFunc(sandboxIDs(f.Message), c.wasKilled)
}

func (c *chaosClient) writeBox(ctx context.Context) {
	value := c.name("value")
	b := c.box()
	if b == nil {
		return
	}
	_, f := c.opOn(ctx, b, "sandbox", "exec", b.id, "--no-stdin", "--", "sh", "-c", "echo "+value+" >/tmp/new && mv /tmp/new /tmp/value")
	if f == nil {
		b.values = []string{value}
		return
	}
	b.values = append(b.values, value)
	c.failed(b, f)
}

// failed notes that an operation on a sandbox failed.
func (c *chaosClient) failed(b *chaosBox, f *failure) {
	if c.wasKilled(b.id) || b.unsure && f.Class == errs.NotFound {
		c.forget(b)
	}
}

func (c *chaosClient) readBox(ctx context.Context) {
	if b := c.box(); b != nil {
		c.read(ctx, b)
	}
}

func (c *chaosClient) read(ctx context.Context, b *chaosBox) {
	out, f := c.opOn(ctx, b, "sandbox", "exec", b.id, "--no-stdin", "--", "sh", "-c", "cat /tmp/value 2>/dev/null || true")
	if f != nil {
		c.failed(b, f)
		return
	}
	if got := strings.TrimSpace(out); !slices.Contains(b.values, got) && !c.wasKilled(b.id) {
		c.problem("client %d: %s has %q, want one of %q", c.n, b.id, got, b.values)
	}
}

func (c *chaosClient) pauseBox(ctx context.Context) {
	b := c.box()
	if b == nil {
		return
	}
	for _, verb := range []string{"pause", "resume"} {
		if _, f := c.opOn(ctx, b, "sandbox", verb, b.id); f != nil {
			b.unsure = true
			c.failed(b, f)
			return
		}
	}
}

func (c *chaosClient) forkBox(ctx context.Context) {
	b := c.box()
	if b == nil || len(c.boxes) >= maxBoxes {
		return
	}
	args := []string{"sandbox", "fork", b.id}
	out, f := c.callIn(ctx, chaosInput{}, args...)
	c.judge(strings.Join(args, " "), f, c.sure(b) && c.begins(f))
	if f != nil {
		c.failed(b, f)
		return
	}
	for _, id := range sandboxIDs(out) {
		if id != b.id {
			c.boxes = append(c.boxes, &chaosBox{id: id, values: slices.Clone(b.values)})
			return
		}
	}
	c.problem("client %d: fork of %s printed %q", c.n, b.id, out)
}

func (c *chaosClient) snapshotBox(ctx context.Context) {
	name := c.name("snap")
	b := c.box()
	if b == nil {
		return
	}
	if _, f := c.opOn(ctx, b, "sandbox", "snapshot", b.id, "--name", name); f != nil {
		c.failed(b, f)
		return
	}
	if c.rng.IntN(2) == 0 {
		c.op(ctx, false, "snapshot", "delete", name) // not found: the store was away when the deletion was acknowledged
	}
}

func (c *chaosClient) deleteBox(ctx context.Context) {
	b := c.box()
	if b == nil {
		return
	}
	c.op(ctx, false, "sandbox", "delete", b.id)
	c.forget(b)
}

func (c *chaosClient) disk() *chaosDisk {
	if len(c.disks) == 0 {
		return nil
	}
	return c.disks[c.rng.IntN(len(c.disks))]
}

func (c *chaosClient) createDisk(ctx context.Context) {
	name := c.name("disk")
	if len(c.disks) >= maxDisks {
		return
	}
	if _, f := c.op(ctx, true, "disk", "create", name, "--size", "64M"); f == nil {
		c.disks = append(c.disks, &chaosDisk{name: name, snapshots: map[string][]string{}})
	}
}

// writeDisk adds a line and has the sandbox sync it: the line is there from then on.
func (c *chaosClient) writeDisk(ctx context.Context) {
	line := c.name("line")
	d := c.disk()
	if d == nil {
		return
	}
	_, f := c.op(ctx, false, "sandbox", "run", "--template", "shell", "--volume", d.name+":/data", "--", "sh", "-c", "echo "+line+" >>/data/lines && sync /data/lines")
	if f == nil {
		d.lines = append(d.lines, line)
	}
}

func (c *chaosClient) snapshotDisk(ctx context.Context) {
	name := c.name("snap")
	d := c.disk()
	if d == nil {
		return
	}
	if _, f := c.op(ctx, true, "disk", "snapshot", d.name+"@"+name); f == nil {
		d.snapshots[name] = slices.Clone(d.lines)
	}
}

// cloneDisk clones a snapshot, and drops a disk, so that there is room for the clone.
func (c *chaosClient) cloneDisk(ctx context.Context) {
	name := c.name("disk")
	d := c.disk()
	if d == nil || len(d.snapshots) == 0 {
		return
	}
	var names []string
	for n := range d.snapshots {
		names = append(names, n)
	}
	slices.Sort(names)
	from := names[c.rng.IntN(len(names))]
	if _, f := c.op(ctx, true, "disk", "clone", d.name+"@"+from, name); f != nil {
		return
	}
	clone := &chaosDisk{name: name, lines: d.snapshots[from], snapshots: map[string][]string{}}
	if len(c.disks) < maxDisks {
		c.disks = append(c.disks, clone)
		return
	}
	c.checkDisk(clone)
}

func (c *chaosClient) execute(ctx context.Context) {
	c.op(ctx, true, "execution", "submit", "--template", "shell", "--", "echo", c.name("execution"))
}

// check: what was acknowledged is there.
func (c *chaosClient) check() {
	for _, b := range slices.Clone(c.boxes) {
		if c.sure(b) {
			c.read(c.t.Context(), b)
		}
	}
	for _, d := range c.disks {
		c.checkDisk(d)
		for name, lines := range d.snapshots { // one of them
			clone := c.name("disk")
			c.r(c.t, "", "disk", "clone", d.name+"@"+name, clone)
			c.checkDisk(&chaosDisk{name: clone, lines: lines})
			break
		}
	}
	c.checkApp()
	for _, a := range c.addons {
		c.checkAddon(a)
	}
}

// checkDisk: a disk has its lines, once each and in order.
func (c *chaosClient) checkDisk(d *chaosDisk) {
	out, f := c.op(c.t.Context(), false, "sandbox", "run", "--template", "shell", "--volume", d.name+":/data", "--", "sh", "-c", "cat /data/lines || true")
	if f != nil {
		return
	}
	at := 0
	for line := range strings.Lines(out) {
		if at < len(d.lines) && strings.TrimSpace(line) == d.lines[at] {
			at++
		}
	}
	if at < len(d.lines) {
		c.problem("client %d: disk %s lacks the line %s; it has %q", c.n, d.name, d.lines[at], out)
	}
}
