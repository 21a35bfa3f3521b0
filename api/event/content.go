package event

import (
	"encoding/json"
	"time"

	"miren.dev/runtime/pkg/errs"
)

// Content is what the body of an event has.
type Content struct {
	Type      string         `json:"type"`
	Timestamp time.Time      `json:"timestamp"`
	Data      map[string]any `json:"data"`
}

// Content decodes the body. Corrupt if it is none.
func (o *Event) Content() (Content, error) {
	var c Content
	if err := json.Unmarshal([]byte(o.Spec.Body), &c); err != nil {
		return c, errs.New(errs.Corrupt, "the body of event %s: %w", o.ID, err)
	}
	return c, nil
}
