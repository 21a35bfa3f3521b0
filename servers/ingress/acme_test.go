package ingress

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"encoding/asn1"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"miren.dev/runtime/api/certificate"
	"miren.dev/runtime/entity/informer"
)

// TestIngressAnswersChallenges of hosts for which a certificate is ordered, and
// nothing else: not by HTTP to HTTPS, and not to other clients.
func TestIngressAnswersChallenges(t *testing.T) {
	s := startSecure(t, Config{})
	o := certificate.NewCertificateOrder()
	o.ID = "cord-1"
	o.Status.Challenges = []certificate.Challenge{
		{Type: "http-01", Host: "a.example.com", Token: "token", Answer: "token.thumb"},
		{Type: "tls-alpn-01", Host: "b.example.com", Token: "other", Answer: "other.thumb"},
	}
	s.challenges.changed(informer.Change[*certificate.CertificateOrder]{New: o})

	get := func(host, path string) string {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(resp.StatusCode, " ", string(b))
	}
	if got := get("a.example.com:80", acmePath+"token"); got != "200 token.thumb" {
		t.Error(got)
	}
	for _, c := range [][2]string{{"b.example.com", "token"}, {"a.example.com", "none"}, {"a.example.com", ""}, {"b.example.com", "other"}} {
		if got := get(c[0], acmePath+c[1]); !strings.HasPrefix(got, "200 http "+c[0]) { // the app's answer
			t.Errorf("%v: %s", c, got)
		}
	}

	hello := func(host string, protocols ...string) (tls.ConnectionState, error) {
		c, err := tls.Dial("tcp", s.secure[0].Addr().String(), &tls.Config{ServerName: host, NextProtos: protocols, InsecureSkipVerify: true})
		if err != nil {
			return tls.ConnectionState{}, err
		}
		defer c.Close()
		return c.ConnectionState(), nil
	}
	st, err := hello("b.example.com", acmeProtocol)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte("other.thumb"))
	want, err := asn1.Marshal(sum[:])
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, x := range st.PeerCertificates[0].Extensions {
		found = found || x.Critical && x.Id.Equal(acmeIdentifier) && bytes.Equal(x.Value, want)
	}
	if names := st.PeerCertificates[0].DNSNames; !found || st.NegotiatedProtocol != acmeProtocol || len(names) != 1 || names[0] != "b.example.com" {
		t.Errorf("%q for %q", st.NegotiatedProtocol, names)
	}
	for _, c := range [][]string{{"a.example.com", acmeProtocol}, {"b.example.com", "h2", acmeProtocol}, {"b.example.com", "h2"}} {
		if st, err := hello(c[0], c[1:]...); err == nil {
			t.Errorf("%v: a handshake with a certificate for %q", c, st.PeerCertificates[0].DNSNames)
		}
	}
	s.challenges.changed(informer.Change[*certificate.CertificateOrder]{Old: o})
	if _, err := hello("b.example.com", acmeProtocol); err == nil {
		t.Error("the challenge is answered after its order has ended")
	}
}
