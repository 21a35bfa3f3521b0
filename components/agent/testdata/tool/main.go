// Command tool is a static program for the tests to run in a sandbox.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	args := os.Args[1:]
	if len(args) == 0 {
		os.Exit(2)
	}
	switch args[0] {
	case "true":
	case "exit": // CODE
		os.Exit(number(args[1]))
	case "cat":
		if _, err := io.Copy(os.Stdout, os.Stdin); err != nil {
			os.Exit(1)
		}
	case "spam": // BYTES
		buf := make([]byte, 1<<16)
		for left := number(args[1]); left > 0; {
			n := min(left, len(buf))
			if _, err := os.Stdout.Write(buf[:n]); err != nil {
				os.Exit(1)
			}
			left -= n
		}
	case "count": // LINES, MILLISECONDS between them
		every := time.Duration(number(args[2])) * time.Millisecond
		for i := range number(args[1]) {
			fmt.Println("line", i)
			time.Sleep(every)
		}
	case "status": // the kernel's view of our privileges
		b, err := os.ReadFile("/proc/self/status")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		for l := range strings.SplitSeq(string(b), "\n") {
			if strings.HasPrefix(l, "Cap") || strings.HasPrefix(l, "NoNewPrivs") {
				fmt.Println(strings.Join(strings.Fields(l), " "))
			}
		}
		fmt.Println("uid", os.Getuid(), "gid", os.Getgid())
		groups, _ := os.Getgroups()
		fmt.Println("groups", groups)
	case "open": // PATH...: says which can be read
		for _, p := range args[1:] {
			f, err := os.Open(p)
			if err == nil {
				_, err = f.Read(make([]byte, 1))
			}
			fmt.Println(p, err == nil || err == io.EOF)
		}
	case "listen": // ADDRESS...
		for _, a := range args[1:] {
			if _, err := net.Listen("tcp", a); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}
		fmt.Println("listening")
		time.Sleep(time.Hour)
	case "echo": // ADDRESS...: TCP servers that send back what they get
		for _, a := range args[1:] {
			l, err := net.Listen("tcp", a)
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					go func() {
						defer c.Close()
						_, _ = io.Copy(c, c)
					}()
				}
			}()
		}
		fmt.Println("listening")
		time.Sleep(time.Hour)
	case "trap": // prints SIGTERM and exits with 7
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM)
		fmt.Println("ready")
		fmt.Println("got", <-c)
		os.Exit(7)
	case "fork": // N: sleeping children, until one cannot be started
		for i := range number(args[1]) {
			if _, err := os.StartProcess("/proc/self/exe", []string{"tool", "sleep"}, &os.ProcAttr{}); err != nil {
				fmt.Println("failed after", i, err)
				time.Sleep(time.Hour)
			}
		}
		fmt.Println("started all")
	case "sleep":
		time.Sleep(time.Hour)
	}
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	return n
}
