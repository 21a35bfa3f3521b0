package sandboxes

import (
	"cmp"
	"slices"

	"miren.dev/runtime/api/sandbox"
)

// LabelCounted marks an ended sandbox whose failure is in its pool's count.
const LabelCounted = "runtime/counted"

// Members are the sandboxes of a pool, classified by their state.
type Members struct {
	Live     []*sandbox.Sandbox // wanted and not ended, oldest first
	Stopping []*sandbox.Sandbox // told to stop, not ended yet
	// Suspended are paused, or shall be: their pool sleeps, and resumes one when it wakes.
	Suspended []*sandbox.Sandbox
	Ended     []*sandbox.Sandbox // stopped or failed, oldest end first
	Ready     int                // of Live: the ready ones
}

// Classify sorts the sandboxes of a pool.
func Classify(all []*sandbox.Sandbox) Members {
	var m Members
	for _, sb := range all {
		switch {
		case sb.Status.Phase.Ended():
			m.Ended = append(m.Ended, sb)
		case sb.Spec.Desired == sandbox.DesiredStateStopped:
			m.Stopping = append(m.Stopping, sb)
		case sb.Spec.Desired == sandbox.DesiredStatePaused:
			m.Suspended = append(m.Suspended, sb)
		default:
			m.Live = append(m.Live, sb)
			if sb.Status.Ready {
				m.Ready++
			}
		}
	}
	slices.SortFunc(m.Live, ByAge)
	slices.SortFunc(m.Suspended, ByAge)
	slices.SortFunc(m.Ended, func(a, b *sandbox.Sandbox) int {
		return cmp.Or(cmp.Compare(a.StatusRevision, b.StatusRevision), cmp.Compare(a.ID, b.ID))
	})
	return m
}

// Draining returns those of the live sandboxes of a pool that get no new requests, since the pool has too many.
func Draining(live []*sandbox.Sandbox) []*sandbox.Sandbox {
	return slices.DeleteFunc(slices.Clone(live), func(sb *sandbox.Sandbox) bool { return sb.Spec.DrainingAt == nil })
}

// EndedUnexpectedly reports whether an ended sandbox ended without a request to
// stop.
func EndedUnexpectedly(sb *sandbox.Sandbox) bool {
	switch sb.Status.Reason {
	case sandbox.EndReasonUser, sandbox.EndReasonTTL, sandbox.EndReasonIdle:
		return false
	case sandbox.EndReasonNode:
		return sb.Spec.StopReason != sandbox.EndReasonNode // otherwise its node was drained
	}
	return true
}
