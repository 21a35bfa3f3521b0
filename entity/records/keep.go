package records

import (
	"time"

	"miren.dev/runtime/entity"
)

const day = 24 * time.Hour

// DefaultKeep is how long records are kept of streams for which a store has no
// other time.
var DefaultKeep = map[entity.Stream]time.Duration{
	entity.StreamAudit: 90 * day, entity.StreamEvent: 14 * day, entity.StreamExecution: 14 * day, entity.StreamEgress: 14 * day,
}

// Keep returns how long records of a stream are kept: as keep says, or by default.
func Keep(keep map[entity.Stream]time.Duration, stream entity.Stream) time.Duration {
	if age := keep[stream]; age != 0 {
		return age
	}
	return DefaultKeep[stream]
}
