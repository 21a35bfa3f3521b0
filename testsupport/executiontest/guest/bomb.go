package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// bombs use up one resource each, for the time that they get.
var bombs = map[string]func(end time.Time) error{
	"processes": forkBomb,
	"threads":   threadBomb,
	"memory":    memoryBomb,
	"disk":      diskBomb,
	"files":     fileBomb,
	"opened":    openBomb,
	"output":    outputBomb,
	"cpu":       cpuBomb,
}

// bomb KIND SECONDS
func bomb(args []string) int {
	if err := bombs[args[0]](time.Now().Add(time.Duration(number(args, 1, 1)) * time.Second)); err != nil {
		return fail(err)
	}
	return 0
}

// forkBomb starts processes that start processes.
func forkBomb(end time.Time) error {
	for time.Now().Before(end) {
		p, err := os.StartProcess("/proc/self/exe", os.Args, &os.ProcAttr{Env: os.Environ()})
		if err == nil {
			_ = p.Release()
		}
	}
	return nil
}

func threadBomb(end time.Time) error {
	var all sync.WaitGroup
	for range 100_000 {
		if time.Now().After(end) {
			break
		}
		all.Go(func() {
			runtime.LockOSThread()
			ts := syscall.NsecToTimespec(time.Until(end).Nanoseconds())
			_ = syscall.Nanosleep(&ts, nil) // of this thread
		})
	}
	all.Wait()
	return nil
}

func memoryBomb(end time.Time) error {
	var keep [][]byte
	for time.Now().Before(end) {
		b := make([]byte, 1<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		keep = append(keep, b)
	}
	runtime.KeepAlive(keep)
	return nil
}

// mapped uses memory until something ends it, in a process that has more pages mapped than the sandbox's kernel has: of
// the processes on the host, this one is the largest.
func mapped([]string) int {
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		return fail(err)
	}
	st, err := f.Stat()
	if err != nil {
		return fail(err)
	}
	size := int(st.Size())
	sum := 0
	for range 1 + 512<<20/size {
		b, err := syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ, syscall.MAP_SHARED)
		if err != nil {
			return fail(err)
		}
		for i := 0; i < size; i += 4096 {
			sum += int(b[i])
		}
	}
	fmt.Println("mapped", sum)
	return memory([]string{"100000"})
}

// diskBomb fills the disk, and empties it to fill it again.
func diskBomb(end time.Time) error {
	b := make([]byte, 1<<20)
	for time.Now().Before(end) {
		f, err := os.CreateTemp("", "bomb")
		if err != nil {
			return err
		}
		for err == nil && time.Now().Before(end) {
			_, err = f.Write(b)
		}
		if err := errors.Join(f.Close(), os.Remove(f.Name())); err != nil {
			return err
		}
	}
	return nil
}

// fileBomb makes empty files and prints how many it could make.
func fileBomb(end time.Time) error {
	dir, err := os.MkdirTemp("", "bomb")
	if err != nil {
		return err
	}
	n := 0
	for time.Now().Before(end) {
		if err = os.WriteFile(filepath.Join(dir, fmt.Sprint(n)), nil, 0o600); err != nil {
			break
		}
		n++
	}
	fmt.Println("made", n, "files:", err)
	return os.RemoveAll(dir)
}

// openBomb opens as many files as it can, in as many processes, and prints how many there were in this one.
func openBomb(end time.Time) error {
	var all []*os.File
	var err error
	for err == nil && time.Now().Before(end) {
		var f *os.File
		if f, err = os.Open("/proc/self/exe"); err == nil {
			all = append(all, f)
		}
	}
	fmt.Println("opened", len(all), "files:", err)
	for _, f := range all[:min(len(all), 16)] { // to start a process takes some
		f.Close()
	}
	forked := forkBomb(end)
	runtime.KeepAlive(all)
	return forked
}

func outputBomb(end time.Time) error {
	lines := strings.Repeat(strings.Repeat("x", 100)+"\n", 100)
	for time.Now().Before(end) {
		if _, err := os.Stdout.WriteString(lines); err != nil {
			return err
		}
	}
	return nil
}

func cpuBomb(end time.Time) error {
	var all sync.WaitGroup
	for range 32 {
		all.Go(func() {
			for time.Now().Before(end) {
			}
		})
	}
	all.Wait()
	return nil
}
