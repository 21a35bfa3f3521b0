package logstore_test

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/pkg/logstore"
)

// appendUntilKilled is what the child of TestKilledProcessLosesAndRepeatsNothing
// does: it goes on where the log says, and prints what was acknowledged.
func appendUntilKilled(dir string) {
	s, err := logstore.Open(logstore.Config{Dir: dir, SegmentBytes: 30_000})
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	for i := 0; ; i++ {
		source := string(rune('a' + i%2))
		from := int(s.Position(app, source) / 100)
		if err := s.Append(app, origin(source), numbered(source, from, from+1+i%50)); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		fmt.Println(source, s.Position(app, source))
	}
}

func TestMain(m *testing.M) {
	if dir := os.Getenv("LOGSTORE_CHILD"); dir != "" {
		appendUntilKilled(dir)
	}
	os.Exit(m.Run())
}

func TestKilledProcessLosesAndRepeatsNothing(t *testing.T) {
	e := newEnv(t, logstore.Config{SegmentBytes: 30_000})
	rng := rand.New(rand.NewPCG(5, 6))
	acked := map[string]int64{}
	for range 15 {
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), "LOGSTORE_CHILD="+e.c.Dir)
		out, err := c.StdoutPipe()
		e.must(err)
		e.must(c.Start())
		r := bufio.NewReader(out)
		for stop := 20 + rng.IntN(150); stop > 0; stop-- {
			if !ack(t, r, acked) {
				t.Fatal("the child ended by itself")
			}
		}
		time.AfterFunc(time.Duration(rng.IntN(3000))*time.Microsecond, func() { _ = c.Process.Kill() })
		for ack(t, r, acked) {
		}
		_ = c.Wait() // killed
		e.open()
		next := map[string]int64{}
		for _, l := range e.read(logstore.Query{}) {
			if l.Offset != next[l.Source]+100 {
				t.Fatalf("%s: %d after %d", l.Source, l.Offset, next[l.Source])
			}
			next[l.Source] = l.Offset
		}
		for source, n := range acked {
			if next[source] < n || e.s.Position(app, source) != next[source] {
				t.Fatalf("%s: acknowledged %d, has %d, position %d", source, n, next[source], e.s.Position(app, source))
			}
		}
		e.s.Close()
	}
}

// ack reads an acknowledgement; false at the end.
func ack(t *testing.T, r *bufio.Reader, acked map[string]int64) bool {
	line, err := r.ReadString('\n')
	if err == io.EOF || err != nil {
		return false
	}
	source, n, _ := strings.Cut(strings.TrimSpace(line), " ")
	at, err := strconv.ParseInt(n, 10, 64)
	if err != nil {
		t.Fatal(line)
	}
	acked[source] = at
	return true
}

// A log whose end was not written whole has the lines of its whole frames, and goes
// on behind them.
func TestTornEnd(t *testing.T) {
	e := newEnv(t, logstore.Config{SegmentBytes: 6000})
	for i := range 8 {
		e.must(e.s.Append(app, origin("a"), numbered("a", 10*i, 10*i+10)))
	}
	open, err := filepath.Glob(filepath.Join(e.c.Dir, app, "*.log"))
	if err != nil || len(open) != 1 {
		t.Fatal(open, err)
	}
	whole, err := os.ReadFile(open[0])
	e.must(err)
	for cut := len(whole) - 1; cut > len(whole)-900; cut -= 7 {
		for name, b := range map[string][]byte{"cut": whole[:cut], "zeros": append(append([]byte{}, whole[:cut]...), make([]byte, 5000)...)} {
			e.must(os.WriteFile(open[0], b, 0o600))
			e.open()
			n := e.s.Position(app, "a") / 100
			if n%10 != 0 || n == 80 || len(e.read(logstore.Query{})) != int(n) {
				t.Fatalf("%s at %d: position %d, %d lines", name, cut, n, len(e.read(logstore.Query{})))
			}
			e.must(e.s.Append(app, origin("a"), numbered("a", 0, 80)))
			if got := e.read(logstore.Query{}); texts(got) != texts(numbered("a", 0, 80)) {
				t.Fatalf("%s at %d: %d lines afterwards", name, cut, len(got))
			}
			e.s.Close()
			later, _ := filepath.Glob(filepath.Join(e.c.Dir, app, "*.log"))
			if len(later) != 1 || later[0] != open[0] {
				return // it was sealed; what was cut so far is enough
			}
		}
	}
}

// Each state in which a process can end while it seals a segment.
func TestInterruptedSeal(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, open string){
		"the next one is empty": func(t *testing.T, open string) { write(t, following(open), nil) },
		"the next one is torn":  func(t *testing.T, open string) { write(t, following(open), []byte{1, 2, 3, 4, 5, 6, 7, 8, 9}) },
		"a temporary file stayed": func(t *testing.T, open string) {
			write(t, filepath.Join(filepath.Dir(open), ".0000000001.zst.tmp-1"), []byte("x"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, logstore.Config{})
			e.must(e.s.Append(app, origin("a"), numbered("a", 0, 50)))
			e.s.Close()
			open, _ := filepath.Glob(filepath.Join(e.c.Dir, app, "*.log"))
			change(t, open[0])
			for i := range 3 {
				e.open()
				e.must(e.s.Append(app, origin("a"), numbered("a", 0, 60+i)))
				if got := e.read(logstore.Query{}); texts(got) != texts(numbered("a", 0, 60+i)) {
					t.Fatalf("%d lines", len(got))
				}
			}
		})
	}
	t.Run("both forms and the next one are there", func(t *testing.T) {
		e := newEnv(t, logstore.Config{SegmentBytes: 1 << 20})
		e.must(e.s.Append(app, origin("a"), numbered("a", 0, 50)))
		open, _ := filepath.Glob(filepath.Join(e.c.Dir, app, "*.log"))
		before, err := os.ReadFile(open[0])
		e.must(err)
		e.c.SegmentBytes = 10
		e.open()
		e.must(e.s.Append(app, origin("a"), numbered("a", 50, 51))) // seals it
		e.s.Close()
		after, err := os.ReadFile(following(open[0]))
		e.must(err)
		e.c.SegmentBytes = 1 << 20
		for range 2 {
			write(t, open[0], before)
			write(t, following(open[0]), after)
			e.open()
			if got := e.read(logstore.Query{}); texts(got) != texts(numbered("a", 0, 51)) || e.s.Position(app, "a") != 5100 {
				t.Fatalf("%d lines, position %d", len(got), e.s.Position(app, "a"))
			}
			if _, err := os.Stat(open[0]); !os.IsNotExist(err) {
				t.Error("the sealed segment has its open form still")
			}
		}
		// Not yet sealed.
		sealed := strings.TrimSuffix(open[0], ".log") + ".zst"
		e.s.Close()
		e.must(os.Remove(sealed))
		full, err := os.ReadFile(following(open[0]))
		e.must(err)
		write(t, open[0], before)
		write(t, following(open[0]), full)
		e.open()
		if got := e.read(logstore.Query{}); texts(got) != texts(numbered("a", 0, 50)) || e.s.Position(app, "a") != 5100 {
			t.Fatalf("%d lines, position %d", len(got), e.s.Position(app, "a"))
		}
		if _, err := os.Stat(sealed); err != nil {
			t.Error(err)
		}
	})
}

func following(open string) string {
	n, _ := strconv.ParseInt(strings.TrimSuffix(filepath.Base(open), ".log"), 10, 64)
	return filepath.Join(filepath.Dir(open), fmt.Sprintf("%010d.log", n+1))
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}
