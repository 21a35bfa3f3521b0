package console

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"miren.dev/runtime/pkg/schema"
)

// Progress shows the progress of a long operation: a bar with rate and remaining
// time on a terminal, periodic lines in a pipe, events with --json.
type Progress struct {
	c      *Console
	what   string
	first  time.Time
	began  time.Time // start of the phase
	events bool      // print JSON lines

	mu          sync.Mutex
	live        *Live
	done, total int64
	last        time.Time // last drawn
	finished    bool
}

// How often a bar is drawn, and how often a line is printed.
const (
	drawInterval = 100 * time.Millisecond
	lineInterval = 5 * time.Second
)

const barWidth = 30

// Progress starts a progress. With events it prints them if --json is given; a
// command that prints one document must not set it.
func (c *Console) Progress(what string, events bool) *Progress {
	now := time.Now()
	p := &Progress{c: c, what: what, first: now, began: now, last: now, events: events && c.JSON}
	if c.Terminal && !c.JSON && !c.Quiet {
		p.live = c.Live()
	}
	return p
}

// NoBar prints lines to Err on a terminal too, for a command whose output is
// data. It is called before Set.
func (p *Progress) NoBar() { p.live = nil }

// Set reports the progress in bytes; a total of 0 is unknown. It may be called
// concurrently.
func (p *Progress) Set(done, total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done, p.total = max(done, p.done), total
	now := time.Now()
	every := lineInterval
	if p.live != nil {
		every = drawInterval
	} else if p.events {
		every = time.Second
	}
	if p.finished || now.Sub(p.last) < every {
		return
	}
	p.last = now
	elapsed := now.Sub(p.began)
	switch {
	case p.live != nil:
		p.live.Draw([]string{p.bar(elapsed)})
	case p.events:
		_ = p.c.PrintJSONLine(map[string]any{"event": "progress", "what": p.what, "done": p.done, "total": p.total, "seconds": elapsed.Seconds()})
	default:
		p.c.Notef("%s: %s\n", p.what, p.text(elapsed))
	}
}

// Phase starts the next operation of the same command.
func (p *Progress) Phase(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.what, p.done, p.total, p.began = what, 0, 0, time.Now()
}

// bar returns the line for a terminal. The caller holds mu.
func (p *Progress) bar(elapsed time.Duration) string {
	if p.total == 0 {
		return p.what + " " + p.text(elapsed)
	}
	full := int(min(p.done*barWidth/p.total, barWidth))
	return fmt.Sprintf("%s %s%s %s", p.what, p.c.Paint(Cyan, strings.Repeat("█", full)), p.c.Paint(Dim, strings.Repeat("░", barWidth-full)), p.text(elapsed))
}

// What returns what is being done.
func (p *Progress) What() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.what
}

// text returns amount, rate and remaining time. The caller holds mu.
func (p *Progress) text(elapsed time.Duration) string {
	rate := float64(p.done) / max(elapsed.Seconds(), 0.001)
	if p.total == 0 {
		return fmt.Sprintf("%s  %s/s", schema.CellBytes(p.done), schema.CellBytes(int64(rate)))
	}
	s := fmt.Sprintf("%3.0f%%  %s of %s  %s/s", 100*float64(p.done)/float64(p.total), schema.CellBytes(p.done), schema.CellBytes(p.total), schema.CellBytes(int64(rate)))
	if p.done > 0 && p.done < p.total {
		left := time.Duration(float64(p.total-p.done) / rate * float64(time.Second))
		s += "  " + left.Round(time.Second).String() + " left"
	}
	return s
}

// End removes the bar and returns the duration since the start.
func (p *Progress) End() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.finished = true
	if p.live != nil {
		p.live.Draw(nil)
	}
	return time.Since(p.first)
}
