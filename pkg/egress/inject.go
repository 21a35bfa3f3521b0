package egress

import (
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"miren.dev/runtime/pkg/errs"
)

// Ports that a domain stands for.
const (
	PortHTTP  = 80
	PortHTTPS = 443
)

// Injection has the proxy put a secret into a header of each request to a host.
// The sandbox never has the value, and neither has the policy.
type Injection struct {
	Host   Rule   `json:"host"`   // a domain, or the names below one
	Secret string `json:"secret"` // reference that the proxy reads the value by
	Header string `json:"header"` // in canonical form; replaces the header that the sandbox sent
	Format string `json:"format"` // value of the header, with Placeholder for that of the secret
	// Plain: requests by plain HTTP (port 80) get the secret too, which is readable
	// on the way to the host.
	Plain bool `json:"plain,omitempty"`
}

// Placeholder stands for the value of a secret in Injection.Format.
const Placeholder = "{}"

// Defaults of an Injection.
const (
	DefaultHeader = "Authorization"
	DefaultFormat = "Bearer " + Placeholder
)

// MaxInjections bounds Policy.Inject.
const MaxInjections = 100

// maxFormat bounds the format of an Injection, in bytes.
const maxFormat = 1024

// reserved are the headers of which HTTP itself is made, in lower case.
var reserved = []string{
	"host", "connection", "content-length", "content-encoding", "transfer-encoding", "te", "trailer", "upgrade", "keep-alive",
	"proxy-connection", "expect",
}

func (i Injection) validate() error {
	bad := func(hint, format string, args ...any) error {
		return errs.New(errs.InvalidArgument, "secret for "+i.Host.String()+": "+format, args...).WithHint("%s", hint)
	}
	switch {
	case i.Host.domain == "":
		return bad("name a host like api.example.com; the certificate of a host is for its name", "%q is not a domain", i.Host.String())
	case i.Secret == "":
		return bad("name a secret of the project", "no secret is named")
	case !httpguts.ValidHeaderFieldName(i.Header):
		return bad("write the header like 'Authorization: Bearer {}'", "%q is not the name of a header", i.Header)
	case slices.Contains(reserved, strings.ToLower(i.Header)):
		return bad("use another header", "the header %s is part of how requests are sent", i.Header)
	case strings.Count(i.Format, Placeholder) != 1:
		return bad("write the header like 'Authorization: Bearer {}'", "the value of the header has %s %d times, not once", Placeholder, strings.Count(i.Format, Placeholder))
	case len(i.Format) > maxFormat || !httpguts.ValidHeaderFieldValue(i.Format):
		return bad("write the header like 'Authorization: Bearer {}'", "the value of the header %s is not one of at most %d bytes without control characters", i.Header, maxFormat)
	}
	return nil
}

func (p Policy) validateInjections() error {
	seen := map[[2]string]bool{}
	for _, i := range p.Inject {
		if err := i.validate(); err != nil {
			return err
		}
		key := [2]string{i.Host.String(), strings.ToLower(i.Header)}
		if seen[key] {
			return errs.New(errs.InvalidArgument, "two secrets are injected into the header %s for %s", i.Header, i.Host).
				WithHint("one header has one secret: name another header with one of them")
		}
		seen[key] = true
	}
	return nil
}

// Injections returns the secrets for a request to a name at a TCP port, those for
// the names below a domain first, so that a rule for the name itself replaces
// their headers.
func (p Policy) Injections(name string, port uint16) []Injection {
	name = Canonical(name)
	var below, exact []Injection
	for _, i := range p.Inject {
		switch {
		case name == "" || !i.Host.matches(name), port != PortHTTPS && !(port == PortHTTP && i.Plain):
		case i.Host.below:
			below = append(below, i)
		default:
			exact = append(exact, i)
		}
	}
	return append(below, exact...)
}

// Terminates reports whether the proxy must end the TLS of a connection to a name
// at a TCP port, to add a secret to the requests in it.
func (p Policy) Terminates(name string, port uint16) bool {
	return port == PortHTTPS && len(p.Injections(name, port)) > 0
}

// Value returns the header's value for the value of the secret. InvalidArgument,
// without the value, if no header can have it.
func (i Injection) Value(secret string) (string, error) {
	if secret == "" || !httpguts.ValidHeaderFieldValue(secret) {
		return "", errs.New(errs.InvalidArgument, "the secret is empty or has characters that no header can have, such as the end of a line").
			WithHint("set it again without them")
	}
	return strings.Replace(i.Format, Placeholder, secret, 1), nil
}
