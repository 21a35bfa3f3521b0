package trust

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"
)

// pollEvery is the time between two reads of the file of rules.
const pollEvery = 2 * time.Second

// Run puts a changed file of rules into force, until ctx ends. A file that cannot be read,
// or has a wrong rule, changes nothing: that is logged once, and Err returns it.
func (r *Rules) Run(ctx context.Context, log *slog.Logger) error {
	if r.path == "" {
		return nil
	}
	t := time.NewTicker(pollEvery)
	defer t.Stop()
	var last string // the error that was logged
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		changed := r.poll()
		switch err := r.Err(); {
		case err != nil && err.Error() != last:
			last = err.Error()
			log.Error("the rules of trust were not changed, those read before stay in force", "file", r.path, "error", err)
		case err == nil && (changed || last != ""):
			last = ""
			log.Info("the rules of trust were read again", "file", r.path, "rules", len(r.now.Load().rules))
		}
	}
}

// Err returns why the file of rules is not in force as it is; nil: it is.
func (r *Rules) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// Path is the file of rules; "": there is none.
func (r *Rules) Path() string { return r.path }

// poll reads the file, and reports whether other rules are in force now. A change is taken
// when two reads agree, since a program may be writing the file.
func (r *Rules) poll() bool {
	b, err := r.read()
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err != nil:
		r.text, r.pending, r.err = nil, nil, err
		return false
	case r.text != nil && bytes.Equal(b, r.text):
		r.pending = nil
		return false
	case r.pending == nil || !bytes.Equal(b, r.pending):
		r.pending = b
		return false
	}
	return r.useLocked(b) == nil
}

func (r *Rules) use(b []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.useLocked(b)
}

// useLocked puts the rules of a text into force; on an error those before stay.
func (r *Rules) useLocked(b []byte) error {
	set, err := parse(r.path, b, r.now.Load())
	r.text, r.pending, r.err = b, nil, err
	if err == nil {
		r.now.Store(set)
	}
	return err
}

// read returns the text of the file, which is not nil.
func (r *Rules) read() ([]byte, error) {
	f, err := os.Open(r.path)
	var b []byte
	if err == nil {
		defer f.Close()
		b, err = io.ReadAll(io.LimitReader(f, maxFile+1))
	}
	switch {
	case err != nil:
		return nil, broken(r.path, "write it, or give api.trust_file the path of one", "%v", err)
	case len(b) > maxFile:
		return nil, broken(r.path, fmt.Sprintf("make it smaller than %d bytes", maxFile), "it is too large")
	}
	return b, nil
}
