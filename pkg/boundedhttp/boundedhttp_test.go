package boundedhttp

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestAnswersEnd(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 100)) }))
	t.Cleanup(srv.Close)
	for max, fails := range map[int64]bool{100: false, 99: true} {
		c := &http.Client{Transport: Transport(http.DefaultTransport, max)}
		resp, err := c.Get(srv.URL)
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.ReadAll(resp.Body)
		resp.Body.Close()
		if (err != nil) != fails {
			t.Errorf("at most %d bytes of 100: %v", max, err)
		}
	}
}
