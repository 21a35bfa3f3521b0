package agent

import (
	"context"

	"miren.dev/runtime/pkg/agentproto"
)

// Request sends a message of any type and returns the agent's answer.
func (c *Conn) Request(ctx context.Context, t agentproto.Type) error {
	_, err := c.call(ctx, t, nil)
	return err
}
