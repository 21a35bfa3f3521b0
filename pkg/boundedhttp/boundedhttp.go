// Package boundedhttp has a transport for servers that are not trusted to end their answers.
package boundedhttp

import "net/http"

// Transport returns a transport that does what rt does, and fails the read of an answer beyond
// max bytes.
func Transport(rt http.RoundTripper, max int64) http.RoundTripper { return transport{rt, max} }

type transport struct {
	http.RoundTripper
	max int64
}

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.RoundTripper.RoundTrip(r)
	if err == nil {
		resp.Body = http.MaxBytesReader(nil, resp.Body, t.max)
	}
	return resp, err
}
