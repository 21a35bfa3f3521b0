// Command guest is the one program in the image that the driver tests run. Its
// first argument says what it does.
package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// commands by name; each gets the arguments after it and returns the exit code.
var commands = map[string]func(args []string) int{
	"echo":   echo,
	"err":    echoErr,
	"cat":    cat,
	"env":    env,
	"id":     id,
	"exit":   exit,
	"sleep":  sleep,
	"stub":   stubborn,
	"lines":  lines,
	"memory": memory,
	"mapped": mapped,
	"forks":  forks,
	"spin":   spin,
	"serve":  serve,
	"dial":   dial,
	"get":    get,
	"write":  write,
	"read":   read,
	"put":    put,
	"signal": selfSignal,
	"caps":   caps,
	"count":  count,
	"note":   note,
	"random": random,
	"clock":  clock,
	"limits": limits,
	"pair":   pair,
	"probe":  probe,
	"bomb":   bomb,
	"fill":   fill,
	"hole":   hole,

	"generations":   generations,
	"lookup":        lookup,
	"end-suspended": endSuspended,
	"hold":          hold,
	"try-lock":      tryLock,
	"stream":        stream,
	"clocks":        clocks,
	"line-up":       lineUp,
}

// limits prints how many CPUs, how much memory and how large a disk programs see.
func limits([]string) int {
	var fs syscall.Statfs_t
	if err := syscall.Statfs("/", &fs); err != nil {
		return fail(err)
	}
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return fail(err)
	}
	var memory int64
	if _, err := fmt.Sscanf(string(b), "MemTotal: %d kB", &memory); err != nil {
		return fail(err)
	}
	fmt.Printf("cpus=%d memory=%d disk=%d free=%d\n", runtime.NumCPU(), memory<<10, int64(fs.Blocks)*fs.Bsize, int64(fs.Bavail)*fs.Bsize)
	return 0
}

func main() {
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "guest: no such command")
		os.Exit(64)
	}
	os.Exit(commands[os.Args[1]](os.Args[2:]))
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, "guest:", err)
	return 1
}

func number(args []string, i, otherwise int) int {
	if i < len(args) {
		if n, err := strconv.Atoi(args[i]); err == nil {
			return n
		}
	}
	return otherwise
}

func echo(args []string) int    { fmt.Println(strings.Join(args, " ")); return 0 }
func echoErr(args []string) int { fmt.Fprintln(os.Stderr, strings.Join(args, " ")); return 0 }

func cat([]string) int {
	if _, err := io.Copy(os.Stdout, os.Stdin); err != nil {
		return fail(err)
	}
	return 0
}

func env([]string) int { fmt.Println(strings.Join(os.Environ(), "\n")); return 0 }

func id([]string) int {
	dir, _ := os.Getwd()
	host, _ := os.Hostname()
	fmt.Printf("uid=%d gid=%d dir=%s host=%s pid=%d\n", os.Getuid(), os.Getgid(), dir, host, os.Getpid())
	return 0
}

func exit(args []string) int { return number(args, 0, 0) }

// sleep ends with 0 on SIGTERM.
func sleep(args []string) int {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	fmt.Println("sleeping")
	select {
	case <-stop:
		fmt.Println("told to stop")
	case <-time.After(time.Duration(number(args, 0, 3600)) * time.Second):
	}
	return 0
}

// stubborn does not stop when asked.
func stubborn([]string) int {
	signal.Ignore(syscall.SIGTERM)
	fmt.Println("sleeping")
	time.Sleep(time.Hour)
	return 0
}

// lines N MILLIS prints numbered lines, on standard output and error in turn.
func lines(args []string) int {
	for i := range number(args, 0, 10) {
		out := os.Stdout
		if i%2 == 1 {
			out = os.Stderr
		}
		fmt.Fprintf(out, "line %d\n", i)
		time.Sleep(time.Duration(number(args, 1, 0)) * time.Millisecond)
	}
	return 0
}

// memory MIB allocates that much memory and keeps it.
func memory(args []string) int {
	var keep [][]byte
	for i := range number(args, 0, 1024) {
		b := make([]byte, 1<<20)
		for j := 0; j < len(b); j += 4096 {
			b[j] = byte(i)
		}
		keep = append(keep, b)
	}
	fmt.Println("used", len(keep))
	time.Sleep(time.Duration(number(args, 1, 0)) * time.Second)
	runtime.KeepAlive(keep)
	return 0
}

// threads returns how many threads these processes and this one have. Threads start and end during the count, so it
// returns the least of several counts.
func threads(all []*exec.Cmd) int {
	least := 1 << 30
	for range 5 {
		n := 0
		for _, pid := range append([]int{os.Getpid()}, pids(all)...) {
			tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid)) // 0 when the process has ended
			n += len(tasks)
		}
		least = min(least, n)
		time.Sleep(20 * time.Millisecond)
	}
	return least
}

func pids(all []*exec.Cmd) (list []int) {
	for _, c := range all {
		list = append(list, c.Process.Pid)
	}
	return list
}

// forks N starts N processes that sleep, and prints how many it could start,
// how many of them are alive then, and how many threads there are.
func forks(args []string) int {
	started := 0
	var first error
	var all []*exec.Cmd
	for range number(args, 0, 100) {
		c := exec.Command("/proc/self/exe", "sleep", "60")
		if err := c.Start(); err != nil {
			first = err
			break
		}
		all = append(all, c)
		started++
	}
	alive := 0
	for _, c := range all {
		if pid, err := syscall.Wait4(c.Process.Pid, nil, syscall.WNOHANG, nil); err == nil && pid == 0 {
			alive++
		}
	}
	fmt.Printf("started %d alive %d threads %d error %v again=%v\n", started, alive, threads(all), first, errors.Is(first, syscall.EAGAIN))
	for _, c := range all {
		_ = c.Process.Kill()
		_ = c.Wait()
	}
	return 0
}

func spin(args []string) int {
	end := time.Now().Add(time.Duration(number(args, 0, 1000)) * time.Millisecond)
	for time.Now().Before(end) {
	}
	return 0
}

// serve PORT [ADDRESS] answers every request, on all addresses or on one; /crash ends it.
func serve(args []string) int {
	port, address := number(args, 0, 8080), ""
	if len(args) > 1 {
		address = args[1]
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "hello", r.URL.Path) })
	mux.HandleFunc("/crash", func(http.ResponseWriter, *http.Request) { os.Exit(3) })
	mux.HandleFunc("/discard", func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	mux.HandleFunc("/zeros", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 1<<20)) })
	fmt.Println("serving", port)
	return fail(http.ListenAndServe(net.JoinHostPort(address, strconv.Itoa(port)), mux))
}

// dial ADDRESS prints whether a TCP connection can be made.
func dial(args []string) int {
	c, err := net.DialTimeout("tcp", args[0], time.Duration(number(args, 1, 2000))*time.Millisecond)
	if err != nil {
		return fail(err)
	}
	c.Close()
	fmt.Println("connected")
	return 0
}

func get(args []string) int {
	res, err := http.Get(args[0])
	if err != nil {
		return fail(err)
	}
	defer res.Body.Close()
	fmt.Println(res.Status)
	_, _ = io.Copy(os.Stdout, io.LimitReader(res.Body, 4096))
	return 0
}

// write PATH MIB
func write(args []string) int {
	f, err := os.Create(args[0])
	if err != nil {
		return fail(err)
	}
	b := make([]byte, 1<<20)
	for range number(args, 1, 1) {
		if _, err := f.Write(b); err != nil {
			return fail(err)
		}
	}
	fmt.Println("written")
	return 0
}

func read(args []string) int {
	b, err := os.ReadFile(args[0])
	if err != nil {
		return fail(err)
	}
	os.Stdout.Write(b)
	return 0
}

// put PATH TEXT returns when the file is durable.
func put(args []string) int {
	f, err := os.Create(args[0])
	if err != nil {
		return fail(err)
	}
	_, err = f.WriteString(args[1])
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fail(err)
	}
	return 0
}

func selfSignal(args []string) int {
	_ = syscall.Kill(os.Getpid(), syscall.Signal(number(args, 0, 9)))
	time.Sleep(time.Minute)
	return 0
}

// caps prints the lines of the status file about its capabilities and
// privileges.
func caps([]string) int {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return fail(err)
	}
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, "Cap") || strings.HasPrefix(line, "NoNewPrivs") {
			fmt.Print(line)
		}
	}
	return 0
}
