package logsink

import (
	"context"
	"math/rand/v2"
	"time"
)

// lastRetry is the longest wait after an error.
const lastRetry = time.Minute

// Rounds calls round until ctx ends: at once while there is more, after poll when there
// is not, and after an error later and later, from retry to a minute. tell gets the
// result of each.
func Rounds(ctx context.Context, poll, retry time.Duration, round func(context.Context) (more bool, err error), tell func(error)) {
	first := retry
	for {
		more, err := round(ctx)
		if ctx.Err() != nil {
			return
		}
		tell(err)
		wait := poll
		switch {
		case err != nil:
			wait = retry + rand.N(retry/2+1)
			retry = min(2*retry, lastRetry)
		case more:
			retry = first
			continue
		default:
			retry = first
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
	}
}
