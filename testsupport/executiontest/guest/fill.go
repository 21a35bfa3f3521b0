package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// fill open|files N opens a file N times, or makes N empty files, and prints how
// many it could and why not more. Before that it tries to raise the limit of open
// files.
func fill(args []string) int {
	n := number(args, 1, 1000)
	_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: uint64(n) * 2, Max: uint64(n) * 2}) // refused, or it is seen below
	dir, err := os.MkdirTemp("", "fill")
	if err != nil {
		return fail(err)
	}
	defer os.RemoveAll(dir)
	done := 0
	for ; done < n; done++ {
		var f *os.File
		if args[0] == "open" {
			f, err = os.Open("/proc/self/exe")
		} else if f, err = os.Create(filepath.Join(dir, fmt.Sprint(done))); err == nil {
			f.Close()
		}
		if err != nil {
			break
		}
		if args[0] == "open" {
			defer f.Close()
		}
	}
	fmt.Println(done, err)
	return 0
}

// hole PATH MIB makes a file of that size without content.
func hole(args []string) int {
	f, err := os.Create(args[0])
	if err == nil {
		err = f.Truncate(int64(number(args, 1, 1)) << 20)
	}
	if err != nil {
		return fail(err)
	}
	fmt.Println("made")
	return 0
}
