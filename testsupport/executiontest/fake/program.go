package fake

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/components/mock"
)

// program finds what a process executes.
func program(g *mock.Guest) (mock.Program, error) {
	if len(g.Args) == 0 {
		return sleep, nil // as the image's entrypoint and command do
	}
	switch g.Args[0] {
	case "/bin/guest":
	case "/etc/passwd":
		return nil, mock.CannotRun(g.Args[0], 126)
	default:
		return nil, mock.CannotRun(g.Args[0], 127)
	}
	if len(g.Args) < 2 || programs[g.Args[1]] == nil {
		return func(*mock.Guest) int { return 64 }, nil
	}
	return programs[g.Args[1]], nil
}

var programs = map[string]mock.Program{
	"echo": func(p *mock.Guest) int { fmt.Fprintln(p.Stdout, strings.Join(p.Args[2:], " ")); return 0 },
	"err":  func(p *mock.Guest) int { fmt.Fprintln(p.Stderr, strings.Join(p.Args[2:], " ")); return 0 },
	"cat": func(p *mock.Guest) int {
		if _, err := io.Copy(p.Stdout, p.Stdin); err != nil {
			return fail(p, err.Error())
		}
		return 0
	},
	"env":    env,
	"id":     id,
	"exit":   func(p *mock.Guest) int { return number(p, 2, 0) },
	"sleep":  sleep,
	"stub":   stub,
	"lines":  lines,
	"memory": memory,
	"forks":  forks,
	"spin":   spin,
	"serve":  serve,
	"mapped": func(p *mock.Guest) int { return p.OOMKill() },
	"dial":   dial,
	"get":    get,
	"write":  write,
	"read":   read,
	"signal": func(p *mock.Guest) int { return 128 + number(p, 2, 9) },
	"caps":   caps,
	"limits": limits,
	"flood":  flood,
}

func fail(p *mock.Guest, why string) int {
	fmt.Fprintln(p.Stderr, "guest:", why)
	return 1
}

func number(p *mock.Guest, i, otherwise int) int {
	if i < len(p.Args) {
		if n, err := strconv.Atoi(p.Args[i]); err == nil {
			return n
		}
	}
	return otherwise
}

func env(p *mock.Guest) int {
	all := map[string]string{"PATH": "/bin", "FROM": "image"}
	maps.Copy(all, p.Env())
	for _, k := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(p.Stdout, "%s=%s\n", k, all[k])
	}
	return 0
}

func hostname(p *mock.Guest) string {
	return cmp.Or(p.Claim().Hostname, p.Spec().Hostname, p.Spec().ID)
}

func id(p *mock.Guest) int {
	uid := 0
	if u := p.User(); strings.HasPrefix(u, "app") || strings.HasPrefix(u, "1000") {
		uid = 1000
	}
	fmt.Fprintf(p.Stdout, "uid=%d gid=%d dir=%s host=%s pid=%d\n", uid, uid, cmp.Or(p.WorkDir(), "/home/app"), hostname(p), p.PID())
	return 0
}

func sleep(p *mock.Guest) int {
	fmt.Fprintln(p.Stdout, "sleeping")
	if !p.Wait(time.Duration(number(p, 2, 3600)) * time.Second) {
		fmt.Fprintln(p.Stdout, "told to stop")
	}
	return 0
}

func stub(p *mock.Guest) int {
	fmt.Fprintln(p.Stdout, "sleeping")
	<-p.Killed()
	return p.Dies()
}

func lines(p *mock.Guest) int {
	for i := range number(p, 2, 10) {
		out := p.Stdout
		if i%2 == 1 {
			out = p.Stderr
		}
		fmt.Fprintf(out, "line %d\n", i)
		if d := number(p, 3, 0); d > 0 && !p.Wait(time.Duration(d)*time.Millisecond) {
			return p.Dies()
		}
	}
	return 0
}

// flood N prints N lines as fast as the reader accepts them.
func flood(p *mock.Guest) int {
	for i := range number(p, 2, 1000) {
		if _, err := fmt.Fprintf(p.Stdout, "line %d\n", i); err != nil {
			return 1
		}
	}
	return 0
}

func memory(p *mock.Guest) int {
	n := number(p, 2, 1024)
	if int64(n)<<20 > p.Memory() {
		return p.OutOfMemory()
	}
	fmt.Fprintln(p.Stdout, "used", n)
	p.Wait(time.Duration(number(p, 3, 0)) * time.Second)
	return 0
}

func forks(p *mock.Guest) int {
	n := number(p, 2, 100)
	if limit := int(p.Processes()) - 2; n > limit {
		fmt.Fprintf(p.Stdout, "started %d alive %d threads %d error no more again=true\n", limit, limit, limit)
	} else {
		fmt.Fprintf(p.Stdout, "started %d alive %d threads %d error <nil> again=false\n", n, n, n)
	}
	return 0
}

func spin(p *mock.Guest) int {
	d := time.Duration(number(p, 2, 1000)) * time.Millisecond
	p.Wait(d)
	p.UseCPU(d * time.Duration(min(1000, p.Spec().CPUMillis)) / 1000)
	return 0
}

type closed func() error

func (c closed) Close() error { return c() }

// dump answers with the request.
func dump(w http.ResponseWriter, r *http.Request) {
	b, err := httputil.DumpRequest(r, true)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	_, _ = w.Write(b) // the client may have gone
}

// echoSocket sends each message of a WebSocket back.
func echoSocket(w http.ResponseWriter, r *http.Request) {
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return // it has answered
	}
	defer ws.CloseNow()
	for {
		typ, b, err := ws.Read(r.Context())
		if err != nil || ws.Write(r.Context(), typ, b) != nil {
			return
		}
	}
}

func serve(p *mock.Guest) int {
	port := number(p, 2, 8080)
	c := closed(func() error { return nil })
	ended := make(chan int, 1)
	local := len(p.Args) > 3 && p.Args[3] == "127.0.0.1"
	if address := p.Address(); address != "" && !local {
		l, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(port)))
		if err != nil {
			return fail(p, err.Error())
		}
		mux := http.NewServeMux()
		mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "hello", r.URL.Path) })
		mux.HandleFunc("/request", dump)
		mux.HandleFunc("/socket", echoSocket)
		mux.HandleFunc("/crash", func(http.ResponseWriter, *http.Request) { ended <- 3 })
		srv := &http.Server{Handler: mux}
		go srv.Serve(l)
		c = srv.Close
	}
	if local {
		p.ListenLocal(port)
	} else {
		p.Listen(port, c)
	}
	fmt.Fprintln(p.Stdout, "serving", port)
	select {
	case code := <-ended:
		return code
	case <-p.Terminated():
	case <-p.Killed():
	}
	return p.Dies()
}

func listens(p *mock.Guest, address string) bool {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	n, err := strconv.Atoi(port)
	return err == nil && p.Listens(n) && (host == "localhost" || host == "127.0.0.1" || host == p.Address())
}

func dial(p *mock.Guest) int {
	if !listens(p, p.Args[2]) {
		return fail(p, "network is unreachable")
	}
	fmt.Fprintln(p.Stdout, "connected")
	return 0
}

func get(p *mock.Guest) int {
	u, err := url.Parse(p.Args[2])
	if err != nil || !listens(p, u.Host) {
		return fail(p, "connection refused")
	}
	fmt.Fprintf(p.Stdout, "200 OK\nhello %s\n", u.Path)
	return 0
}

func write(p *mock.Guest) int {
	n := int64(number(p, 3, 1))
	if p.Spec().ReadOnlyRoot && !strings.HasPrefix(p.Args[2], "/tmp/") {
		return fail(p, "read-only file system")
	}
	if err := p.Reserve(n << 20); err != nil {
		return fail(p, err.Error())
	}
	fmt.Fprintln(p.Stdout, "written")
	return 0
}

func read(p *mock.Guest) int {
	if p.Args[2] == "/etc/hosts" {
		fmt.Fprintf(p.Stdout, "127.0.0.1\tlocalhost\n%s\t%s\n", p.Address(), hostname(p))
		return 0
	}
	r, err := p.Files().Read(context.Background(), p.Args[2], 0, 0)
	if err != nil {
		return fail(p, err.Error())
	}
	defer r.Close()
	if _, err := io.Copy(p.Stdout, r); err != nil {
		return fail(p, err.Error())
	}
	return 0
}

func limits(p *mock.Guest) int {
	s := p.Spec()
	fmt.Fprintf(p.Stdout, "cpus=%d memory=%d disk=%d free=%d\n", (cmp.Or(p.Claim().CPUMillis, s.CPUMillis)+999)/1000, s.MemoryBytes, s.DiskBytes, s.DiskBytes)
	return 0
}

func caps(p *mock.Guest) int {
	s := p.Spec()
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		bits := uint64(0)
		if s.Capabilities == execution.CapabilitiesDefault && (set == "CapBnd" || p.User() == "" && (set == "CapPrm" || set == "CapEff")) {
			bits = 0x800405fb
		}
		fmt.Fprintf(p.Stdout, "%s:\t%016x\n", set, bits)
	}
	fmt.Fprintln(p.Stdout, "NoNewPrivs:\t1")
	return 0
}
