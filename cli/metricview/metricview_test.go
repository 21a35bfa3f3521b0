package metricview

import (
	"math"
	"testing"
)

var none = math.NaN()

// TestCurve: heights from 0 to the greatest value, gaps, and the greatest of each part.
func TestCurve(t *testing.T) {
	for _, c := range []struct {
		values []float64
		width  int
		want   string
	}{
		{[]float64{0, 1, 2, 4, 8}, 10, "▁▂▃▅█"},
		{[]float64{none, 5, none}, 10, " █ "},
		{[]float64{0, 0}, 10, "▁▁"},
		{[]float64{0, 8, 0, 0, 4, none}, 3, "█▁▅"},
		{nil, 10, ""},
	} {
		if got := Curve(c.values, c.width); got != c.want {
			t.Errorf("%v in %d: %q, want %q", c.values, c.width, got, c.want)
		}
	}
}

func TestFormat(t *testing.T) {
	for _, c := range []struct {
		unit  string
		value float64
		want  string
	}{
		{"cores", 0.257, "0.26"}, {"bytes", 1 << 20, "1 MiB"}, {"seconds", 0.0123, "12.3ms"}, {"seconds", 2.5, "2.50s"},
		{"requests/s", 3, "3.00/s"}, {"count", 2, "2"}, {"count", 1.25, "1.3"}, {"cores", none, "-"},
	} {
		if got := format(c.unit, c.value); got != c.want {
			t.Errorf("%v %s: %q, want %q", c.value, c.unit, got, c.want)
		}
	}
	if last, mean, most := summary([]float64{1, 3, none}); last != 3 || mean != 2 || most != 3 {
		t.Error(last, mean, most)
	}
	if last, _, _ := summary([]float64{1, none, none}); !math.IsNaN(last) {
		t.Error(last)
	}
}
