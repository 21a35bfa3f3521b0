package pool

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity"
)

const (
	// minHungDelay and maxHungDelay bound the time after the replacement of a hung sandbox until the next one, from
	// the third in a row on.
	minHungDelay = 15 * time.Second
	maxHungDelay = 10 * time.Minute
	// steadyFor is how much longer than its liveness check needs to find that it hangs a new sandbox must be ready
	// to end the row.
	steadyFor = 20 * time.Second
)

// replaceHung tells one hung sandbox of the pool to stop and removes it from m, so that another one is made in its
// place. It does one at a time: the next one follows when the new sandbox has been ready, and after a delay that grows
// while the new ones hang too. What makes all hang, such as a database that is away, does not end all at once.
// again is the time until the next one may follow.
func replaceHung(p *sandbox.SandboxPool, m *sandboxes.Members, now time.Time) (ops []entity.Op, again time.Duration, err error) {
	again = endRow(p, m.Live, now)
	hung := slices.DeleteFunc(slices.Clone(m.Live), func(sb *sandbox.Sandbox) bool { return sb.Status.HungAt == nil })
	if len(hung) == 0 {
		return nil, again, nil
	}
	slices.SortFunc(hung, func(a, b *sandbox.Sandbox) int {
		return cmp.Or(a.Status.HungAt.Compare(*b.Status.HungAt), sandboxes.ByAge(a, b))
	})
	starting := slices.ContainsFunc(m.Live, func(sb *sandbox.Sandbox) bool { return sb.Status.ReadyAt == nil && !sb.Status.Overdue })
	wait := time.Duration(0)
	if p.Status.HungAt != nil {
		wait = p.Status.HungAt.Add(hungDelay(p.Status.Hung)).Sub(now)
	}
	if p.Status.NextStart != nil {
		wait = max(wait, p.Status.NextStart.Sub(now))
	}
	if starting || wait > 0 {
		if p.Status.Message == "" {
			p.Status.Message = fmt.Sprintf("%d sandboxes hang and are replaced one at a time: %s", len(hung), hung[0].Status.Message)
		}
		if wait > 0 {
			again = earlier(again, wait)
		}
		return nil, again, nil
	}
	if ops, err = stop(hung[:1], sandbox.EndReasonHung); err != nil {
		return nil, 0, err
	}
	m.Live = slices.DeleteFunc(m.Live, func(sb *sandbox.Sandbox) bool { return sb == hung[0] })
	p.Status.Hung, p.Status.HungAt = p.Status.Hung+1, &now
	return ops, again, nil
}

// hungDelay returns the time between the n-th replacement in a row and the next one.
func hungDelay(n int64) time.Duration {
	if n < 2 {
		return 0
	}
	return min(maxHungDelay, minHungDelay<<min(n-2, 10))
}

// endRow ends the row of replacements of p if a sandbox that became ready since the last one has not hung. It returns
// after how long that may be so; 0: when something changes.
func endRow(p *sandbox.SandboxPool, live []*sandbox.Sandbox, now time.Time) (again time.Duration) {
	if p.Status.HungAt == nil {
		return 0
	}
	steady := steadyFor
	if l := p.Spec.Template.Live; l != nil {
		steady += time.Duration(l.Failures+1) * max(l.Interval, l.Timeout)
	}
	for _, sb := range live {
		if !sb.Status.Ready || sb.Status.ReadyAt == nil || sb.Status.ReadyAt.Before(*p.Status.HungAt) {
			continue
		}
		left := sb.Status.ReadyAt.Add(steady).Sub(now)
		if left <= 0 {
			p.Status.Hung, p.Status.HungAt = 0, nil
			return 0
		}
		again = earlier(again, left)
	}
	return again
}
