package appconfig

import (
	"errors"
	"io/fs"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/jsonschema-go/jsonschema"

	"miren.dev/runtime/pkg/errs"
)

// Route is a host and path that lead to a service. What is nil or empty is not said.
type Route struct {
	Host, Path string // Path begins with /
	Service    string
	Timeout    *time.Duration
	MaxBody    *int64 // bytes
	Allow      []string
	Rate       *int64
	Burst      *int64
	Compress   *bool
	Sticky     *bool
	// ErrorPages are HTML by status or "default". Parse leaves the path of the file,
	// Load reads it.
	ErrorPages map[string]string
}

// Bounds of a route's settings. The server checks them too.
const (
	minRouteTimeout = time.Second
	maxRouteTimeout = 24 * time.Hour
	maxRouteBody    = 1 << 40
	maxRouteRate    = 1_000_000
	maxErrorPage    = 16 << 10 // bytes
)

// routePattern is HOST or HOST/PATH.
const routePattern = `^(\*|(\*\.)?[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*)(/[^ ?#]*)?$`

var (
	routeName  = regexp.MustCompile(routePattern)
	pageStatus = regexp.MustCompile(`^([45][0-9][0-9]|default)$`)
)

// route returns the keys of a route.
func (p *parser) route(r *Route) table {
	return table{
		"service":     p.text(&r.Service),
		"timeout":     p.duration(&r.Timeout, minRouteTimeout, maxRouteTimeout),
		"max_body":    p.bytes(&r.MaxBody, 1, maxRouteBody),
		"allow":       p.list(&r.Allow, nil),
		"rate":        p.integer(&r.Rate, 1, maxRouteRate),
		"burst":       p.integer(&r.Burst, 1, maxRouteRate),
		"compress":    p.flag(&r.Compress),
		"sticky":      p.flag(&r.Sticky),
		"error_pages": p.files(&r.ErrorPages, pageStatus),
	}
}

func (p *parser) setRoute(key, name string, v any) Route {
	var r Route
	if !routeName.MatchString(name) {
		p.fail(key, "route %q is no host name in lower case, with or without a path: [routes.\"shop.example.com/api\"]", name)
	}
	host, path, _ := strings.Cut(name, "/")
	r.Host, r.Path = host, "/"+path
	p.table(p.route(&r)).set(key, v)
	if r.Burst != nil && r.Rate == nil {
		p.fail(key+".burst", "%s has burst, but no rate", key)
	}
	return r
}

// bytes reads a number of bytes, or a text such as "10MiB".
func (p *parser) bytes(to **int64, low, high int64) field {
	return field{amount(float64(low)), func(key string, v any) {
		n, ok := v.(int64)
		if s, text := v.(string); text {
			n, ok = ParseBytes(s)
		}
		if !ok || n < low || n > high {
			p.fail(key, "%s must be a size such as \"10MiB\", from %d to %d bytes", key, low, high)
			return
		}
		*to = &n
	}}
}

// flag reads true. A setting that is off is left away.
func (p *parser) flag(to **bool) field {
	return field{&jsonschema.Schema{Type: "boolean"}, func(key string, v any) {
		b, ok := v.(bool)
		if !ok {
			p.fail(key, "%s must be true or false", key)
			return
		}
		*to = &b
	}}
}

// files reads a table of paths of files.
func (p *parser) files(to *map[string]string, names *regexp.Regexp) field {
	return field{named(names.String(), &jsonschema.Schema{Type: "string"}), func(key string, v any) {
		m, ok := v.(map[string]any)
		if !ok {
			p.fail(key, "%s must be a table of files", key)
			return
		}
		out := map[string]string{}
		for name, v := range m {
			file, ok := v.(string)
			clean, inside := cleanPath(file)
			switch {
			case !names.MatchString(name):
				p.fail(key+"."+name, "%s.%s: the name must be a status from 400 to 599, or default", key, name)
			case !ok || file == "" || !inside:
				p.fail(key+"."+name, "%s.%s must be the path of a file of the source", key, name)
			default:
				out[name] = clean
			}
		}
		*to = out
	}}
}

// readPages puts the text of error pages in the place of their paths.
func (c *Config) readPages(fsys fs.FS) error {
	for _, r := range c.Routes {
		for status, file := range r.ErrorPages {
			text, err := read(fsys, file)
			at := c.File + `: routes."` + r.Host + r.Path + `".error_pages.` + status
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return errs.New(errs.InvalidArgument, "%s: there is no file %s in the source", at, file)
			case err != nil:
				return err
			case text == "" || len(text) > maxErrorPage || !utf8.ValidString(text):
				return errs.New(errs.InvalidArgument, "%s: %s is empty, has more than %d bytes, or is not UTF-8", at, file, maxErrorPage)
			}
			r.ErrorPages[status] = text
		}
	}
	return nil
}
