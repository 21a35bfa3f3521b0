package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
)

// benchWake measures the first request for an app that sleeps: the ingress holds it until the sandbox that it wakes is
// ready. One app starts anew, the other one is resumed with its memory.
func benchWake(ctx context.Context, b *bench) error {
	i, err := b.installation(ctx)
	if err != nil {
		return err
	}
	if err := b.wake(ctx, i, "wake", "sleeper", ""); err != nil {
		return err
	}
	return b.wake(ctx, i, "wake with suspend", "suspended", ", suspend = true")
}

// wake measures the first requests for an app whose scale has the settings.
func (b *bench) wake(ctx context.Context, i *install, what, name, settings string) error {
	d, err := i.app.copyTo(b.scratch.path("apps", name))
	if err != nil {
		return err
	}
	d.name = name
	config, err := os.OpenFile(filepath.Join(d.dir, ".runtime", "app.toml"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = io.WriteString(config, "scale = { min = 0, max = 1, idle = \"1s\""+settings+" }\n")
	if cerr := config.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if _, err := d.deploy(ctx, i); err != nil {
		return err
	}
	var took []float64
	for range b.rounds(40) {
		if err := d.sleeps(ctx, i); err != nil {
			return err
		}
		t, err := d.first(ctx, i)
		if err != nil {
			return err
		}
		took = append(took, float64(t.Microseconds())/1000)
	}
	p50, p99 := row{What: what + ", p50", Unit: "ms", Ours: median(took)}, row{What: what + ", p99", Unit: "ms", Ours: percentile(took, 99)}
	p50.goal("≤ 120", p50.Ours <= 120)
	p99.goal("≤ 250", p99.Ours <= 250)
	b.report.add(p50)
	b.report.add(p99)
	return nil
}

// sleeps waits until no sandbox of the app's pools runs.
func (d *deployable) sleeps(ctx context.Context, i *install) error {
	ctx, cancel := context.WithTimeout(ctx, deployTimeout)
	defer cancel()
	for {
		all, _, err := entity.List[sandbox.Sandbox](ctx, i.store, entity.Query{})
		if err != nil {
			return err
		}
		n := 0
		for _, sb := range all {
			if sb.Labels["app"] == d.name && !sb.Status.Phase.Ended() && sb.Status.Phase != sandbox.SandboxPhasePaused {
				n++
			}
		}
		if n == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s does not sleep: %d sandboxes", d.name, n)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// first returns the time of a request on a connection of its own, which must succeed.
func (d *deployable) first(ctx context.Context, i *install) (time.Duration, error) {
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", i.address)
	}}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.host()+"/", nil)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return 0, err
	}
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("the request that wakes %s was answered %s", d.name, resp.Status)
	}
	return time.Since(began), nil
}
