// Package metricview prints the history of metrics: a line for each with its values
// as a small curve.
package metricview

import (
	"context"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/metric"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/pkg/schema"
)

// Flags say for which times metrics are read.
type Flags struct {
	since, until string
	step         time.Duration
}

// Add adds the flags to a command.
func (f *Flags) Add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.since, "since", "1h", "from then on: an age (90m, 24h, 7d), a date, or a time (2026-01-02T15:04:05Z)")
	cmd.Flags().StringVar(&f.until, "until", "", "until then; default: now")
	cmd.Flags().DurationVar(&f.step, "step", 0, "time between two values; default: so that there are at most 240")
}

// Range returns the times.
func (f *Flags) Range(now time.Time) (*metric.Range, error) {
	r := &metric.Range{}
	if f.since != "" {
		t, err := command.ParseTime("since", f.since, now)
		if err != nil {
			return nil, err
		}
		r.From = &t
	}
	if f.until != "" {
		t, err := command.ParseTime("until", f.until, now)
		if err != nil {
			return nil, err
		}
		r.To = &t
	}
	switch {
	case f.step < 0 || f.step > 0 && f.step < time.Second:
		return nil, exit.Usagef("--step %s: want at least 1s", f.step)
	case f.step > 0:
		r.Step = &f.step
	}
	return r, nil
}

// Print reads metrics and prints them; without any it prints a remark.
func (f *Flags) Print(ctx context.Context, e *command.Env, none string, read func(metric.MetricsClient, *metric.Range) (*metric.Response, error)) error {
	r, err := f.Range(time.Now())
	if err != nil {
		return err
	}
	conn, err := e.Connect(ctx)
	if err != nil {
		return err
	}
	resp, err := read(metric.NewMetricsClient(conn), r)
	if err != nil {
		return err
	}
	if e.JSON {
		return e.PrintJSON(jsonOf(resp))
	}
	if len(resp.Series) == 0 {
		e.Notef("%s\n", none)
		return nil
	}
	Table(e.Console, resp)
	return nil
}

// history is what --json prints: as the answer of the REST API.
type history struct {
	From        time.Time `json:"from"`
	StepSeconds float64   `json:"step_seconds"`
	Series      []series  `json:"series"`
}

type series struct {
	Metric  string     `json:"metric"`
	Unit    string     `json:"unit"`
	Service string     `json:"service,omitempty"`
	Label   string     `json:"label,omitempty"`
	Values  []*float64 `json:"values"`
}

func jsonOf(r *metric.Response) history {
	h := history{From: r.From, StepSeconds: r.Step.Seconds(), Series: []series{}}
	for i := range r.Series {
		s := &r.Series[i]
		x := series{s.Metric, s.Unit, s.Service, s.Label, make([]*float64, len(s.Values))}
		for j := range s.Values {
			if v := s.Values[j]; !math.IsNaN(v) && !math.IsInf(v, 0) {
				x.Values[j] = &v
			}
		}
		h.Series = append(h.Series, x)
	}
	return h
}

// curveWidth is the number of characters of a curve.
const curveWidth = 40

// Table prints a line for each series.
func Table(c *console.Console, r *metric.Response) {
	services := false
	for _, s := range r.Series {
		services = services || s.Service != ""
	}
	headers := []string{"METRIC", "NOW", "MEAN", "MOST", "HISTORY"}
	if services {
		headers = append([]string{"SERVICE"}, headers...)
	}
	rows := make([][]string, len(r.Series))
	for i := range r.Series {
		s := &r.Series[i]
		name := strings.ReplaceAll(s.Metric, "_", " ")
		if s.Label != "" {
			name += " " + s.Label
		}
		last, mean, most := summary(s.Values)
		row := []string{name, format(s.Unit, last), format(s.Unit, mean), format(s.Unit, most), Curve(s.Values, curveWidth)}
		if services {
			row = append([]string{s.Service}, row...)
		}
		rows[i] = row
	}
	c.Table(headers, rows)
}

// summary returns the last value, NaN if there is none at the last two times, and the
// mean and the greatest of all.
func summary(values []float64) (last, mean, most float64) {
	last, most = math.NaN(), math.NaN()
	n, sum := 0, 0.0
	for i, v := range values {
		if math.IsNaN(v) {
			continue
		}
		if i >= len(values)-2 {
			last = v
		}
		if n++; n == 1 || v > most {
			most = v
		}
		sum += v
	}
	return last, sum / float64(n), most
}

func format(unit string, v float64) string {
	if math.IsNaN(v) {
		return "-"
	}
	switch unit {
	case "bytes":
		return schema.CellBytes(int64(v))
	case "bytes/s":
		return schema.CellBytes(int64(v)) + "/s"
	case "seconds":
		if v < 1 {
			return strconv.FormatFloat(v*1000, 'f', 1, 64) + "ms"
		}
		return strconv.FormatFloat(v, 'f', 2, 64) + "s"
	case "requests/s":
		return strconv.FormatFloat(v, 'f', 2, 64) + "/s"
	case "count":
		return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

var bars = []rune("▁▂▃▄▅▆▇█")

// Curve draws values, from 0 to the greatest, in at most width characters, each the
// greatest value of its part. Where there is no value there is a space.
func Curve(values []float64, width int) string {
	n := min(width, len(values))
	_, _, most := summary(values)
	out := make([]rune, n)
	for i := range out {
		from, to := i*len(values)/n, (i+1)*len(values)/n
		_, _, v := summary(values[from:to])
		switch {
		case math.IsNaN(v):
			out[i] = ' '
		case most <= 0:
			out[i] = bars[0]
		default:
			out[i] = bars[min(len(bars)-1, max(0, int(v/most*float64(len(bars)))))]
		}
	}
	return string(out)
}
