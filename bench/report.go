package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// row is one line of the table.
type row struct {
	Area   string  `json:"area"`
	What   string  `json:"what"`
	Unit   string  `json:"unit"`
	Ours   float64 `json:"ours"`
	Peer   string  `json:"peer,omitempty"` // its name
	Theirs float64 `json:"theirs,omitempty"`
	Ratio  float64 `json:"ratio,omitempty"` // ratio of ours to theirs
	Goal   string  `json:"goal,omitempty"`
	Met    *bool   `json:"met,omitempty"` // nil: a figure without a goal
	Limit  string  `json:"limit,omitempty"`
}

// report collects the rows of a run.
type report struct {
	opt   options
	area  string
	host  host
	began time.Time
	rows  []row
}

func newReport(o options) *report {
	r := &report{opt: o, host: describeHost(o), began: time.Now()}
	r.host.Load = loadAverage()
	return r
}

// add adds a row and prints it.
func (r *report) add(w row) {
	w.Area = r.area
	if w.Met != nil && !*w.Met {
		w.Limit = limits[w.What]
	}
	r.rows = append(r.rows, w)
	c := w.cells()
	line := fmt.Sprintf("  %s: %s %s", c[0], c[1], c[2])
	if w.Peer != "" {
		line += fmt.Sprintf(", %s %s, ratio %s", w.Peer, c[3], c[4])
	}
	if w.Met != nil {
		line += fmt.Sprintf(" (goal %s: %s)", c[5], c[6])
	}
	progress("%s", line)
}

// compare adds a row with the medians of both sides. A goal is a ratio: a lower
// bound where more is better, an upper bound where less is; 0 is none.
func (r *report) compare(what, unit, peer string, p *pair, atLeast, atMost float64) {
	w := row{What: what, Unit: unit, Ours: median(p.ours), Peer: peer, Theirs: median(p.peer), Ratio: p.ratio()}
	switch {
	case atLeast > 0:
		w.goal(fmt.Sprintf("≥ %s×", goalNumber(atLeast)), w.Ratio >= atLeast)
	case atMost > 0:
		w.goal(fmt.Sprintf("≤ %s×", goalNumber(atMost)), w.Ratio <= atMost)
	}
	r.add(w)
}

// figure adds a row without a peer; atMost 0 is no goal.
func (r *report) figure(what, unit string, v, atMost float64) {
	w := row{What: what, Unit: unit, Ours: v}
	if atMost > 0 {
		w.goal(fmt.Sprintf("≤ %g %s", atMost, unit), v <= atMost)
	}
	r.add(w)
}

func (w *row) goal(text string, met bool) { w.Goal, w.Met = text, &met }

// goalNumber has at least one digit after the point, and all there are.
func goalNumber(v float64) string {
	s := strconv.FormatFloat(v, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// cells are the columns: what, ours, unit, theirs, ratio, goal, met.
func (w *row) cells() [7]string {
	c := [7]string{w.What, number(w.Ours), w.Unit, "", "", w.Goal, ""}
	if w.Peer != "" {
		c[3], c[4] = number(w.Theirs), fmt.Sprintf("%.2f×", w.Ratio)
	}
	if w.Met != nil {
		c[6] = map[bool]string{true: "yes", false: "**no**"}[*w.Met]
	}
	return c
}

// number has three significant digits, and thousands set apart.
func number(v float64) string {
	switch a := math.Abs(v); {
	case a >= 10000:
		return fmt.Sprintf("%.1fk", v/1000)
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// write prints the table, and writes the requested files.
func (r *report) write(selected string) error {
	r.host.Load += " before, " + loadAverage() + " after"
	table := r.table(selected)
	var err error
	if r.opt.json != "-" {
		_, err = fmt.Print(table)
	}
	if r.opt.markdown != "" && err == nil {
		if err = os.MkdirAll(filepath.Dir(r.opt.markdown), 0o755); err == nil {
			err = os.WriteFile(r.opt.markdown, []byte(table), 0o644)
		}
	}
	if r.opt.json == "" || err != nil {
		return err
	}
	b, err := json.MarshalIndent(map[string]any{
		"at": r.began.UTC(), "took_seconds": time.Since(r.began).Seconds(), "host": r.host, "quick": r.opt.quick, "results": r.rows,
	}, "", "  ")
	if err != nil {
		return err
	}
	b = append(b, '\n')
	if r.opt.json == "-" {
		_, err = os.Stdout.Write(b)
		return err
	}
	return os.WriteFile(r.opt.json, b, 0o644)
}

func (r *report) table(selected string) string {
	var b strings.Builder
	h := r.host
	command := strings.TrimSpace("hack/bench.sh " + selected)
	if selected == "" {
		command = "make bench"
	}
	fmt.Fprintf(&b, "# Benchmarks\n\nMade by `%s` at %s, commit %s, in %s. Both sides of a row ran in this run, taking turns;\n", command,
		r.began.UTC().Format("2006-01-02 15:04 UTC"), h.Commit, time.Since(r.began).Round(time.Second))
	fmt.Fprintf(&b, "figures are medians of the turns, ratios medians of the turns' ratios (ours : theirs). Absolutes depend on the machine, ratios travel.\n")
	if r.opt.quick {
		fmt.Fprintf(&b, "**A quick run: few, short turns.**\n")
	}
	fmt.Fprintf(&b, "\nMachine: %s, %d cores, %s, Linux %s, %s, %s; %s. Load average: %s.\n", h.CPU, h.Cores, h.Memory, h.Kernel, h.System, h.Disk, h.Go, h.Load)
	area := ""
	for i := range r.rows {
		w := &r.rows[i]
		if w.Area != area {
			area = w.Area
			fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| | ours | | peer | theirs | ratio | goal | met |\n|---|--:|---|---|--:|--:|---|---|\n", titles[area].title, titles[area].how)
		}
		c := w.cells()
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s |\n", c[0], c[1], c[2], w.Peer, c[3], c[4], c[5], c[6])
	}
	first := true
	for i := range r.rows {
		w := &r.rows[i]
		if w.Met == nil || *w.Met {
			continue
		}
		if first {
			fmt.Fprintf(&b, "\n## What limits the figures that fall short\n\n")
			first = false
		}
		limit := w.Limit
		if limit == "" {
			limit = "not looked into yet; `hack/bench.sh --profile DIR` writes CPU profiles"
		}
		fmt.Fprintf(&b, "- **%s**: %s.\n", w.What, limit)
	}
	if !r.opt.quick && first {
		fmt.Fprintf(&b, "\nEvery goal of this run is met.\n")
	}
	return wrap(b.String())
}
