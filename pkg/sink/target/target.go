// Package target reads the URLs by which a configuration names the sinks of logs and of metrics.
package target

import (
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"strings"

	"miren.dev/runtime/pkg/errs"
)

// Target is what the URL of a sink says.
type Target struct {
	Kind        string // otlp, syslog, clickhouse; of metrics otlp, prometheus
	Transport   string // http, https; of syslog udp, tcp, tls
	URL         string // of HTTP requests
	Address     string // of syslog: host:port
	Table       string // of ClickHouse: DATABASE.TABLE
	HeadersFile string // headers of HTTP requests; "": none
	CAFile      string // certificates of authorities, in PEM; "": those of the machine
}

// Check returns what is wrong with the URL of a sink of logs.
func Check(raw string) error {
	_, err := Parse(raw)
	return err
}

// CheckMetrics returns what is wrong with the URL of a sink of metrics.
func CheckMetrics(raw string) error {
	_, err := ParseMetrics(raw)
	return err
}

// ParseMetrics reads the URL of a sink of metrics.
func ParseMetrics(raw string) (*Target, error) {
	p, u, err := read(raw)
	if err != nil {
		return nil, err
	}
	paths := map[string]string{"otlp": "/v1/metrics", "prometheus": "/api/v1/write"}
	if paths[p.Kind] == "" || p.Transport != "http" && p.Transport != "https" {
		return nil, errs.New(errs.InvalidArgument, "%q is neither otlp+http(s) nor prometheus+http(s)", raw)
	}
	dest := url.URL{Scheme: p.Transport, Host: u.Host, Path: u.Path}
	if strings.Trim(dest.Path, "/") == "" {
		dest.Path = paths[p.Kind]
	}
	p.URL = dest.String()
	return p, nil
}

// read reads what the URLs of all kinds have: the kind, the transport, the parameters.
func read(raw string) (*Target, *url.URL, error) {
	fail := func(format string, args ...any) (*Target, *url.URL, error) {
		return nil, nil, errs.New(errs.InvalidArgument, format, args...)
	}
	u, err := url.Parse(raw)
	if err != nil {
		return fail("%q is no URL", raw)
	}
	p := &Target{}
	p.Kind, p.Transport, _ = strings.Cut(u.Scheme, "+")
	switch {
	case u.Host == "":
		return fail("%q names no server", raw)
	case u.User != nil:
		return fail("%q has a password, which a file of headers_file should have", u.Redacted())
	}
	for key, values := range u.Query() {
		switch {
		case key == "headers_file" && p.Kind != "syslog":
			p.HeadersFile = values[0]
		case key == "ca_file":
			p.CAFile = values[0]
		default:
			return fail("%q has the unknown parameter %q", raw, key)
		}
	}
	return p, u, nil
}

// Name names a sink in metrics, messages and its record: by its kind and server, and a
// digest of the whole URL without the query.
func Name(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return raw
	}
	sum := sha256.Sum256([]byte(u.Scheme + "://" + u.Host + u.Path))
	kind, _, _ := strings.Cut(u.Scheme, "+")
	return kind + "-" + strings.NewReplacer(":", "-", "[", "", "]", "").Replace(u.Host) + "-" + hex.EncodeToString(sum[:3])
}

var ports = map[string]string{"udp": "514", "tcp": "601", "tls": "6514"}

// Parse reads the URL of a sink of logs.
func Parse(raw string) (*Target, error) {
	fail := func(format string, args ...any) (*Target, error) {
		return nil, errs.New(errs.InvalidArgument, format, args...)
	}
	p, u, err := read(raw)
	switch {
	case err != nil:
		return nil, err
	case (p.Kind == "otlp" || p.Kind == "clickhouse") && (p.Transport == "http" || p.Transport == "https"):
	case p.Kind == "syslog" && ports[p.Transport] != "":
	default:
		return fail("%q is neither otlp+http(s), syslog+udp, syslog+tcp, syslog+tls nor clickhouse+http(s)", raw)
	}
	dest := url.URL{Scheme: p.Transport, Host: u.Host, Path: u.Path}
	switch p.Kind {
	case "otlp":
		if strings.Trim(dest.Path, "/") == "" {
			dest.Path = "/v1/logs"
		}
	case "clickhouse":
		db, table, ok := strings.Cut(strings.Trim(u.Path, "/"), "/")
		if !ok || !isName(db) || !isName(table) {
			return fail("%q does not end with the names of a database and a table (/DATABASE/TABLE)", raw)
		}
		p.Table, dest.Path = db+"."+table, "/"
	case "syslog":
		if strings.Trim(u.Path, "/") != "" {
			return fail("%q has a path", raw)
		}
		p.Address = u.Host
		if u.Port() == "" {
			p.Address = u.Host + ":" + ports[p.Transport]
		}
	}
	p.URL = dest.String()
	return p, nil
}

// isName reports whether a name of ClickHouse needs no quotes.
func isName(s string) bool {
	return s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == "" && (s[0] < '0' || s[0] > '9')
}
