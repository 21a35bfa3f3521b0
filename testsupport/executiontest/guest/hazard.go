package main

import (
	"bufio"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Programs that hold what a snapshot, a pause or a fork makes wrong.

// generationFile tells programs that they continue from a snapshot.
const generationFile = "/dev/runtime/generation"

// replaceFile makes a file appear complete.
func replaceFile(path, content string) error {
	if err := os.WriteFile(path+".new", []byte(content), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// changes calls f at first and after each change of the generation, until it returns false. text is empty while there is none.
func changes(f func(text string) bool) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return err
	}
	if _, err := unix.InotifyAddWatch(fd, filepath.Dir(generationFile), unix.IN_MOVED_TO|unix.IN_DELETE); err != nil {
		return err
	}
	events, last := make([]byte, 4096), ""
	for first := true; ; first = false {
		b, err := os.ReadFile(generationFile)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if text := strings.TrimSpace(string(b)); first || text != last {
			if last = text; !f(text) {
				return nil
			}
		}
		if _, err := unix.Read(fd, events); err != nil && err != unix.EINTR {
			return err
		}
	}
}

// generations PATH appends a line for each generation: its number, its id, a number of a generator in memory, bytes of a
// generator that is seeded anew, the variable TOKEN, and the address that the host name had at first. It writes "none"
// while there is no generation.
func generations(args []string) int {
	f, err := os.OpenFile(args[0], os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fail(err)
	}
	host, _ := os.Hostname()
	known, _ := net.LookupHost(host) // cached from now on
	memory := rand.New(rand.NewPCG(1, 2))
	err = changes(func(text string) bool {
		line := "none"
		if text != "" {
			fresh := make([]byte, 8)
			_, _ = crand.Read(fresh)
			line = fmt.Sprintf("%s %d %x %s %s", text, memory.Uint32(), fresh, os.Getenv("TOKEN"), strings.Join(known, ","))
		}
		_, err := fmt.Fprintln(f, line)
		return err == nil
	})
	return fail(err)
}

// lookup NAME prints its addresses.
func lookup(args []string) int {
	addresses, err := net.LookupHost(args[0])
	if err != nil {
		return fail(err)
	}
	fmt.Println(strings.Join(addresses, ","))
	return 0
}

// endSuspended CODE ends when a snapshot begins.
func endSuspended(args []string) int {
	fmt.Println("waiting")
	if err := changes(func(text string) bool { return text != "" }); err != nil {
		return fail(err)
	}
	fmt.Println("suspended")
	return number(args, 0, 0)
}

// hold PATH takes both kinds of locks of a file.
func hold(args []string) int {
	f, err := os.OpenFile(args[0], os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return fail(err)
	}
	if err := errors.Join(flock(f), posixLock(f)); err != nil {
		return fail(err)
	}
	if err := replaceFile(args[0]+".held", "held"); err != nil {
		return fail(err)
	}
	return sleep(nil)
}

func flock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

func posixLock(f *os.File) error {
	return unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
}

// tryLock PATH prints which of both locks another process holds.
func tryLock(args []string) int {
	f, err := os.OpenFile(args[0], os.O_RDWR, 0)
	if err != nil {
		return fail(err)
	}
	fmt.Printf("flock=%t posix=%t\n", errors.Is(flock(f), syscall.EWOULDBLOCK), errors.Is(posixLock(f), syscall.EAGAIN))
	return 0
}

// stream PORT PATH counts, and writes each number to one of its connections. It writes to the file how many of them are
// open and how many were closed.
func stream(args []string) int {
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", number(args, 0, 80)))
	if err != nil {
		return fail(err)
	}
	var n, open, closed atomic.Int64
	report := func() { _ = replaceFile(args[1], fmt.Sprintf("open=%d closed=%d", open.Load(), closed.Load())) }
	report()
	fmt.Println("streaming")
	for {
		c, err := l.Accept()
		if err != nil {
			return fail(err)
		}
		open.Add(1)
		report()
		go func() {
			defer c.Close()
			w := bufio.NewWriterSize(c, 32)
			for err := error(nil); err == nil; time.Sleep(200 * time.Microsecond) {
				fmt.Fprintln(w, n.Add(1))
				err = w.Flush()
			}
			open.Add(-1)
			closed.Add(1)
			report()
		}()
	}
}

// lineUp PATH appends lines with the numbers from 1 on.
func lineUp(args []string) int {
	f, err := os.OpenFile(args[0], os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fail(err)
	}
	for n := 1; ; n++ {
		if _, err := fmt.Fprintln(f, n); err != nil {
			return fail(err)
		}
		time.Sleep(200 * time.Microsecond)
	}
}

// clocks PATH SECONDS sets a timer by wall time and one by monotonic time. It writes to the file, in milliseconds: the wall
// time at its start, and from then on wall and monotonic time of the last tick and of both timers, -1 before they fire.
func clocks(args []string) int {
	after := time.Duration(number(args, 1, 1)) * time.Second
	wall0, mono0 := reading(unix.CLOCK_REALTIME), reading(unix.CLOCK_MONOTONIC)
	timer := func(clock int, at time.Duration) *atomic.Pointer[[2]time.Duration] {
		fired := new(atomic.Pointer[[2]time.Duration])
		go func() {
			fd, err := unix.TimerfdCreate(clock, unix.TFD_CLOEXEC)
			if err == nil {
				err = unix.TimerfdSettime(fd, unix.TFD_TIMER_ABSTIME, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(at))}, nil)
			}
			for again := err == nil; again; again = err == unix.EINTR {
				_, err = unix.Read(fd, make([]byte, 8))
			}
			if err == nil {
				fired.Store(&[2]time.Duration{reading(unix.CLOCK_REALTIME) - wall0, reading(unix.CLOCK_MONOTONIC) - mono0})
			}
		}()
		return fired
	}
	wall, mono := timer(unix.CLOCK_REALTIME, wall0+after), timer(unix.CLOCK_MONOTONIC, mono0+after)
	for ; ; time.Sleep(5 * time.Millisecond) {
		text := fmt.Sprintf("%d %d %d", wall0.Milliseconds(), (reading(unix.CLOCK_REALTIME) - wall0).Milliseconds(), (reading(unix.CLOCK_MONOTONIC) - mono0).Milliseconds())
		for _, fired := range []*atomic.Pointer[[2]time.Duration]{wall, mono} {
			if at := fired.Load(); at != nil {
				text += fmt.Sprintf(" %d %d", at[0].Milliseconds(), at[1].Milliseconds())
			} else {
				text += " -1 -1"
			}
		}
		if err := replaceFile(args[0], text); err != nil {
			return fail(err)
		}
	}
}

// reading returns the time of a clock since its own beginning.
func reading(clock int32) time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(clock, &ts)
	return time.Duration(ts.Nano())
}
