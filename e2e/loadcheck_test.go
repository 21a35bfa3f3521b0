package e2e

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"miren.dev/runtime/testsupport/wait"
)

// failures is how often the receiver fails an event at most, so that the test does not
// wait for the longest pauses.
const failures = 3

// webhook fails half of the requests, as the first bytes of a hash say: by status, by
// refusing until later, by closing the connection, and after the request was read.
func (r *loadReceiver) webhook(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil { // the server was killed
		return
	}
	id, at := req.Header.Get("webhook-id"), req.Header.Get("webhook-timestamp")
	r.mu.Lock()
	defer r.mu.Unlock()
	secret, _ := r.secret.Load().(string)
	key, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	h := hmac.New(sha256.New, key)
	fmt.Fprintf(h, "%s.%s.%s", id, at, body)
	if secret != "" && req.Header.Get("webhook-signature") != "v1,"+base64.StdEncoding.EncodeToString(h.Sum(nil)) {
		r.problems = append(r.problems, "a wrong signature of "+string(body))
	}
	if before, ok := r.bodies[id]; ok && before != string(body) {
		r.problems = append(r.problems, fmt.Sprintf("two events with the id %s: %s and %s", id, before, body))
	}
	r.bodies[id] = string(body)
	r.seen[id]++
	dice := sha256.Sum256([]byte(fmt.Sprint(id, r.seen[id])))
	if dice[0]%2 == 0 || r.seen[id] > failures {
		r.accepted[id] = append(r.accepted[id], time.Now())
		return
	}
	r.failed++
	switch dice[1] % 4 {
	case 0:
		w.WriteHeader(http.StatusInternalServerError)
	case 1:
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusTooManyRequests)
	case 2:
		http.Redirect(w, req, r.url, http.StatusFound)
	default:
		if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
			conn.Close()
		}
	}
}

// checkExecutions: each has one end, recorded once, in the list once; its effect came at
// least once and for each attempt at most once; only kills interrupted attempts.
func (l *loadTest) checkExecutions() {
	t := l.t
	var list []executionShown
	l.json(t, &list, "execution", "list", "--limit", fmt.Sprint(2*l.size.executions))
	shown := map[string]executionShown{}
	for _, x := range list {
		if _, ok := shown[x.ID]; ok {
			t.Errorf("%s is in the list twice", x.ID)
		}
		shown[x.ID] = x
	}
	if len(l.submits) != l.size.executions || len(shown) != l.size.executions+1 {
		t.Errorf("%d executions were accepted of %d, %d are there", len(l.submits), l.size.executions, len(shown))
	}
	inBoxes := map[string]int{}
	for _, b := range l.boxes {
		for id := range strings.FieldsSeq(l.r(t, "", "sandbox", "exec", b.id, "--", "cat", "/home/user/effects")) {
			inBoxes[id]++
		}
	}
	l.receive.mu.Lock()
	effects := l.receive.effects
	l.receive.mu.Unlock()
	interrupted := 0
	for id, i := range l.submits {
		x, ok := shown[id]
		if !ok {
			t.Errorf("%s was accepted and is lost", id)
			continue
		}
		want, count := "succeeded", effects[id]
		switch i % 10 {
		case inBox:
			count = inBoxes[id]
		case failed:
			want = "failed"
		}
		attempts := x.Status.Attempts
		cut := slices.IndexFunc(attempts, func(a attemptShown) bool { return a.Outcome != "interrupted" })
		if cut < 0 {
			cut = len(attempts)
		}
		interrupted += cut
		if cut == 3 && len(attempts) == 3 && x.Status.Outcome == "interrupted" { // the server was killed in each
			l.givenUp[id] = true
			continue
		}
		if x.Status.Phase != "ended" || x.Status.Outcome != want || x.Status.Attempt != len(attempts) || cut != len(attempts)-1 || attempts[cut].Outcome != want {
			t.Errorf("execution %d should have %s: %+v", i, want, x)
		}
		if count < 1 || count > len(attempts) {
			t.Errorf("execution %d, %s, had its effect %d times in %d attempts", i, id, count, len(attempts))
		}
	}
	for id := range effects {
		if _, ok := l.submits[id]; !ok {
			t.Errorf("an execution %s was not accepted, and had an effect", id)
		}
	}
	t.Logf("%d attempts were interrupted, %d executions by each of three", interrupted, len(l.givenUp))
	if t.Failed() {
		return
	}
	l.workers(t.Context(), "the result of execution", 8, len(list), func(n int) error {
		x := list[n]
		i, ok := l.submits[x.ID]
		if !ok || x.Status.Outcome == "interrupted" {
			return nil
		}
		var res struct {
			Stdout, Result string
			Execution      struct {
				ExitCode *int `json:"exit_code"`
			}
		}
		if _, err := l.user.call(t.Context(), http.MethodGet, "/executions/"+x.ID+"/result", "", nil, &res); err != nil {
			return err
		}
		code := 0
		if i%10 == failed {
			code = 3
		}
		if res.Stdout != x.ID+"\n" || res.Result != x.ID || res.Execution.ExitCode == nil || *res.Execution.ExitCode != code {
			return fmt.Errorf("%s left %+v", x.ID, res)
		}
		return nil
	})
}

// checkBoxes: the processes of the sandboxes that stay went on, each as one process.
func (l *loadTest) checkBoxes() {
	for _, b := range l.boxes {
		beats := func() (process string, n int) {
			for line := range strings.Lines(l.r(l.t, "", "sandbox", "exec", b.id, "--", "cat", "/home/user/beats")) {
				p, number, _ := strings.Cut(strings.TrimSpace(line), " ")
				if process == "" {
					process = p
				}
				if n++; p != process || number != fmt.Sprint(n) {
					l.t.Fatalf("the process in %s: beat %d is %q, of process %s", b.name, n, line, process)
				}
			}
			return process, n
		}
		_, n := beats()
		wait.For(l.t, "the process in "+b.name+" goes on", func() bool { _, now := beats(); return now > n }, wait.Every(200*time.Millisecond))
		if out := l.r(l.t, "", "sandbox", "ps", b.id); !strings.Contains(out, b.process) {
			l.t.Errorf("the process %s of %s is not listed: %s", b.process, b.name, out)
		}
	}
}

// checkSessions: each that was acknowledged has the end that it should have, and none was
// made without.
func (l *loadTest) checkSessions() {
	t := l.t
	if n := len(l.sessions); n != l.size.sessions {
		t.Errorf("%d sessions were acknowledged of %d", n, l.size.sessions)
	}
	t.Logf("the sessions' client was refused until later %d times, and cut off %d times; that of executions %d and %d times",
		l.agent.refused.Load(), l.agent.cut.Load(), l.user.refused.Load(), l.user.cut.Load())
	if l.agent.refused.Load() == 0 {
		t.Error("no session was refused by the bound of the key")
	}
	wait.NoError(t, "every session has its end", func() error {
		type seen struct{ running, ended int }
		by, reasons := map[string]seen{}, map[string]string{}
		for _, e := range l.events.list() {
			if e.Data.Labels["load"] == "" || e.Data.Kind != "sandbox" {
				continue
			}
			s := by[e.Data.ID]
			switch e.Type {
			case "sandbox.running":
				s.running++
			case "sandbox.ended":
				s.ended++
				reasons[e.Data.ID] = e.Data.Reason
			default:
				t.Fatalf("%+v", e)
			}
			by[e.Data.ID] = s
		}
		for id := range by {
			if _, ok := l.sessions[id]; !ok {
				t.Fatalf("session %s was made, and nobody knows it", id)
			}
		}
		for id, end := range l.sessions {
			if s := by[id]; s != (seen{1, 1}) {
				return fmt.Errorf("session %s: %+v", id, s)
			}
			if reason := reasons[id]; reason != end {
				t.Fatalf("session %s ended by %q, want %q", id, reason, end)
			}
		}
		return nil
	}, wait.Within(2*time.Minute), wait.Every(100*time.Millisecond))
	var left struct {
		Sessions []struct{ ID, State string }
	}
	if _, err := l.agent.call(t.Context(), http.MethodGet, "/sessions?state=running&limit=500", "", nil, &left); err != nil {
		t.Fatal(err)
	}
	for _, s := range left.Sessions {
		if _, ok := l.sessions[s.ID]; ok {
			t.Errorf("session %s is listed as running", s.ID)
		}
	}
}

// checkEvents: the stream has each event once, with the ends of all executions; the
// receiver accepted each; and only what it accepted when the server was killed came again.
func (l *loadTest) checkEvents() {
	t := l.t
	ids, what := map[string]bool{}, map[string]int{}
	for _, e := range l.events.list() {
		if ids[e.ID] {
			t.Errorf("event %s came twice", e.ID)
		}
		ids[e.ID] = true
		what[e.Type+" "+e.Data.ID]++
	}
	for id, i := range l.submits {
		want := "execution.succeeded "
		if i%10 == failed || l.givenUp[id] {
			want = "execution.failed "
		}
		if n, m := what["execution.succeeded "+id], what["execution.failed "+id]; n+m != 1 || what[want+id] != 1 {
			t.Errorf("execution %d, %s: %d events of success and %d of failure", i, id, n, m)
		}
	}
	r := l.receive
	wait.NoError(t, "every event is accepted", func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		for id := range ids {
			if len(r.accepted[id]) == 0 {
				return fmt.Errorf("%s is not, %d of %d are", id, len(r.accepted), len(ids))
			}
		}
		return nil
	}, wait.Within(20*time.Minute), wait.Every(100*time.Millisecond))
	var pending []struct{ ID string }
	wait.NoError(t, "no delivery waits", func() error {
		if l.json(t, &pending, "webhook", "deliveries", "all", "--phase", "pending"); len(pending) > 0 {
			return fmt.Errorf("%d do", len(pending))
		}
		return nil
	}, wait.Within(2*time.Minute), wait.Every(time.Second))
	if l.json(t, &pending, "webhook", "deliveries", "all", "--phase", "dead"); len(pending) > 0 {
		t.Errorf("%d deliveries are dead", len(pending))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.problems {
		t.Error(p)
	}
	again := 0
	for id, at := range r.accepted {
		if len(at) == 1 {
			continue
		}
		again++
		if !slices.ContainsFunc(l.kills, func(k time.Time) bool { return at[0].After(k.Add(-recorded)) && at[0].Before(k.Add(recorded)) }) {
			t.Errorf("event %s was accepted at %s and again at %s, the kills were at %s", id, at[0], at[1:], l.kills)
		}
	}
	requests := 0
	for _, n := range r.seen {
		requests += n
	}
	t.Logf("%d events in %d requests, %d of them failed, %d accepted again after a kill", len(r.accepted), requests, r.failed, again)
	if again > underWay*len(l.kills) {
		t.Errorf("%d events were accepted again after %d kills", again, len(l.kills))
	}
}

const (
	underWay = 6               // webhook requests of a project at the same time
	recorded = 5 * time.Second // within it an accepted event is recorded
)
