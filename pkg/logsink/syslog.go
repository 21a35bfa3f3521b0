package logsink

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/logline"
	"miren.dev/runtime/pkg/sink/httpsink"
)

// syslogSink sends messages of RFC 5424: in datagrams (RFC 5426), or over TCP or TLS
// with their length before each (RFC 6587, 5425). The protocol has no answer: what the
// connection has when it is cut is lost.
type syslogSink struct {
	network string // udp, tcp, tls
	address string
	tls     *tls.Config
	host    string
	conn    net.Conn
}

// maxDatagram is the greatest message that is sent by UDP, in bytes. A longer one is cut.
const maxDatagram = 8 << 10

// facility is user-level messages.
const facility = 1

func (s *syslogSink) Close() {
	if s.conn != nil {
		s.conn.Close()
		s.conn = nil
	}
}

func (s *syslogSink) Send(ctx context.Context, b Batch) error {
	err := s.send(ctx, b)
	if err != nil {
		s.Close()
		return errs.New(errs.Unavailable, "syslog server %s: %w", s.address, err)
	}
	return nil
}

func (s *syslogSink) send(ctx context.Context, b Batch) error {
	if s.conn != nil && s.network != "udp" && closed(s.conn) {
		s.Close()
	}
	if s.conn == nil {
		var err error
		d := &net.Dialer{Timeout: 10 * time.Second}
		if s.network == "tls" {
			s.conn, err = (&tls.Dialer{NetDialer: d, Config: s.tls}).DialContext(ctx, "tcp", s.address)
		} else {
			s.conn, err = d.DialContext(ctx, s.network, s.address)
		}
		if err != nil {
			s.conn = nil // a nil of the type tls.Conn is none
			return err
		}
	}
	if err := s.conn.SetWriteDeadline(time.Now().Add(httpsink.SendTime)); err != nil {
		return err
	}
	if s.network == "udp" {
		for i := range b.Entries {
			m := s.message(&b.Entries[i])
			if _, err := s.conn.Write(m[:min(len(m), maxDatagram)]); err != nil {
				return err
			}
		}
		return nil
	}
	w := bufio.NewWriterSize(s.conn, 64<<10)
	for i := range b.Entries {
		m := s.message(&b.Entries[i])
		_, _ = w.WriteString(strconv.Itoa(len(m)) + " ") // Flush has the error
		_, _ = w.Write(m)
	}
	return w.Flush()
}

// closed reports whether the server closed a connection. It sends nothing else.
func closed(c net.Conn) bool {
	if err := c.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
		return true
	}
	_, err := c.Read(make([]byte, 1))
	return err != nil && !errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, io.EOF)
}

// message renders a line: its host is the installation, its program the service, its
// process the sandbox; the rest is structured data.
func (s *syslogSink) message(e *Entry) []byte {
	b := append([]byte{'<'}, strconv.Itoa(facility*8+severity(e))...)
	b = append(b, ">1 "...)
	b = e.At.UTC().AppendFormat(b, "2006-01-02T15:04:05.000000Z")
	for _, x := range []struct {
		text string
		most int
	}{{s.host, 255}, {serviceName(e), 48}, {e.Source, 128}, {"line", 32}} {
		b = append(append(b, ' '), header(x.text, x.most)...)
	}
	// 32473 is the number for examples: there is none of ours.
	b = append(b, " [runtime@32473"...)
	for _, x := range [][2]string{{"project", e.Project}, {"app", e.App}, {"service", e.Service}, {"version", strconv.FormatInt(e.Version, 10)}} {
		b = append(b, ' ')
		b = append(append(b, x[0]...), `="`...)
		b = append(append(b, quoted.Replace(valid(x[1]))...), '"')
	}
	b = append(b, "] \xEF\xBB\xBF"...)
	return append(b, valid(e.Text)...)
}

var quoted = strings.NewReplacer(`\`, `\\`, `"`, `\"`, `]`, `\]`)

// header is a field of the header: printable ASCII without spaces, "-" for none.
func header(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if r < 33 || r > 126 {
			return '_'
		}
		return r
	}, s)
	if s = s[:min(len(s), most)]; s == "" {
		return "-"
	}
	return s
}

// severity is that of RFC 5424; a line that says none is informational, on stderr an
// error.
func severity(e *Entry) int {
	switch e.Level.Or(e.Stderr) {
	case logline.Trace, logline.Debug:
		return 7
	case logline.Warn:
		return 4
	case logline.Error:
		return 3
	case logline.Fatal:
		return 2
	}
	return 6
}
