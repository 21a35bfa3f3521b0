package serverctl

import (
	"bytes"
	"io"
	"os"
	"strings"
)

// logTail returns the text that was appended to a log file after the offset
// from, at most its last n bytes.
func logTail(path string, from, n int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil {
		from = max(min(from, st.Size()), st.Size()-n)
	}
	b, err := io.ReadAll(io.NewSectionReader(f, from, n))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// lastMessage returns the message of the newest line of a server's log.
func lastMessage(path string, from int64) string {
	lines := bytes.Split([]byte(logTail(path, from, 4<<10)), []byte("\n"))
	line := string(lines[len(lines)-1])
	if _, rest, ok := strings.Cut(line, "msg="); ok {
		if rest, ok = strings.CutPrefix(rest, `"`); ok {
			rest, _, _ = strings.Cut(rest, `"`)
			return rest
		}
		rest, _, _ = strings.Cut(strings.TrimPrefix(rest, `"`), " ")
		return rest
	}
	return ""
}

// fileSize returns the size of a file, 0 if it does not exist.
func fileSize(path string) int64 {
	st, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return st.Size()
}
