package schema

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// Cell renders a value for a table. Absent values are empty.
func Cell(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	case bool:
		if v {
			return "yes"
		}
		return "no"
	case time.Time:
		if v.IsZero() {
			return ""
		}
		return v.UTC().Format(time.RFC3339)
	case time.Duration:
		return v.String()
	case Secret:
		return v.String()
	}
	rv := reflect.ValueOf(v)
	switch rv.Kind() {
	case reflect.Pointer:
		if rv.IsNil() {
			return ""
		}
		return Cell(rv.Elem().Interface())
	case reflect.Slice:
		parts := make([]string, rv.Len())
		for i := range parts {
			parts[i] = Cell(rv.Index(i).Interface())
		}
		return strings.Join(parts, ",")
	case reflect.String:
		return rv.String()
	}
	return fmt.Sprint(v)
}

// CellAge renders the time since t: "5s", "12m", "3h", "4d".
func CellAge(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	d := max(0, now.Sub(t))
	switch {
	case d < 2*time.Minute:
		return strconv.Itoa(int(d/time.Second)) + "s"
	case d < 2*time.Hour:
		return strconv.Itoa(int(d/time.Minute)) + "m"
	case d < 48*time.Hour:
		return strconv.Itoa(int(d/time.Hour)) + "h"
	}
	return strconv.Itoa(int(d/(24*time.Hour))) + "d"
}

// CellBytes renders a number of bytes: "512 MiB".
func CellBytes(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	x, i := float64(n), 0
	for (x >= 1024 || x <= -1024) && i < len(units)-1 {
		x /= 1024
		i++
	}
	return strings.TrimSuffix(strconv.FormatFloat(x, 'f', 1, 64), ".0") + " " + units[i]
}

// CellMillis renders thousandths as a number: 1500 is "1.5".
func CellMillis(n int64) string { return strconv.FormatFloat(float64(n)/1000, 'f', -1, 64) }
