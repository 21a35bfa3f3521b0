package mcpserver

import (
	"context"
	"fmt"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// progressEvery is the time between notifications of progress.
const progressEvery = time.Second

// call is one call of a tool. It tells a client that wants to know that the call
// goes on, every second.
type call struct {
	start time.Time
	stop  chan struct{}
	done  chan struct{}

	mu     sync.Mutex
	status string
}

func newCall(ctx context.Context, req *sdk.CallToolRequest) *call {
	c := &call{start: time.Now(), stop: make(chan struct{}), done: make(chan struct{})}
	token := req.Params.GetProgressToken()
	if token == nil {
		close(c.done)
		return c
	}
	go func() {
		defer close(c.done)
		t := time.NewTicker(progressEvery)
		defer t.Stop()
		for {
			select {
			case <-c.stop:
				return
			case <-ctx.Done():
				return
			case <-t.C:
			}
			seconds := time.Since(c.start).Seconds()
			c.mu.Lock()
			message := c.status
			c.mu.Unlock()
			if message == "" {
				message = "running"
			}
			// A client that has gone needs no progress.
			_ = req.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{
				ProgressToken: token, Progress: seconds, Message: fmt.Sprintf("%s, %.0f s", message, seconds),
			})
		}
	}()
	return c
}

// say sets what the next notifications say.
func (c *call) say(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status = fmt.Sprintf(format, args...)
}

// end ends the notifications.
func (c *call) end() {
	close(c.stop)
	<-c.done
}
