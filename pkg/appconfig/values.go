package appconfig

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
)

func itoa(n int) string { return strconv.Itoa(n) }

// typeName names the type of a value for a message.
func typeName(v any) string {
	switch v.(type) {
	case string:
		return "a string"
	case int64:
		return "an integer"
	case float64:
		return "a number"
	case bool:
		return "a boolean"
	case []any, []map[string]any:
		return "a list"
	case map[string]any:
		return "a table"
	}
	return fmt.Sprintf("a %T", v)
}

func (p *parser) table(t table) field {
	return field{object(t), func(key string, v any) {
		if m, ok := v.(map[string]any); ok {
			p.walk(key, m, t)
		} else {
			p.fail(key, "%s must be a table, not %s", key, typeName(v))
		}
	}}
}

func (p *parser) text(to *string) field {
	return field{&jsonschema.Schema{Type: "string", MinLength: jsonschema.Ptr(1)}, func(key string, v any) {
		s, ok := v.(string)
		switch {
		case !ok:
			p.fail(key, "%s must be a string, not %s", key, typeName(v))
		case s == "":
			p.fail(key, "%s is empty", key)
		default:
			*to = s
		}
	}}
}

func (p *parser) appName(to *string) field {
	return field{&jsonschema.Schema{Type: "string", Pattern: AppNamePattern, MaxLength: jsonschema.Ptr(MaxAppName)}, func(key string, v any) {
		p.text(to).set(key, v)
		if *to != "" && (len(*to) > MaxAppName || !appName.MatchString(*to)) {
			p.fail(key, "%s %q must be lower-case letters, digits and dashes, beginning with a letter, not ending in a dash, at most %d", key, *to, MaxAppName)
		}
	}}
}

func (p *parser) oneOf(to *string, choices []string) field {
	return field{oneOfSchema(choices), func(key string, v any) {
		p.text(to).set(key, v)
		if *to != "" && !slices.Contains(choices, *to) {
			p.fail(key, "%s %q is none of %s", key, *to, strings.Join(choices, ", "))
		}
	}}
}

func (p *parser) path(to *string) field {
	return field{&jsonschema.Schema{Type: "string", Pattern: "^[^/]"}, func(key string, v any) {
		p.text(to).set(key, v)
		if *to == "" {
			return
		}
		c, ok := cleanPath(*to)
		if !ok {
			p.fail(key, "%s %q must be a path inside the source folder", key, *to)
			return
		}
		*to = c
	}}
}

func (p *parser) healthPath(to *string) field {
	return field{&jsonschema.Schema{Type: "string", Pattern: "^/"}, func(key string, v any) {
		p.text(to).set(key, v)
		if *to != "" && !strings.HasPrefix(*to, "/") {
			p.fail(key, "%s %q must begin with /", key, *to)
		}
	}}
}

// live reads the liveness check of a service: false, or a table.
func (p *parser) live(to **LiveCheck) field {
	keys := func(c *LiveCheck) table {
		return table{
			"path":     p.healthPath(&c.Path),
			"interval": p.duration(&c.Interval, MinLiveInterval, MaxLiveInterval),
			"timeout":  p.duration(&c.Timeout, MinLiveTimeout, MaxLiveTimeout),
			"failures": p.integer(&c.Failures, 1, MaxLiveFailures),
		}
	}
	either := object(keys(&LiveCheck{}))
	either.Type, either.Types = "", []string{"boolean", "object"}
	return field{either, func(key string, v any) {
		c := &LiveCheck{}
		switch v := v.(type) {
		case bool:
			c.Off = !v
		case map[string]any:
			p.walk(key, v, keys(c))
		default:
			p.fail(key, "%s must be false (no check) or a table, not %s", key, typeName(v))
		}
		*to = c
	}}
}

func (p *parser) list(to *[]string, re *regexp.Regexp) field {
	return field{listSchema(re), func(key string, v any) {
		l, ok := v.([]any)
		if !ok {
			p.fail(key, "%s must be a list of strings, not %s", key, typeName(v))
			return
		}
		for _, e := range l {
			s, ok := e.(string)
			switch {
			case !ok:
				p.fail(key, "%s must be a list of strings, but has %s", key, typeName(e))
			case re != nil && !re.MatchString(s):
				p.fail(key, "%s has %q, which cannot be one", key, s)
			default:
				*to = append(*to, s)
			}
		}
	}}
}

func (p *parser) command(to *[]string) field {
	return field{&jsonschema.Schema{Types: []string{"string", "array"}, MinLength: jsonschema.Ptr(1), MinItems: jsonschema.Ptr(1), Items: &jsonschema.Schema{Type: "string"}}, func(key string, v any) {
		if s, ok := v.(string); ok {
			if strings.TrimSpace(s) == "" {
				p.fail(key, "%s is empty", key)
				return
			}
			*to = Shell(s)
			return
		}
		p.list(to, nil).set(key, v)
		if l, ok := v.([]any); ok && len(l) == 0 {
			p.fail(key, "%s is empty", key)
		}
	}}
}

func (p *parser) integer(to **int64, low, high int64) field {
	return field{&jsonschema.Schema{Type: "integer", Minimum: jsonschema.Ptr(float64(low)), Maximum: jsonschema.Ptr(float64(high))}, func(key string, v any) {
		n, ok := v.(int64)
		switch {
		case !ok:
			p.fail(key, "%s must be an integer, not %s", key, typeName(v))
		case n < low || n > high:
			p.fail(key, "%s is %d, but must be between %d and %d", key, n, low, high)
		default:
			*to = &n
		}
	}}
}

func (p *parser) duration(to **time.Duration, low, high time.Duration) field {
	return field{&jsonschema.Schema{Type: "string", Pattern: durationPattern}, func(key string, v any) {
		s, ok := v.(string)
		if !ok {
			p.fail(key, `%s must be a duration such as "30s", not %s`, key, typeName(v))
			return
		}
		d, err := time.ParseDuration(s)
		switch {
		case err != nil:
			p.fail(key, `%s %q is not a duration such as "30s"`, key, s)
		case d < low || d > high:
			p.fail(key, "%s is %s, but must be between %s and %s", key, d, low, high)
		default:
			*to = &d
		}
	}}
}

func (p *parser) cpu(to **int64) field {
	return field{&jsonschema.Schema{Types: []string{"number", "string"}, Minimum: jsonschema.Ptr(MinCPUMillis / 1000.0), Maximum: jsonschema.Ptr(MaxCPUMillis / 1000.0), Pattern: cpuPattern}, func(key string, v any) {
		n, ok := cpuMillis(v)
		switch {
		case !ok:
			p.fail(key, `%s must be a number of CPUs such as 0.5, or thousandths such as "500m"`, key)
		case n < MinCPUMillis || n > MaxCPUMillis:
			cpus := func(millis int64) string { return strconv.FormatFloat(float64(millis)/1000, 'f', -1, 64) }
			p.fail(key, "%s is %s CPUs, but must be between %s and %s", key, cpus(n), cpus(MinCPUMillis), cpus(MaxCPUMillis))
		default:
			*to = &n
		}
	}}
}

func cpuMillis(v any) (int64, bool) {
	var f float64
	switch v := v.(type) {
	case int64:
		f = float64(v)
	case float64:
		f = v
	case string:
		unit := 1.0
		number, milli := strings.CutSuffix(v, "m")
		if milli {
			unit = 1000
		}
		n, err := strconv.ParseFloat(number, 64)
		if err != nil {
			return 0, false
		}
		f = n / unit
	default:
		return 0, false
	}
	if math.IsNaN(f) || math.Abs(f) > 1e9 {
		return 0, false
	}
	return int64(math.Round(f * 1000)), true
}

func (p *parser) memory(to **int64) field {
	return field{amount(MinMemoryBytes), func(key string, v any) {
		n, ok := bytes(v)
		switch {
		case !ok:
			p.fail(key, `%s must be an amount of memory such as "512MB" or "1GiB"`, key)
		case n < MinMemoryBytes:
			p.fail(key, "%s is %d bytes, but must be at least %dMiB", key, n, MinMemoryBytes>>20)
		case n > MaxMemoryBytes:
			p.fail(key, "%s is %d bytes, but may be at most %dGiB", key, n, MaxMemoryBytes>>30)
		default:
			*to = &n
		}
	}}
}

// bytes reads a number of bytes: an integer, or a string as ParseBytes reads it.
func bytes(v any) (int64, bool) {
	switch v := v.(type) {
	case int64:
		return v, true
	case string:
		return ParseBytes(v)
	}
	return 0, false
}

var byteUnits = []struct {
	suffix string
	factor float64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30}, {"Ti", 1 << 40},
	// Powers of 1024, as memory is sold.
	{"KB", 1 << 10}, {"MB", 1 << 20}, {"GB", 1 << 30}, {"TB", 1 << 40},
	{"K", 1 << 10}, {"M", 1 << 20}, {"G", 1 << 30}, {"T", 1 << 40},
	{"B", 1}, {"", 1},
}

// ParseBytes reads an amount like "512MB", "1.5GiB" or "1073741824". Units are
// powers of 1024, whatever they are called.
func ParseBytes(s string) (int64, bool) {
	s = strings.TrimSpace(s)
	for _, u := range byteUnits {
		if len(s) <= len(u.suffix) || !strings.EqualFold(s[len(s)-len(u.suffix):], u.suffix) {
			continue
		}
		f, err := strconv.ParseFloat(strings.TrimSpace(s[:len(s)-len(u.suffix)]), 64)
		if err != nil || f < 0 || math.IsNaN(f) || f*u.factor > math.MaxInt64/2 {
			return 0, false
		}
		return int64(f * u.factor), true
	}
	return 0, false
}

func (p *parser) env(to *map[string]string) field {
	return field{variables(), func(key string, v any) {
		m, ok := v.(map[string]any)
		if !ok {
			p.fail(key, "%s must be a table, not %s", key, typeName(v))
			return
		}
		out := map[string]string{}
		for k, v := range m {
			at := key + "." + k
			if !envName.MatchString(k) {
				p.fail(at, "%q cannot be the name of a variable", k)
				continue
			}
			switch v := v.(type) {
			case string:
				out[k] = v
			case int64, float64, bool:
				out[k] = fmt.Sprint(v)
			default:
				p.fail(at, "%s must be a string, not %s", at, typeName(v))
			}
		}
		*to = out
	}}
}
