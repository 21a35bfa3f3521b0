package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"miren.dev/runtime/api/core"
)

// paintGoal is in milliseconds.
const paintGoal = 1000

// benchDashboard measures how long the overview takes in a browser.
func benchDashboard(ctx context.Context, b *bench) error {
	i, err := b.installation(ctx)
	if err != nil {
		return err
	}
	keys := core.NewKeysClient(i.client)
	key, err := keys.Create(ctx, &core.CreateKeyRequest{Name: "paint"})
	if err != nil {
		return err
	}
	modules, err := output(exec.CommandContext(ctx, filepath.Join(b.opt.src, "hack", "dashboard-clients.sh")))
	if err != nil {
		return err
	}
	node := exec.CommandContext(ctx, "node", "paint.mjs")
	node.Dir = filepath.Join(b.opt.src, "e2e", "testdata", "dashboard")
	node.Env = append(os.Environ(), "MODULES="+strings.TrimSpace(string(modules)), "URL=http://"+i.api, "KEY="+key.Secret, fmt.Sprint("ROUNDS=", b.rounds(15)))
	out, err := output(node)
	if err != nil {
		return err
	}
	var took struct{ Paint, Content []float64 } // milliseconds
	if err := json.Unmarshal(out, &took); err != nil {
		return fmt.Errorf("paint.mjs: %w: %.200s", err, out)
	}
	var paint, content latencies
	for n := range took.Paint {
		paint = append(paint, time.Duration(took.Paint[n]*float64(time.Millisecond)))
		content = append(content, time.Duration(took.Content[n]*float64(time.Millisecond)))
	}
	if len(paint) == 0 {
		return errors.New("the browser has painted nothing")
	}
	b.report.figure("first paint of the overview, p50", "ms", paint.ms(50), paintGoal)
	b.report.figure("first paint of the overview, slowest", "ms", paint.ms(100), 0)
	b.report.figure("content of the overview, p50", "ms", content.ms(50), 0)
	return nil
}

// output returns what a program prints; an error has what it says.
func output(cmd *exec.Cmd) ([]byte, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%v: %w: %s", cmd.Args, err, stderr.Bytes())
	}
	return out, nil
}
