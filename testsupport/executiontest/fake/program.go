package fake

import (
	"cmp"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"

	"miren.dev/runtime/components/execution"
)

// program behaves as a command of the guest program and returns the exit code.
type program func(p *process) int

// program finds the function to run, or the exit code of the failure.
func (p *process) program() (program, int) {
	switch p.args[0] {
	case "/bin/guest":
	case "/etc/passwd":
		return nil, 126
	default:
		return nil, 127
	}
	if len(p.args) < 2 || programs[p.args[1]] == nil {
		return func(p *process) int { return 64 }, 0
	}
	return programs[p.args[1]], 0
}

var programs = map[string]program{
	"echo": func(p *process) int { fmt.Fprintln(p.stdout, strings.Join(p.args[2:], " ")); return 0 },
	"err":  func(p *process) int { fmt.Fprintln(p.stderr, strings.Join(p.args[2:], " ")); return 0 },
	"cat": func(p *process) int {
		if _, err := io.Copy(p.stdout, p.in); err != nil {
			return p.fail(err.Error())
		}
		return 0
	},
	"env":    env,
	"id":     id,
	"exit":   func(p *process) int { return p.number(2, 0) },
	"sleep":  sleep,
	"stub":   stub,
	"lines":  lines,
	"memory": memory,
	"forks":  forks,
	"spin":   spin,
	"serve":  serve,
	"dial":   dial,
	"get":    get,
	"write":  write,
	"read":   read,
	"signal": func(p *process) int { return 128 + p.number(2, 9) },
	"caps":   caps,
	"limits": limits,
	"flood":  flood,
}

func (p *process) fail(why string) int {
	fmt.Fprintln(p.stderr, "guest:", why)
	return 1
}

func (p *process) number(i, otherwise int) int {
	if i < len(p.args) {
		if n, err := strconv.Atoi(p.args[i]); err == nil {
			return n
		}
	}
	return otherwise
}

// wait waits and returns false if the process must end meanwhile.
func (p *process) wait(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-p.term:
	case <-p.killed:
	}
	return false
}

func env(p *process) int {
	all := map[string]string{"PATH": "/bin", "FROM": "image"}
	for _, list := range [][]string{p.box.spec().Env, p.box.claim().Env, p.env} {
		for _, kv := range list {
			k, v, _ := strings.Cut(kv, "=")
			all[k] = v
		}
	}
	for _, k := range keys(all) {
		fmt.Fprintf(p.stdout, "%s=%s\n", k, all[k])
	}
	return 0
}

func (p *process) hostname() string {
	return cmp.Or(p.box.claim().Hostname, p.box.spec().Hostname, p.box.spec().ID)
}

func id(p *process) int {
	uid := 0
	if u := cmp.Or(p.user, p.box.claim().User, p.box.spec().User); strings.HasPrefix(u, "app") || strings.HasPrefix(u, "1000") {
		uid = 1000
	}
	p.box.mu.Lock()
	p.box.pid++
	pid := p.box.pid
	p.box.mu.Unlock()
	fmt.Fprintf(p.stdout, "uid=%d gid=%d dir=%s host=%s pid=%d\n", uid, uid, cmp.Or(p.dir, p.box.claim().WorkDir, p.box.spec().WorkDir, "/home/app"), p.hostname(), pid)
	return 0
}

func sleep(p *process) int {
	fmt.Fprintln(p.stdout, "sleeping")
	if !p.wait(time.Duration(p.number(2, 3600)) * time.Second) {
		fmt.Fprintln(p.stdout, "told to stop")
	}
	return 0
}

// idle is a sandbox without a main process.
func idle(p *process) int {
	select {
	case <-p.term:
		return 143
	case <-p.killed:
		return p.dies()
	}
}

func stub(p *process) int {
	fmt.Fprintln(p.stdout, "sleeping")
	<-p.killed
	return p.dies()
}

func lines(p *process) int {
	for i := range p.number(2, 10) {
		out := p.stdout
		if i%2 == 1 {
			out = p.stderr
		}
		fmt.Fprintf(out, "line %d\n", i)
		if d := p.number(3, 0); d > 0 && !p.wait(time.Duration(d)*time.Millisecond) {
			return p.dies()
		}
	}
	return 0
}

// flood N prints N lines as fast as the reader accepts them.
func flood(p *process) int {
	for i := range p.number(2, 1000) {
		if _, err := fmt.Fprintf(p.stdout, "line %d\n", i); err != nil {
			return 1
		}
	}
	return 0
}

func memory(p *process) int {
	n := p.number(2, 1024)
	if int64(n)<<20 > p.box.memory() {
		p.oom = true
		return 137
	}
	fmt.Fprintln(p.stdout, "used", n)
	p.wait(time.Duration(p.number(3, 0)) * time.Second)
	return 0
}

func forks(p *process) int {
	n := p.number(2, 100)
	if limit := p.box.processes() - 2; n > limit {
		fmt.Fprintf(p.stdout, "started %d alive %d threads %d error no more again=true\n", limit, limit, limit)
	} else {
		fmt.Fprintf(p.stdout, "started %d alive %d threads %d error <nil> again=false\n", n, n, n)
	}
	return 0
}

func spin(p *process) int {
	d := time.Duration(p.number(2, 1000)) * time.Millisecond
	p.wait(d)
	p.box.mu.Lock()
	defer p.box.mu.Unlock()
	p.box.cpu += d * time.Duration(min(1000, p.box.spec().CPUMillis)) / 1000
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

func serve(p *process) int {
	port := p.number(2, 8080)
	c := closed(func() error { return nil })
	ended := make(chan int, 1)
	if p.box.address != "" {
		l, err := net.Listen("tcp", net.JoinHostPort(p.box.address, strconv.Itoa(port)))
		if err != nil {
			return p.fail(err.Error())
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
	p.box.mu.Lock()
	over := p.box.exit != nil
	if !over {
		p.box.ports[port] = c
	}
	p.box.mu.Unlock()
	if over {
		c.Close()
	}
	fmt.Fprintln(p.stdout, "serving", port)
	select {
	case code := <-ended:
		return code
	case <-p.term:
	case <-p.killed:
	}
	return p.dies()
}

func (b *box) listens(address string) bool {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	n, err := strconv.Atoi(port)
	b.mu.Lock()
	defer b.mu.Unlock()
	return err == nil && b.ports[n] != nil && (host == "localhost" || host == "127.0.0.1" || host == b.address)
}

func dial(p *process) int {
	if !p.box.listens(p.args[2]) {
		return p.fail("network is unreachable")
	}
	fmt.Fprintln(p.stdout, "connected")
	return 0
}

func get(p *process) int {
	u, err := url.Parse(p.args[2])
	if err != nil || !p.box.listens(u.Host) {
		return p.fail("connection refused")
	}
	fmt.Fprintf(p.stdout, "200 OK\nhello %s\n", u.Path)
	return 0
}

func write(p *process) int {
	n := int64(p.number(3, 1))
	b := p.box
	if b.spec().ReadOnlyRoot && !strings.HasPrefix(p.args[2], "/tmp/") {
		return p.fail("read-only file system")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.spec().DiskBytes > 0 && (b.written+n)<<20 > b.spec().DiskBytes {
		return p.fail("no space left on device")
	}
	b.written += n
	fmt.Fprintln(p.stdout, "written")
	return 0
}

func read(p *process) int {
	if p.args[2] != "/etc/hosts" {
		return p.fail("no such file or directory")
	}
	fmt.Fprintf(p.stdout, "127.0.0.1\tlocalhost\n%s\t%s\n", p.box.address, p.hostname())
	return 0
}

func limits(p *process) int {
	s := p.box.spec()
	fmt.Fprintf(p.stdout, "cpus=%d memory=%d disk=%d free=%d\n", (cmp.Or(p.box.claim().CPUMillis, s.CPUMillis)+999)/1000, s.MemoryBytes, s.DiskBytes, s.DiskBytes)
	return 0
}

func caps(p *process) int {
	s := p.box.spec()
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		bits := uint64(0)
		if s.Capabilities == execution.CapabilitiesDefault && (set == "CapBnd" || p.user == "" && (set == "CapPrm" || set == "CapEff")) {
			bits = 0x800405fb
		}
		fmt.Fprintf(p.stdout, "%s:\t%016x\n", set, bits)
	}
	fmt.Fprintln(p.stdout, "NoNewPrivs:\t1")
	return 0
}
