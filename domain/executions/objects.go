package executions

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/fxamacker/cbor/v2"

	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Objects keeps what is too large for entities: requests, and the output of
// attempts. Keys begin with the minute of the submission and the id of the
// execution, so that the oldest ones come first.
type Objects interface {
	// Get returns an object; NotFound if there is none.
	Get(ctx context.Context, key string) ([]byte, error)
	// Create makes an object durable; AlreadyExists if there is one with the key.
	Create(ctx context.Context, key string, data []byte) error
	// Delete deletes an object; that there is none is no error.
	Delete(ctx context.Context, key string) error
	// List yields the objects in the order of their keys, and stops after the first
	// error.
	List(ctx context.Context) iter.Seq2[Object, error]
}

// Object is an object of a list.
type Object struct {
	Key  string
	Size int64 // bytes
}

// minuteFormat is that of the first part of keys.
const minuteFormat = "20060102T1504"

// prefix returns what the keys of an execution's objects begin with. It is
// another one for each submission: an earlier one of the same id may have left
// its request.
func prefix(eid id.Execution, now time.Time) string {
	return now.UTC().Format(minuteFormat) + "/" + string(eid) + "/" + string(schema.NewID("s"))
}

// Owner returns the minute and the execution that a key names; ok is false for a
// key of anything else.
func Owner(key string) (submitted time.Time, eid id.Execution, ok bool) {
	minute, rest, _ := strings.Cut(key, "/")
	name, _, found := strings.Cut(rest, "/")
	submitted, err := time.Parse(minuteFormat, minute)
	return submitted, id.Execution(name), err == nil && found
}

// Output is what an attempt left.
type Output struct {
	Stdout          []byte `cbor:"1,keyasint,omitempty"`
	Stderr          []byte `cbor:"2,keyasint,omitempty"`
	Result          []byte `cbor:"3,keyasint,omitempty"`
	StdoutTruncated bool   `cbor:"4,keyasint,omitempty"`
	StderrTruncated bool   `cbor:"5,keyasint,omitempty"`
	ResultTruncated bool   `cbor:"6,keyasint,omitempty"`
}

// readOutput returns the output with a key. NotFound if there is none.
func readOutput(ctx context.Context, o Objects, key string) (*Output, error) {
	var out Output
	return &out, read(ctx, o, key, &out)
}

// WriteOutput keeps the output of an attempt, and returns its key. It may be
// repeated with the same output.
func WriteOutput(ctx context.Context, o Objects, e *execution.Execution, out *Output) (key string, err error) {
	key = fmt.Sprintf("%s/output-%d", e.Spec.Objects, e.Status.Attempt)
	return key, write(ctx, o, key, out)
}

// requestKey is the key of the request of an execution.
func requestKey(e *execution.Execution) string { return e.Spec.Objects + "/request" }

// ReadRequest returns the request of an execution, without secrets.
func ReadRequest(ctx context.Context, o Objects, e *execution.Execution) (*execution.SubmitRequest, error) {
	var req execution.SubmitRequest
	return &req, read(ctx, o, requestKey(e), &req)
}

// DeleteRequest deletes the request of an execution that has ended.
func (s *Service) DeleteRequest(ctx context.Context, e *execution.Execution) error {
	return s.Objects.Delete(ctx, requestKey(e))
}

func write(ctx context.Context, o Objects, key string, v any) error {
	b, err := encode(key, v)
	if err != nil {
		return err
	}
	return create(ctx, o, key, b)
}

func encode(key string, v any) ([]byte, error) {
	b, err := cbor.Marshal(v)
	if err != nil {
		return nil, errs.New(errs.Internal, "encode object %s: %w", key, err)
	}
	return b, nil
}

// create makes an object durable, unless an earlier call has.
func create(ctx context.Context, o Objects, key string, data []byte) error {
	if err := o.Create(ctx, key, data); err != nil && !errs.Is(err, errs.AlreadyExists) {
		return errs.Wrap(err, "object %s", key)
	}
	return nil
}

func read(ctx context.Context, o Objects, key string, v any) error {
	b, err := o.Get(ctx, key)
	if err != nil {
		return errs.Wrap(err, "object %s", key)
	}
	if err := cbor.Unmarshal(b, v); err != nil {
		return errs.New(errs.Corrupt, "object %s is damaged: %w", key, err)
	}
	return nil
}
