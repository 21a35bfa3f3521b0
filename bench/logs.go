package main

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/logline"
	"miren.dev/runtime/pkg/logstore"
)

// benchLogs measures the store of apps' output, without a peer: lines of JSON and plain
// ones are appended as the node does, and searched.
func benchLogs(ctx context.Context, b *bench) error {
	size := b.opt.logs << 20
	if b.opt.quick {
		size = min(size, 128<<20)
	}
	dir := b.scratch.path("app-logs")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	s, err := logstore.Open(logstore.Config{Dir: dir})
	if err != nil {
		return err
	}
	defer s.Close()
	progress("  appending %d MiB of lines", size>>20)
	began, cpu := time.Now(), cpuTime()
	text, lines, err := fillLog(ctx, s, size)
	if err != nil {
		return err
	}
	mib := float64(text) / (1 << 20)
	b.report.figure(fmt.Sprintf("logs: append %.0f MiB, levels found and sealed", mib), "MiB/s", mib/time.Since(began).Seconds(), 0)
	b.report.figure("logs: append, for each second of CPU", "MiB", mib/(cpuTime()-cpu).Seconds(), 0)
	b.report.figure("logs: disk for each MiB of text", "MiB", float64(s.Bytes("app"))/float64(text), 0)
	for _, x := range []struct {
		what string
		q    logstore.Query
		want int // 0: any number of lines
	}{
		{"search for a word", logstore.Query{Grep: regexp.MustCompile("needle-7f3a")}, 1},
		{"search for an expression that begins with any character", logstore.Query{Grep: regexp.MustCompile(`[a-z]+-7f3a in the`)}, 1},
		{"search for errors", logstore.Query{Level: logline.Error}, 0},
		{"the last 100 lines", logstore.Query{Last: lastOf(100)}, 100},
	} {
		snap, err := s.Snapshot("app")
		if err != nil {
			return err
		}
		n, began, cpu := 0, time.Now(), cpuTime()
		err = snap.Read(ctx, x.q, func(logstore.Line) error {
			n++
			return nil
		})
		took, used := time.Since(began), cpuTime()-cpu
		snap.Close()
		if err != nil {
			return err
		}
		if n == 0 || x.want > 0 && n != x.want || n == lines {
			return fmt.Errorf("%s: %d lines of %d", x.what, n, lines)
		}
		if x.q.Last != nil {
			b.report.figure("logs: "+x.what, "ms", took.Seconds()*1000, 0)
			continue
		}
		b.report.figure("logs: "+x.what, "MiB/s", mib/took.Seconds(), 0)
		b.report.figure("logs: "+x.what+", for each second of CPU", "MiB", mib/used.Seconds(), 0)
	}
	return nil
}

// cpuTime is the time of CPU that this process has used: on a machine with other work
// it says more than the time that passed.
func cpuTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0 // it does not fail
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func lastOf(n int) func(*logstore.Line) (bool, bool) {
	return func(*logstore.Line) (bool, bool) {
		n--
		return true, n > 0
	}
}

// fillLog appends lines until their text has some size.
func fillLog(ctx context.Context, s *logstore.Store, size int64) (text int64, lines int, err error) {
	batch := make([]logstore.Line, 0, 4096)
	at := time.Now().Add(-time.Hour)
	var offset int64
	for done := int64(0); done < size; {
		if err := ctx.Err(); err != nil {
			return 0, 0, err
		}
		for len(batch) < cap(batch) {
			t := logText(lines)
			lines++
			done += int64(len(t))
			offset += int64(len(t)) + 30
			at = at.Add(300 * time.Microsecond)
			batch = append(batch, logstore.Line{Offset: offset, At: at, Level: logline.LevelOf(t), Text: t})
		}
		if err := s.Append("app", logstore.Origin{Source: "sandbox", Service: "web", Version: 3}, batch); err != nil {
			return 0, 0, err
		}
		batch, text = batch[:0], done
	}
	return text, lines, nil
}

// logText is line i: what servers of the web print.
func logText(i int) string {
	h := uint32(i) * 2654435761
	switch {
	case i == 300_000:
		return "a needle-7f3a in the haystack"
	case i%97 == 0:
		return fmt.Sprintf(`{"level":"error","time":"2026-01-02T03:04:05Z","msg":"upstream refused","attempt":%d,"host":"10.0.%d.%d","trace":"%08x%08x"}`, i%5, h>>8&255, h&255, h, ^h)
	case i%4 == 0:
		return fmt.Sprintf(`10.0.%d.%d - - [02/Jan/2026:03:04:05 +0000] "GET /products/%d?page=%d HTTP/1.1" 200 %d "-" "Mozilla/5.0 (X11; Linux x86_64)"`, h>>8&255, h&255, h>>12, i%9, h>>16)
	}
	return fmt.Sprintf(`{"level":"info","time":"2026-01-02T03:04:05Z","msg":"request","method":"GET","path":"/api/items/%d","status":200,"took_ms":%d,"trace":"%08x%08x"}`, h>>12, h>>24, h, ^h)
}
