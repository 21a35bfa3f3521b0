package agentproto

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// The log spool is a directory of segments, named by the position of their
// first byte in the whole log, which never repeats:
//
//	0000000000001000.log
//
// A segment is a sequence of records, one per line, which are not split
// across segments:
//
//	<unix nanoseconds> <o|e><.|+> <text>\n
//
// "o" is stdout and "e" stderr; "+" means that the line continues in the next
// record of the stream. Of the segments only the last one grows.

// SegmentName returns the file name of the segment that begins at offset.
func SegmentName(offset int64) string { return fmt.Sprintf("%016x.log", offset) }

// ParseSegmentName is the reverse of SegmentName. Offsets are those of the protocol, so that a sum with a size fits.
func ParseSegmentName(name string) (offset int64, ok bool) {
	hex, ok := strings.CutSuffix(name, ".log")
	if !ok || len(hex) != 16 {
		return 0, false
	}
	v, err := strconv.ParseInt(hex, 16, 64)
	return v, err == nil && v >= 0 && v <= 1<<62 && SegmentName(v) == name
}

// Record is one record of a log.
type Record struct {
	At      int64 // unix nanoseconds of the guest
	Stream  uint8 // Stdout or Stderr
	Partial bool  // the next record continues the line
	Text    []byte
}

// maxRecordHead is more than the length of the fields before the text, in
// bytes.
const maxRecordHead = 32

// MaxRecord bounds a record with its newline, in bytes.
const MaxRecord = MaxLine + maxRecordHead

// Append appends the record to b. Text must have no newline.
func (r Record) Append(b []byte) []byte {
	b = strconv.AppendInt(b, r.At, 10)
	b = append(b, ' ')
	if r.Stream == Stderr {
		b = append(b, 'e')
	} else {
		b = append(b, 'o')
	}
	if r.Partial {
		b = append(b, '+', ' ')
	} else {
		b = append(b, '.', ' ')
	}
	b = append(b, r.Text...)
	return append(b, '\n')
}

// ParseRecord reads a record without its newline. Text is part of line.
func ParseRecord(line []byte) (Record, error) {
	at, rest, ok := bytes.Cut(line, []byte{' '})
	if !ok || len(at) > 20 || len(rest) < 3 || rest[2] != ' ' || len(rest)-3 > MaxLine {
		return Record{}, ErrMalformed
	}
	t, err := strconv.ParseInt(string(at), 10, 64)
	if err != nil {
		return Record{}, ErrMalformed
	}
	r := Record{At: t, Text: rest[3:]}
	switch rest[0] {
	case 'o':
		r.Stream = Stdout
	case 'e':
		r.Stream = Stderr
	default:
		return Record{}, ErrMalformed
	}
	switch rest[1] {
	case '.':
	case '+':
		r.Partial = true
	default:
		return Record{}, ErrMalformed
	}
	return r, nil
}

// MaxExitFile bounds the file ExitName, in bytes.
const MaxExitFile = 4 << 10

// AppendExitFile appends the exit record: one line of text.
func AppendExitFile(b []byte, e Exit) []byte {
	msg := e.Message
	if len(msg) > 512 { // quoting makes at most four times as much
		msg = msg[:512]
	}
	return fmt.Appendf(b, "exit %d signal %d at %d message %s\n", e.Code, e.Signal, e.At, strconv.QuoteToASCII(msg))
}

// ParseExitFile is the reverse of AppendExitFile.
func ParseExitFile(b []byte) (Exit, error) {
	f := strings.SplitN(strings.TrimSuffix(string(b), "\n"), " ", 8)
	if len(b) > MaxExitFile || len(f) != 8 || f[0] != "exit" || f[2] != "signal" || f[4] != "at" || f[6] != "message" {
		return Exit{}, ErrMalformed
	}
	var e Exit
	for i, v := range []*int64{&e.Code, &e.Signal, &e.At} {
		n, err := strconv.ParseInt(f[2*i+1], 10, 64)
		if err != nil {
			return Exit{}, ErrMalformed
		}
		*v = n
	}
	if e.Code < 0 || e.Code > 255 || e.Signal < 0 || e.Signal > 64 {
		return Exit{}, ErrMalformed
	}
	var err error
	if e.Message, err = strconv.Unquote(f[7]); err != nil {
		return Exit{}, ErrMalformed
	}
	return e, nil
}
