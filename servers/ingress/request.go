package ingress

import (
	"crypto/rand"
	"encoding/hex"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// hop lists the headers that concern one hop; they are not passed on.
func hop(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization",
		"Te", "Trailer", "Transfer-Encoding", "Upgrade", "Http2-Settings":
		return true
	}
	return false
}

// claimed lists the headers that say where a request came from. The ingress
// sets them itself and drops a client's, unless the client is a trusted proxy.
func claimed(name string) bool {
	if len(name) < 7 {
		return false
	}
	switch name[0] {
	case 'F', 'f', 'X', 'x':
	default:
		return false
	}
	if strings.IndexByte(name, '_') >= 0 {
		// Servers that make variables of headers confuse X_Forwarded_For with
		// X-Forwarded-For.
		name = strings.ReplaceAll(name, "_", "-")
	}
	return strings.EqualFold(name, "Forwarded") || strings.EqualFold(name, "X-Real-Ip") ||
		len(name) > 12 && strings.EqualFold(name[:12], "X-Forwarded-")
}

// wellFormed reports whether the sandbox reads in the head what the ingress has judged. net/http
// checks that of HTTP/1.1, but lets spaces and a second host through in one of HTTP/2, and fragments
// and URLs without a path (http:http://host/admin) in every one.
func wellFormed(r *http.Request) bool {
	for _, h := range r.Header["Host"] {
		if !strings.EqualFold(h, r.Host) {
			return false
		}
	}
	return httpguts.ValidHeaderFieldName(r.Method) && httpguts.ValidHostHeader(r.Host) && r.URL.Opaque == "" && !strings.ContainsAny(r.RequestURI, " #")
}

// outgoing is a request in the form in which it is sent to a sandbox.
type outgoing struct {
	r         *http.Request
	requestID string
	upgrade   string   // protocol that the client asks for
	signedIn  bool     // the Authorization header was for the ingress
	login     *session // who logged in; nil: the route demands no login
	expect    bool     // the client waits for 100 Continue
	length    int64    // length of the body in bytes; -1: chunked
}

// prepare collects the facts that the head is made from.
func prepare(r *http.Request) outgoing {
	o := outgoing{r: r, length: r.ContentLength}
	if r.Body == nil || r.Body == http.NoBody {
		o.length = 0
	}
	if up := r.Header["Upgrade"]; len(up) > 0 && o.length == 0 && httpguts.HeaderValuesContainsToken(r.Header["Connection"], "upgrade") &&
		!strings.EqualFold(up[0], "h2c") && httpguts.ValidHeaderFieldValue(up[0]) {
		o.upgrade = up[0]
	}
	if e := r.Header["Expect"]; len(e) > 0 && o.length != 0 {
		o.expect = strings.EqualFold(e[0], "100-continue")
	}
	if ids := r.Header["X-Request-Id"]; len(ids) == 1 && validRequestID(ids[0]) {
		o.requestID = ids[0]
	} else {
		o.requestID = newRequestID()
	}
	return o
}

// ownCookies are for the ingress alone: with them an app could pass the login or the
// preview of another that has a path of the same host.
var ownCookies = []string{previewCookie, sessionCookie, loginCookie}

// appCookies returns a line of cookies without those of the ingress, and with every other
// as it came.
func appCookies(line string) string {
	if !strings.Contains(line, "runtime_") {
		return line
	}
	var keep []string
	for part := range strings.SplitSeq(line, ";") {
		name, _, _ := strings.Cut(part, "=")
		if !slices.Contains(ownCookies, strings.TrimSpace(name)) {
			keep = append(keep, strings.TrimSpace(part))
		}
	}
	return strings.Join(keep, "; ")
}

func newRequestID() string {
	var b [12]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

func validRequestID(s string) bool {
	if len(s) == 0 || len(s) > 128 {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("-_.:+/=", c) >= 0:
		default:
			return false
		}
	}
	return true
}

// appendHead renders the head. trusted says that the peer is a proxy whose
// forwarding headers are believed.
func (o *outgoing) appendHead(b []byte, trusted bool) []byte {
	r := o.r
	b = append(b, r.Method...)
	b = append(b, ' ')
	if r.URL.Host == "" && strings.HasPrefix(r.RequestURI, "/") {
		b = append(b, r.RequestURI...) // exactly as it came
	} else {
		b = append(b, r.URL.RequestURI()...)
	}
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, r.Host...)
	b = append(b, "\r\n"...)

	var named []string
	for _, v := range r.Header["Connection"] {
		for _, token := range splitTokens(v) {
			if !strings.EqualFold(token, "keep-alive") && !strings.EqualFold(token, "close") {
				named = append(named, http.CanonicalHeaderKey(token))
			}
		}
	}
	for name, values := range r.Header {
		if hop(name) || name == "Host" || name == "X-Request-Id" || name == "Content-Length" || claimed(name) || name == "Expect" && !o.expect || name == "Authorization" && o.signedIn || o.login != nil && loginHeader(name) {
			continue
		}
		if named != nil && contains(named, name) {
			continue
		}
		for _, v := range values {
			if name == "Cookie" {
				if v = appCookies(v); v == "" {
					continue
				}
			}
			b = appendField(b, name, v)
		}
	}
	if r.Header["Te"] != nil && httpguts.HeaderValuesContainsToken(r.Header["Te"], "trailers") {
		b = append(b, "Te: trailers\r\n"...)
	}
	switch {
	case o.length > 0, o.length == 0 && r.Header["Content-Length"] != nil,
		o.length == 0 && (r.Method == http.MethodPost || r.Method == http.MethodPut || r.Method == http.MethodPatch):
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, o.length, 10)
		b = append(b, "\r\n"...)
	case o.length < 0:
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
		for name := range r.Trailer {
			if httpguts.ValidTrailerHeader(name) {
				b = appendField(b, "Trailer", name)
			}
		}
	}
	if o.upgrade != "" {
		b = append(b, "Connection: Upgrade\r\n"...)
		b = appendField(b, "Upgrade", o.upgrade)
	}
	b = appendField(b, "X-Request-Id", o.requestID)
	if o.login != nil {
		b = appendField(b, "X-Auth-Request-User", o.login.User)
		b = appendField(b, "X-Auth-Request-Email", o.login.Email)
	}
	b = appendForwarded(b, r, trusted)
	return append(b, "\r\n"...)
}

// appendForwarded adds the client, the host and the scheme of the request.
func appendForwarded(b []byte, r *http.Request, trusted bool) []byte {
	client, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		client = r.RemoteAddr
	}
	proto := "http"
	if r.TLS != nil {
		proto = "https"
	}
	host, real := r.Host, client
	chain := client
	var forwarded string
	if trusted {
		if v := r.Header["X-Forwarded-For"]; len(v) > 0 {
			chain = strings.Join(v, ", ") + ", " + client
		}
		if v := r.Header["X-Real-Ip"]; len(v) == 1 {
			real = v[0]
		}
		if v := r.Header["X-Forwarded-Proto"]; len(v) == 1 {
			proto = v[0]
		}
		if v := r.Header["X-Forwarded-Host"]; len(v) == 1 {
			host = v[0]
		}
		if v := r.Header["Forwarded"]; len(v) > 0 {
			forwarded = strings.Join(v, ", ") + ", "
		}
	}
	b = appendField(b, "X-Forwarded-For", chain)
	b = appendField(b, "X-Forwarded-Proto", proto)
	b = appendField(b, "X-Forwarded-Host", host)
	b = appendField(b, "X-Real-Ip", real)
	b = append(b, "Forwarded: "...)
	b = append(b, forwarded...)
	b = append(b, "for="...)
	if strings.IndexByte(client, ':') >= 0 {
		b = append(b, `"[`...)
		b = append(b, client...)
		b = append(b, `]"`...)
	} else {
		b = append(b, client...)
	}
	b = append(b, `;host="`...)
	b = append(b, unquoted.Replace(host)...)
	b = append(b, `";proto=`...)
	b = append(b, proto...)
	return append(b, "\r\n"...)
}

// unquoted removes the characters that would end a quoted string.
var unquoted = strings.NewReplacer(`"`, "", `\`, "")

func appendField(b []byte, name, value string) []byte {
	b = append(b, name...)
	b = append(b, ": "...)
	b = append(b, value...)
	return append(b, "\r\n"...)
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// idempotent requests may be sent again when a reused connection broke before
// the answer began.
func idempotent(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	return r.Header["Idempotency-Key"] != nil || r.Header["X-Idempotency-Key"] != nil
}

// isTrusted reports whether the peer at addr is one of the trusted proxies.
func isTrusted(prefixes []netip.Prefix, addr string) bool {
	if len(prefixes) == 0 {
		return false
	}
	ap, err := netip.ParseAddrPort(addr)
	if err != nil {
		return false
	}
	return inNetworks(prefixes, ap.Addr())
}

func inNetworks(networks []netip.Prefix, ip netip.Addr) bool {
	ip = ip.Unmap()
	for _, n := range networks {
		if n.Contains(ip) {
			return true
		}
	}
	return false
}
