package ingress

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/textproto"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// maxResponseHead bounds the head of a sandbox's answer, in bytes.
const maxResponseHead = 256 << 10

var errHeadTooLarge = errors.New("response header is larger than 256 KiB")

// response is the parsed head of a sandbox's answer.
type response struct {
	status    int
	length    int64 // length of the body in bytes; -1: unknown
	chunked   bool
	keepAlive bool
	upgrade   string   // protocol token of an Upgrade header
	trailers  []string // trailers that the head announces, in canonical form
	connNames []string // headers that Connection names
	body      io.Reader
}

// readHead reads the head of an answer, including the empty line that ends it.
func readHead(br *bufio.Reader) (string, error) {
	if _, err := br.Peek(1); err != nil {
		return "", err
	}
	buf, _ := br.Peek(br.Buffered())
	if n := headEnd(buf); n > 0 {
		s := string(buf[:n])
		_, err := br.Discard(n)
		return s, err
	}
	var head []byte
	for {
		line, err := br.ReadSlice('\n')
		head = append(head, line...)
		if len(head) > maxResponseHead {
			return "", errHeadTooLarge
		}
		switch {
		case err == bufio.ErrBufferFull:
		case err == io.EOF:
			return "", io.ErrUnexpectedEOF
		case err != nil:
			return "", err
		case bytes.HasSuffix(head, []byte("\n\n")), bytes.HasSuffix(head, []byte("\n\r\n")):
			return string(head), nil
		}
	}
}

// headEnd returns the length of the header at the start of b, or 0.
func headEnd(b []byte) int {
	for pos := 0; ; {
		i := bytes.IndexByte(b[pos:], '\n')
		if i < 0 {
			return 0
		}
		if line := b[pos : pos+i]; pos > 0 && (len(line) == 0 || len(line) == 1 && line[0] == '\r') {
			return pos + i + 1
		}
		pos += i + 1
	}
}

// parseStatus parses the first line of head and returns the rest.
func parseStatus(head string) (status int, http11 bool, rest string, err error) {
	line, rest, _ := strings.Cut(head, "\n")
	line = strings.TrimSuffix(line, "\r")
	if len(line) < 12 || line[:7] != "HTTP/1." || line[8] != ' ' || len(line) > 12 && line[12] != ' ' || line[7] != '0' && line[7] != '1' {
		return 0, false, "", fmt.Errorf("malformed status line %.40q", line)
	}
	status, err = strconv.Atoi(line[9:12])
	if err != nil || status < 100 {
		return 0, false, "", fmt.Errorf("malformed status line %.40q", line)
	}
	return status, line[7] == '1', rest, nil
}

// parseInto reads the header lines of an answer into h, without those for this
// hop only.
func (re *response) parseInto(h http.Header, lines string, http11 bool) error {
	*re = response{status: re.status, length: -1, keepAlive: http11}
	values := make([]string, 0, strings.Count(lines, "\n"))
	for {
		line, rest, ok := strings.Cut(lines, "\n")
		lines = rest
		line = strings.TrimSuffix(line, "\r")
		if line == "" || !ok {
			break
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok || !httpguts.ValidHeaderFieldName(name) {
			return fmt.Errorf("malformed header line %.40q", line)
		}
		value = textproto.TrimString(value)
		if !httpguts.ValidHeaderFieldValue(value) {
			return fmt.Errorf("header %q has a forbidden character", name)
		}
		name = canonical(name)
		switch name {
		case "Content-Length":
			n, err := strconv.ParseUint(value, 10, 63)
			if err != nil || re.length >= 0 && re.length != int64(n) {
				return fmt.Errorf("bad Content-Length %.40q", value)
			}
			if re.length >= 0 {
				continue // the header repeats the same length
			}
			re.length = int64(n)
		case "Transfer-Encoding":
			if !http11 || re.chunked || !strings.EqualFold(value, "chunked") {
				return fmt.Errorf("unsupported Transfer-Encoding %.40q", value)
			}
			re.chunked = true
			continue
		case "Connection":
			for _, token := range splitTokens(value) {
				switch {
				case strings.EqualFold(token, "close"):
					re.keepAlive = false
				case strings.EqualFold(token, "keep-alive"):
					re.keepAlive = true
				default:
					re.connNames = append(re.connNames, canonical(token))
				}
			}
			continue
		case "Upgrade":
			re.upgrade = value
			continue
		case "Trailer":
			for _, token := range splitTokens(value) {
				if t := canonical(token); httpguts.ValidTrailerHeader(t) {
					re.trailers = append(re.trailers, t)
				}
			}
			continue
		case "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization", "Te":
			continue
		}
		if old := h[name]; old != nil {
			h[name] = append(old, value)
			continue
		}
		values = append(values, value)
		h[name] = values[len(values)-1 : len(values) : len(values)]
	}
	for _, name := range re.connNames {
		if name != "Content-Length" {
			delete(h, name)
		}
	}
	if re.chunked && re.length >= 0 {
		// The two headers contradict each other. Use the framing that cannot
		// smuggle a request, and do not reuse the connection.
		re.length, re.keepAlive = -1, false
		delete(h, "Content-Length")
	}
	return nil
}

// frame decides how the body of an answer to method ends.
func (re *response) frame(c *upConn, method string) {
	switch {
	case method == http.MethodHead, re.status == http.StatusNoContent, re.status == http.StatusNotModified, re.status < 200:
		re.body, re.length, re.chunked = nil, 0, false
	case re.chunked:
		re.body = httputil.NewChunkedReader(c.br)
	case re.length == 0:
		re.body = nil
	case re.length > 0:
		re.body = c.br // relayLength counts its bytes
	default:
		re.body, re.keepAlive = c.br, false
	}
}

// readTrailers reads the trailers after the last chunk.
func readTrailers(br *bufio.Reader, add func(name, value string)) error {
	for n := 0; ; {
		line, err := br.ReadSlice('\n')
		if err != nil {
			return err
		}
		if n += len(line); n > maxResponseHead {
			return errHeadTooLarge
		}
		text := strings.TrimRight(string(line), "\r\n")
		if text == "" {
			return nil
		}
		name, value, ok := strings.Cut(text, ":")
		value = textproto.TrimString(value)
		if !ok || !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
			return fmt.Errorf("malformed trailer %.40q", text)
		}
		if name = canonical(name); httpguts.ValidTrailerHeader(name) {
			add(name, value)
		}
	}
}

func splitTokens(s string) []string {
	var out []string
	for part := range strings.SplitSeq(s, ",") {
		if part = textproto.TrimString(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}

// names holds the canonical form of common header names, to look them up
// without allocating.
var names = func() map[string]string {
	m := map[string]string{}
	for _, n := range []string{
		"Accept-Ranges", "Access-Control-Allow-Credentials", "Access-Control-Allow-Headers", "Access-Control-Allow-Methods",
		"Access-Control-Allow-Origin", "Access-Control-Expose-Headers", "Access-Control-Max-Age", "Age", "Allow", "Alt-Svc",
		"Cache-Control", "Connection", "Content-Disposition", "Content-Encoding", "Content-Language", "Content-Length",
		"Content-Range", "Content-Security-Policy", "Content-Type", "Date", "Etag", "Expires", "Keep-Alive", "Last-Modified", "Link",
		"Location", "Pragma", "Referrer-Policy", "Retry-After", "Server", "Set-Cookie", "Strict-Transport-Security", "Trailer",
		"Transfer-Encoding", "Upgrade", "Vary", "Via", "Www-Authenticate", "X-Content-Type-Options", "X-Frame-Options",
		"X-Powered-By", "X-Request-Id", "X-Xss-Protection",
	} {
		m[n] = n
		m[strings.ToLower(n)] = n
	}
	m["ETag"], m["WWW-Authenticate"], m["X-Request-ID"], m["X-XSS-Protection"] = "Etag", "Www-Authenticate", "X-Request-Id", "X-Xss-Protection"
	return m
}()

func canonical(name string) string {
	if c, ok := names[name]; ok {
		return c
	}
	return textproto.CanonicalMIMEHeaderKey(name)
}
