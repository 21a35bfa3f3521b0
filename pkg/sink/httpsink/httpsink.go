// Package httpsink sends requests to the system that the URL of a sink names.
package httpsink

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/headersfile"
	"miren.dev/runtime/pkg/retryafter"
	"miren.dev/runtime/pkg/sink"
	"miren.dev/runtime/pkg/sink/target"
)

// SendTime bounds how long a request may take.
const SendTime = 30 * time.Second

// maxAnswer is how much of an answer is read, in bytes.
const maxAnswer = 64 << 10

// Client sends requests with the headers of a target. It is safe for concurrent use.
type Client struct {
	client  *http.Client
	headers map[string]string
	again   func(status int) bool
}

// AgainOTLP reports whether OTLP allows to send a request again after an answer with a status.
func AgainOTLP(status int) bool {
	switch status {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// TLS returns the settings of connections to a target. InvalidArgument: its ca_file
// cannot be used.
func TLS(p *target.Target) (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if p.CAFile == "" {
		return cfg, nil
	}
	pem, err := os.ReadFile(p.CAFile)
	if err != nil {
		return nil, errs.New(errs.InvalidArgument, "ca_file: %w", err)
	}
	cfg.RootCAs = x509.NewCertPool()
	if !cfg.RootCAs.AppendCertsFromPEM(pem) {
		return nil, errs.New(errs.InvalidArgument, "ca_file: %s has no certificate", p.CAFile)
	}
	return cfg, nil
}

// New returns a client for a target. again reports whether a request is sent again after an answer with a status other
// than 2xx. InvalidArgument: one of the target's files cannot be used.
func New(p *target.Target, again func(status int) bool) (*Client, error) {
	headers, err := headersfile.Read(p.HeadersFile)
	if err != nil {
		return nil, errs.New(errs.InvalidArgument, "headers_file: %w", err)
	}
	cfg, err := TLS(p)
	if err != nil {
		return nil, err
	}
	return &Client{headers: headers, again: again, client: &http.Client{
		Transport: &http.Transport{TLSClientConfig: cfg, Proxy: http.ProxyFromEnvironment, IdleConnTimeout: time.Minute}, Timeout: SendTime,
	}}, nil
}

// Close closes the connections.
func (c *Client) Close() { c.client.CloseIdleConnections() }

// PostGzip compresses a body and sends it as Post does.
func (c *Client) PostGzip(ctx context.Context, url, contentType string, body []byte) ([]byte, error) {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write(body); err != nil {
		return nil, errs.New(errs.Internal, "compress: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, errs.New(errs.Internal, "compress: %w", err)
	}
	return c.Post(ctx, url, map[string]string{"Content-Type": contentType, "Content-Encoding": "gzip"}, packed.Bytes())
}

// Post sends a body and returns the beginning of the answer. The error is
// InvalidArgument if the server refuses this body, and Unavailable if it may accept it
// later, a *sink.Later if the server says when.
func (c *Client) Post(ctx context.Context, url string, header map[string]string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, errs.New(errs.InvalidArgument, "request: %w", err)
	}
	for name, value := range c.headers {
		req.Header.Set(name, value)
	}
	for name, value := range header {
		req.Header.Set(name, value)
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return nil, errs.New(errs.Unavailable, "%w", err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if resp.StatusCode >= 200 && resp.StatusCode <= 299 {
		if err != nil {
			return nil, errs.New(errs.Unavailable, "read the answer: %w", err)
		}
		return answer, nil
	}
	text := strings.ToValidUTF8(string(answer[:min(len(answer), 300)]), "?")
	class := errs.InvalidArgument
	if c.again(resp.StatusCode) {
		class = errs.Unavailable
	}
	failed := errs.New(class, "the server answered %s: %s", resp.Status, strings.TrimSpace(text))
	if after := retryafter.Parse(resp.Header.Get("Retry-After"), time.Now(), sink.MaxRetryAfter); after > 0 && class == errs.Unavailable {
		return nil, &sink.Later{Err: failed, After: after}
	}
	return nil, failed
}
