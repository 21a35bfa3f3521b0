package metricsink

import (
	"maps"
	"slices"
	"strings"
	"time"

	"miren.dev/runtime/pkg/metricstore"
)

// forgetAfter is how long the start of a counter without samples is kept.
const forgetAfter = time.Hour

// counterState is what a delivery knows of the series of a counter. The history has values only, and deletes the oldest.
type counterState struct {
	Start time.Time `json:"start"` // since when it counts
	At    time.Time `json:"at"`    // time of the last sample
	Value float64   `json:"value"` // of the last sample
}

// starts returns since when the counters of a moment count; the zero time for other samples. A series that the last
// moment did not have began after it. One whose value fell began again at 0. The start of any other series that is not
// known is its first sample, which OTLP has for "unknown". A second call with the same moment has the same outcome.
func (st *state) starts(m metricstore.Moment) []time.Time {
	out := make([]time.Time, len(m.Samples))
	began := m.At
	if m.At.Sub(st.Read) <= window {
		began = st.Read
	}
	if st.Counters == nil {
		st.Counters = map[string]*counterState{}
	}
	for i, x := range m.Samples {
		if !counts(x.Name) {
			continue
		}
		key := seriesKey(x)
		c := st.Counters[key]
		switch {
		case c == nil:
			c = &counterState{Start: began}
			st.Counters[key] = c
		case x.Value < c.Value:
			c.Start = c.At
		}
		c.At, c.Value, out[i] = m.At, x.Value, c.Start
	}
	maps.DeleteFunc(st.Counters, func(_ string, c *counterState) bool { return m.At.Sub(c.At) > forgetAfter })
	st.Read = m.At
	return out
}

// seriesKey is the name of a series with its labels.
func seriesKey(x metricstore.Sample) string {
	var b strings.Builder
	b.WriteString(x.Name)
	for _, k := range slices.Sorted(maps.Keys(x.Labels)) {
		b.WriteString("," + k + "=" + x.Labels[k])
	}
	return b.String()
}
