package logsink

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"

	"github.com/klauspost/compress/gzip"

	"miren.dev/runtime/pkg/errs"
)

// maxAnswer is how much of an answer is read, in bytes.
const maxAnswer = 64 << 10

// post sends a compressed body. The error is InvalidArgument if the server refuses this
// body, and Unavailable if it may take it later.
func post(ctx context.Context, c *http.Client, url, contentType string, headers map[string]string, body []byte) ([]byte, error) {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write(body); err != nil {
		return nil, errs.New(errs.Internal, "compress: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, errs.New(errs.Internal, "compress: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, &packed)
	if err != nil {
		return nil, errs.New(errs.InvalidArgument, "request: %w", err)
	}
	for name, value := range headers {
		req.Header.Set(name, value)
	}
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("Content-Encoding", "gzip")
	resp, err := c.Do(req)
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
	class := errs.Unavailable
	switch resp.StatusCode {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		class = errs.InvalidArgument
	}
	return nil, errs.New(class, "the server answered %s: %s", resp.Status, strings.TrimSpace(text))
}
