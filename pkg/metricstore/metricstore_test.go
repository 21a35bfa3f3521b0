package metricstore

import (
	"bufio"
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"miren.dev/runtime/pkg/errs"
)

func open(t *testing.T, c Config) *Store {
	t.Helper()
	s, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func appendAt(t *testing.T, s *Store, at time.Time, samples ...Sample) {
	t.Helper()
	if err := s.Append(t.Context(), at, samples); err != nil {
		t.Fatal(err)
	}
}

// TestPrivate: no other user of the machine reads the history, also one from before.
func TestPrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "metrics")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	open(t, Config{Dir: dir})
	if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
}

// TestQuery: rates of counters, present values, and no value where there is no sample.
func TestQuery(t *testing.T) {
	s := open(t, Config{Dir: t.TempDir()})
	begin := time.Now().Add(-10 * time.Minute).Truncate(time.Minute)
	for i := range 13 { // two minutes
		at := begin.Add(time.Duration(i) * 10 * time.Second)
		appendAt(t, s, at,
			Sample{"cpu_total", map[string]string{"service": "web"}, float64(i) * 5},
			Sample{"memory", map[string]string{"service": "web", "sandbox": "a"}, 100},
			Sample{"memory", map[string]string{"service": "web", "sandbox": "b"}, 50})
	}
	r := Range{From: begin, To: begin.Add(5 * time.Minute), Step: time.Minute}
	got, err := s.Query(t.Context(), `sum by (service) (memory)`, r)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got[0].Labels["service"] != "web" || len(got[0].Values) != 6 || got[0].Values[0] != 150 || got[0].Values[2] != 150 || !math.IsNaN(got[0].Values[4]) {
		t.Errorf("memory: %+v", got)
	}
	got, err = s.Query(t.Context(), `rate(cpu_total[1m])`, r)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || math.Abs(got[0].Values[2]-0.5) > 1e-9 {
		t.Errorf("rate: %+v", got)
	}
	for _, bad := range []Range{{From: begin, To: begin.Add(time.Hour), Step: time.Second}, {From: begin, To: begin.Add(-time.Hour), Step: time.Second}, {From: begin, To: begin}} {
		if _, err := s.Query(t.Context(), `memory`, bad); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// TestBound: new series are refused while there are too many, and others go on.
func TestBound(t *testing.T) {
	s := open(t, Config{Dir: t.TempDir(), MaxSeries: 3})
	now := time.Now()
	for round := range 2 {
		var list []Sample
		for i := range 5 {
			list = append(list, Sample{"m", map[string]string{"n": strconv.Itoa(i)}, 1})
		}
		appendAt(t, s, now.Add(time.Duration(round)*time.Second), list...)
	}
	if s.InMemory() != 3 || s.Refused() != 4 {
		t.Errorf("%d series, %d samples refused", s.InMemory(), s.Refused())
	}
}

// TestOldSample: a clock that is set back loses samples and is no error.
func TestOldSample(t *testing.T) {
	s := open(t, Config{Dir: t.TempDir()})
	now := time.Now()
	appendAt(t, s, now, Sample{"m", nil, 1})
	appendAt(t, s, now.Add(-time.Minute), Sample{"m", nil, 2})
	appendAt(t, s, now, Sample{"m", nil, 3})
	got, err := s.Query(t.Context(), "m", Range{From: now, To: now, Step: time.Second})
	if err != nil || len(got) != 1 || got[0].Values[0] != 1 {
		t.Errorf("%+v, %v", got, err)
	}
}

// child is the environment variable that makes this test append until it is killed.
const child = "METRICSTORE_TEST_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(child); dir != "" {
		appendForever(dir)
	}
	os.Exit(m.Run())
}

// appendForever prints the number of each sample that was appended.
func appendForever(dir string) {
	s, err := Open(Config{Dir: dir})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	begin := time.Now()
	// The process before may have written samples of later times than it lived.
	if _, newest, ok := s.Bounds(); ok && newest.After(begin) {
		begin = newest
	}
	for i := 1; ; i++ {
		if err := s.Append(context.Background(), begin.Add(time.Duration(i)*time.Millisecond), []Sample{{"n", nil, float64(i)}}); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(i, begin.UnixMilli())
	}
}

// TestKill: what was appended is there after SIGKILL, again and again.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	for round := range 4 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), child+"="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		n, begin := -1, int64(0)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if _, err := fmt.Sscan(lines.Text(), &n, &begin); err != nil {
				t.Fatalf("%q: %v", lines.Text(), err)
			}
			if n == 300+round*171 {
				_ = cmd.Process.Kill()
			}
		}
		_ = cmd.Wait() // it was killed
		if n < 300 {
			t.Fatalf("the process ended after %d samples", n)
		}
		s, err := Open(Config{Dir: dir, Lookback: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		at := time.UnixMilli(begin + int64(n))
		got, err := s.Query(t.Context(), "n", Range{From: at.Add(-200 * time.Millisecond), To: at, Step: time.Millisecond})
		if err != nil || len(got) != 1 {
			t.Fatalf("%+v, %v", got, err)
		}
		for i, v := range got[0].Values {
			if want := float64(n - 200 + i); v != want {
				t.Fatalf("round %d: sample %v is %v", round, want, v)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
