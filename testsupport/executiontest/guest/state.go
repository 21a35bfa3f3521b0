package main

import (
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// count PATH MILLIS counts in memory, and writes to the file, in place, "N HOST".
func count(args []string) int {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	for n := 1; ; n++ {
		host, _ := os.Hostname()
		if err := os.WriteFile(args[0]+".new", fmt.Appendf(nil, "%d %s", n, host), 0o644); err != nil {
			return fail(err)
		}
		if err := os.Rename(args[0]+".new", args[0]); err != nil {
			return fail(err)
		}
		if n%100 == 1 {
			fmt.Println("count", n)
		}
		select {
		case <-stop:
			return 0
		case <-time.After(time.Duration(number(args, 1, 5)) * time.Millisecond):
		}
	}
}

// note PATH TEXT... appends a line.
func note(args []string) int {
	f, err := os.OpenFile(args[0], os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fail(err)
	}
	if _, err := fmt.Fprintln(f, strings.Join(args[1:], " ")); err != nil {
		return fail(err)
	}
	return 0
}

// random prints bytes of /dev/urandom and of the system call.
func random([]string) int {
	f, err := os.Open("/dev/urandom")
	if err != nil {
		return fail(err)
	}
	device, call := make([]byte, 16), make([]byte, 16)
	if _, err := f.Read(device); err != nil {
		return fail(err)
	}
	_, _ = rand.Read(call)
	fmt.Printf("%x %x\n", device, call)
	return 0
}

// clock prints the time in nanoseconds.
func clock([]string) int { fmt.Println(time.Now().UnixNano()); return 0 }

// pair PATH sends bytes over a TCP connection to itself, writes to the file how many, and at last "closed".
func pair(args []string) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fail(err)
	}
	out, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return fail(err)
	}
	in, err := l.Accept()
	if err != nil {
		return fail(err)
	}
	for n := 1; ; n++ {
		if _, err = out.Write([]byte{1}); err == nil {
			_, err = in.Read(make([]byte, 1))
		}
		if err != nil {
			n = -1
		}
		if werr := os.WriteFile(args[0], fmt.Append(nil, n), 0o644); werr != nil || err != nil {
			return 0
		}
		time.Sleep(5 * time.Millisecond)
	}
}
