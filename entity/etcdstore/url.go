package etcdstore

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"miren.dev/runtime/pkg/errs"
)

// Scheme begins the URL of a store:
// etcd://HOST:PORT[,HOST:PORT...]/PREFIX[?PARAMETERS].
const Scheme = "etcd://"

// Limits are those of the cluster, as its members were started.
type Limits struct {
	Ops          int // --max-txn-ops
	RequestBytes int // --max-request-bytes
}

// defaultLimits are those of etcd.
var defaultLimits = Limits{Ops: 128, RequestBytes: 3 << 19}

const limitHint = "etcd's limits are --max-txn-ops and --max-request-bytes; the store URL has to say other ones (max_txn_ops, max_request_bytes)"

// recordBytes is how large an entity may be: it is written once, and twice to the
// log, with its previous state.
func (l Limits) recordBytes() int { return (l.RequestBytes - requestSlack) / 3 }

// requestSlack is what the keys and indexed values around an entity may need.
const requestSlack = 96 << 10

// Target is what a URL names.
type Target struct {
	Endpoints          []string
	Prefix             string // of every key; ends with a slash
	Username, Password string
	TLS                *tls.Config // nil: none
	Limits             Limits
}

// ParseURL parses a store URL and reads the files that it names. Parameters:
//
//   - cacert: file with the CAs of the servers; tls=true: those of the system
//   - cert, key: files with our certificate and its key
//   - username, password_file: of etcd's authentication
//   - max_txn_ops, max_request_bytes: the limits of the cluster, if they are not
//     the default
//
// Errors: InvalidArgument.
func ParseURL(text string) (Target, error) {
	t, err := parseURL(text)
	if err != nil {
		return t, errs.New(errs.InvalidArgument, "store URL: %w", err).
			WithHint("such as etcd://10.0.0.1:2379,10.0.0.2:2379/runtime?cacert=/etc/runtime/etcd-ca.pem")
	}
	return t, nil
}

func parseURL(text string) (Target, error) {
	t := Target{Limits: defaultLimits}
	rest, ok := strings.CutPrefix(text, Scheme)
	if !ok {
		return t, errs.New(errs.InvalidArgument, "it does not begin with %s", Scheme)
	}
	rest, query, _ := strings.Cut(rest, "?")
	hosts, prefix, _ := strings.Cut(rest, "/")
	prefix = strings.Trim(prefix, "/")
	if prefix == "" {
		return t, errs.New(errs.InvalidArgument, "no prefix of the keys follows the hosts")
	}
	t.Prefix = "/" + prefix + "/"
	params, err := url.ParseQuery(query)
	if err != nil {
		return t, err
	}
	known := []string{"tls", "cacert", "cert", "key", "username", "password_file", "max_txn_ops", "max_request_bytes"}
	for name, values := range params {
		if !slices.Contains(known, name) || len(values) > 1 {
			return t, errs.New(errs.InvalidArgument, "parameter %q is unknown or set twice; parameters are %s", name, strings.Join(known, ", "))
		}
	}
	for _, limit := range []struct {
		name  string
		least int
		value *int
	}{{"max_txn_ops", 16, &t.Limits.Ops}, {"max_request_bytes", 512 << 10, &t.Limits.RequestBytes}} {
		if v := params.Get(limit.name); v != "" {
			if *limit.value, err = strconv.Atoi(v); err != nil || *limit.value < limit.least || *limit.value > 1<<30 {
				return t, errs.New(errs.InvalidArgument, "%s=%s is not a number from %d on", limit.name, v, limit.least)
			}
		}
	}
	t.Username = params.Get("username")
	if file := params.Get("password_file"); file != "" {
		b, err := os.ReadFile(file)
		if err != nil {
			return t, err
		}
		t.Password = strings.TrimRight(string(b), "\r\n")
	}
	scheme := "http://"
	if t.TLS, err = tlsConfig(params); t.TLS != nil {
		scheme = "https://"
	}
	for host := range strings.SplitSeq(hosts, ",") {
		if _, port, err := net.SplitHostPort(host); err != nil || port == "" {
			return t, errs.New(errs.InvalidArgument, "%q is not host:port", host)
		}
		t.Endpoints = append(t.Endpoints, scheme+host)
	}
	return t, err
}

func tlsConfig(params url.Values) (*tls.Config, error) {
	ca, cert, key := params.Get("cacert"), params.Get("cert"), params.Get("key")
	switch on := params.Get("tls"); {
	case on != "" && on != "true" && on != "false", on == "false" && ca+cert+key != "", (cert == "") != (key == ""):
		return nil, errs.New(errs.InvalidArgument, "tls is true or false, and cert and key belong together")
	case on != "true" && ca+cert == "":
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		b, err := os.ReadFile(ca)
		if err != nil {
			return nil, err
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(b) {
			return nil, errs.New(errs.InvalidArgument, "%s has no certificate", ca)
		}
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, err
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}
