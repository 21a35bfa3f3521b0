package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"miren.dev/runtime/testsupport/wait"
)

// restClient calls the REST API of a server that is killed now and then.
type restClient struct {
	base, key string
	refused   atomic.Int64 // answers that said when to come again
	cut       atomic.Int64 // requests without an answer
}

func newRESTClient(base, key string) *restClient { return &restClient{base: base, key: key} }

// loadHTTP has a connection for each of the clients, which do not wait for each other.
var loadHTTP = &http.Client{Timeout: 5 * time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}

// pause waits between two attempts of a client, as clients do.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// call makes a request until it is answered, by 429 and 503 only after the time that the
// answer says. It decodes an answer of status 2xx into out. Another status is an error,
// and so is a refusal that does not say why and when to come again.
func (c *restClient) call(ctx context.Context, method, path, idempotency string, in, out any) (status int, err error) {
	var body []byte
	switch v := in.(type) {
	case nil:
	case []byte:
		body = v
	default:
		if body, err = json.Marshal(in); err != nil {
			return 0, err
		}
	}
	for {
		req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
		if err != nil {
			return 0, err
		}
		req.Header.Set("X-API-Key", c.key)
		if _, raw := in.([]byte); in != nil && !raw {
			req.Header.Set("Content-Type", "application/json")
		}
		if idempotency != "" {
			req.Header.Set("Idempotency-Key", idempotency)
		}
		again := 100 * time.Millisecond
		resp, err := loadHTTP.Do(req)
		var text []byte
		if err == nil {
			text, err = io.ReadAll(resp.Body)
			resp.Body.Close()
		}
		switch {
		case ctx.Err() != nil:
			return 0, ctx.Err()
		case err != nil: // the server was killed
			c.cut.Add(1)
		case resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable:
			seconds, err := strconv.Atoi(resp.Header.Get("Retry-After"))
			var problem struct{ Class string }
			if e := json.Unmarshal(text, &problem); e != nil || err != nil || seconds < 1 || problem.Class != "resource_exhausted" && problem.Class != "unavailable" {
				return resp.StatusCode, fmt.Errorf("%s %s: a refusal with Retry-After %q: %s", method, path, resp.Header.Get("Retry-After"), text)
			}
			c.refused.Add(1)
			again = time.Duration(seconds) * time.Second
		case resp.StatusCode >= 300:
			return resp.StatusCode, fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, text)
		case out == nil:
			return resp.StatusCode, nil
		default:
			return resp.StatusCode, json.Unmarshal(text, out)
		}
		if err := pause(ctx, again); err != nil {
			return 0, err
		}
	}
}

// workers runs f for 0 to n-1, some at the same time, until the first error.
func (l *loadTest) workers(ctx context.Context, what string, atOnce, n int, f func(i int) error) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range atOnce {
		wg.Go(func() {
			for ctx.Err() == nil && !l.t.Failed() {
				i := int(next.Add(1) - 1)
				if i >= n {
					return
				}
				if err := f(i); err != nil {
					l.t.Errorf("%s %d: %v", what, i, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// How a session of the load ends.
const (
	byClient = "user" // reason of the end
	byTime   = "ttl"
)

// makeSessions makes the sessions, more at the same time than the key permits. Each has a
// file, which is there also when the server was killed meanwhile; then it is deleted, or
// ends by itself.
func (l *loadTest) makeSessions(ctx context.Context) {
	l.workers(ctx, "session", l.size.atOnce+4, l.size.sessions, func(i int) error {
		end, request := byClient, map[string]any{"template": "base", "labels": map[string]string{"load": strconv.Itoa(i)}}
		if i%2 == 0 {
			request["memory_bytes"] = 256 << 20 // of a size of its own
		}
		if i%10 == 9 {
			end, request["ttl_seconds"] = byTime, 5
		}
		var session struct{ ID string }
		if _, err := l.agent.call(ctx, http.MethodPost, "/sessions?wait=120", fmt.Sprintf("session-%d", i), request, &session); err != nil {
			return err
		}
		l.mu.Lock()
		_, twice := l.sessions[session.ID]
		l.sessions[session.ID] = end
		l.mu.Unlock()
		if twice {
			return fmt.Errorf("another request has %s too", session.ID)
		}
		if n := int(l.made.Add(1)); n == l.size.sessions/2 {
			if err := l.crash("the sessions", n, l.size.sessions); err != nil {
				return err
			}
		}
		if end == byTime {
			return nil
		}
		path, text := "/sessions/"+session.ID, []byte(fmt.Sprintf("file %d", i))
		if _, err := l.agent.call(ctx, http.MethodPut, path+"/files/content?path=file", "", text, nil); err != nil {
			return err
		}
		var command struct {
			ExitCode int `json:"exit_code"`
			Stdout   string
		}
		run := map[string]any{"command": []string{"cat", "file"}}
		if _, err := l.agent.call(ctx, http.MethodPost, path+"/commands", "", run, &command); err != nil {
			return err
		}
		if command.Stdout != string(text) || command.ExitCode != 0 {
			return fmt.Errorf("its file is %+v", command)
		}
		status, err := l.agent.call(ctx, http.MethodDelete, path, "", nil, nil)
		if status == http.StatusNotFound { // it was deleted before the server was killed
			return nil
		}
		return err
	})
}

// Executions: most call the receiver; some fail, and some run in a sandbox that stays.
const (
	inBox  = 1 // of ten
	failed = 2 // of ten
)

// submit submits the executions.
func (l *loadTest) submit(ctx context.Context) {
	const leaves = `; echo "$EXECUTION_ID"; printf %s "$EXECUTION_ID" >"$EXECUTION_RESULT"`
	l.workers(ctx, "execution", 8, l.size.executions, func(i int) error {
		path, request := "/executions", map[string]any{"template": "base", "labels": map[string]string{"load": strconv.Itoa(i)}}
		script := "curl -fsS --retry 3 -o /dev/null http://" + effects + "/?id=$EXECUTION_ID || exit 1" + leaves
		switch i % 10 {
		case inBox:
			path = "/sessions/" + l.boxes[i/10%len(l.boxes)].id + "/execute"
			delete(request, "template")
			delete(request, "labels")
			script = `echo "$EXECUTION_ID" >>/home/user/effects` + leaves
		case failed:
			script += "; exit 3"
		}
		request["command"] = []string{"bash", "-c", script}
		var execution struct{ ID string }
		if _, err := l.user.call(ctx, http.MethodPost, path, fmt.Sprintf("execution-%d", i), request, &execution); err != nil {
			return err
		}
		l.mu.Lock()
		_, twice := l.submits[execution.ID]
		l.submits[execution.ID] = i
		l.mu.Unlock()
		if twice {
			return fmt.Errorf("another submission has %s too", execution.ID)
		}
		if n := int(l.submitted.Add(1)); n == l.size.executions/2 {
			return l.crash("the submissions", n, l.size.executions)
		}
		return nil
	})
}

// box is a sandbox that stays, with a process that goes on without anybody.
type box struct{ id, name, process string }

func (l *loadTest) makeBoxes() {
	for i := range max(2, l.size.clients/10) {
		b := &box{name: fmt.Sprintf("box-%d", i)}
		b.id = strings.TrimSpace(l.r(l.t, "", "sandbox", "create", "--template", "base", "--name", b.name, "--ttl", "12h"))
		b.process = strings.TrimSpace(l.r(l.t, "", "sandbox", "exec", "--detach", b.id, "--", "bash", "-c",
			`n=0; while sleep 0.2; do n=$((n+1)); echo "$$ $n" >>/home/user/beats; done`))
		l.boxes = append(l.boxes, b)
	}
}

// sshLoad is clients that have lines echoed by sandboxes, and connect again when they are cut off.
type sshLoad struct {
	clients []*sshEcho
	done    sync.WaitGroup
}

type sshEcho struct {
	name  string
	lines atomic.Int64 // echoed
	cut   atomic.Int64 // connections that ended
}

func (l *loadTest) openSSH(ctx context.Context) *sshLoad {
	c := newSSHClient(l.t, l.server)
	l.r(l.t, "", "ssh", "key", "add", filepath.Join(c.dir, "key.pub"), "--name", "alice")
	if res := c.try(l.t, "ssh", l.boxes[0].name+"@sandbox", "true"); res.Code != 0 { // and the host key is known
		l.t.Fatalf("ssh: %s", res)
	}
	load := &sshLoad{}
	for i := range l.size.clients {
		e := &sshEcho{name: l.boxes[i%len(l.boxes)].name}
		load.clients = append(load.clients, e)
		load.done.Go(func() {
			for ctx.Err() == nil && !l.t.Failed() {
				if err := e.connection(ctx, c); err != nil && ctx.Err() == nil {
					l.t.Errorf("ssh %d: %v", i, err)
				}
				e.cut.Add(1)
				_ = pause(ctx, 200*time.Millisecond)
			}
		})
	}
	load.eachWorks(l.t)
	return load
}

// connection has lines echoed until the connection ends. An answer other than the line is
// an error; the end is none.
func (e *sshEcho) connection(ctx context.Context, c *sshClient) error {
	cmd := exec.CommandContext(ctx, "ssh", "-F", filepath.Join(c.dir, "config"), e.name+"@sandbox", "cat")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewReader(out)
	var wrong error
	for wrong == nil {
		want := fmt.Sprintf("line %d\n", e.lines.Load())
		if _, err := io.WriteString(in, want); err != nil {
			break
		}
		got, err := lines.ReadString('\n')
		if err != nil {
			break
		}
		if got != want {
			wrong = fmt.Errorf("%q came for %q", got, want)
		}
		e.lines.Add(1)
		if pause(ctx, 100*time.Millisecond) != nil {
			break
		}
	}
	in.Close()
	_ = cmd.Wait() // the exit code says more
	if code := cmd.ProcessState.ExitCode(); wrong == nil && ctx.Err() == nil && code != 255 {
		wrong = fmt.Errorf("exit code %d: %s", code, stderr.String())
	}
	return wrong
}

// eachWorks waits until each client has had two more lines echoed, the last of which was
// sent after this call.
func (s *sshLoad) eachWorks(t *testing.T) {
	t.Helper()
	want := make([]int64, len(s.clients))
	for i, e := range s.clients {
		want[i] = e.lines.Load() + 2
	}
	wait.NoError(t, "every SSH client is served", func() error {
		for i, e := range s.clients {
			if n := e.lines.Load(); n < want[i] {
				return fmt.Errorf("client %d has had %d lines echoed", i, n)
			}
		}
		return nil
	}, wait.Within(3*time.Minute))
}

func (s *sshLoad) wait() { s.done.Wait() }

// loadEvent is an event as the stream and webhooks have it.
type loadEvent struct {
	ID   string
	Type string
	Data struct {
		Kind, ID, Phase, Reason string
		Labels                  map[string]string
		Attempt                 int
	}
}

// eventLog follows the events of a project, also when the server is killed.
type eventLog struct {
	mu  sync.Mutex
	all []loadEvent
}

func followEvents(t *testing.T, c *restClient) *eventLog {
	t.Helper()
	log := &eventLog{}
	ctx, cancel := context.WithCancel(t.Context())
	began := time.Now().UTC().Format(time.RFC3339Nano)
	once := func() error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/events/stream?since="+began, nil)
		if err != nil {
			return err
		}
		req.Header.Set("X-API-Key", c.key)
		if all := log.list(); len(all) > 0 {
			req.Header.Set("Last-Event-ID", all[len(all)-1].ID)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return nil // the server was killed
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusServiceUnavailable {
			return errors.New(resp.Status)
		}
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			data, ok := strings.CutPrefix(lines.Text(), "data: ")
			var e loadEvent
			if !ok || json.Unmarshal([]byte(data), &e) != nil || e.ID == "" {
				continue
			}
			log.mu.Lock()
			log.all = append(log.all, e)
			log.mu.Unlock()
		}
		return nil
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if err := once(); err != nil {
				t.Errorf("the stream of events: %v", err)
				return
			}
			_ = pause(ctx, 100*time.Millisecond)
		}
	}()
	t.Cleanup(func() {
		cancel()
		wait.Receive(t, "the end of the stream", done)
	})
	return log
}

func (l *eventLog) list() []loadEvent {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all[:len(l.all):len(l.all)]
}

// executionsEnded returns how many executions of the load have ended.
func (l *eventLog) executionsEnded() (n int) {
	for _, e := range l.list() {
		if e.Data.Kind == "execution" && e.Type != "execution.running" {
			n++
		}
	}
	return n
}
