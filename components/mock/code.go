package mock

import (
	"context"
	"time"
)

// Ran is what executed code did.
type Ran struct {
	Stdout, Stderr string
	ExitCode       int
}

// Run answers for code that no process executes, such as that of a context of an
// interpreter. It takes the answer's time. An answer's files are not written.
func (a *Answers) Run(ctx context.Context, code string) (Ran, error) {
	q := asked{code: code}
	x, groups, stated := a.find(q)
	if x.Error != nil {
		return Ran{}, x.Error.err("the code")
	}
	t := time.NewTimer(x.Delay)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
		return Ran{}, ctx.Err()
	}
	none := func() string { return "" }
	return Ran{Stdout: fill(x.text(stated), q, groups, none), Stderr: fill(x.Stderr, q, groups, none), ExitCode: x.ExitCode}, nil
}
