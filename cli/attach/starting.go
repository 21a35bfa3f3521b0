package attach

import (
	"fmt"
	"sync"
	"time"

	"miren.dev/runtime/cli/console"
)

// starting draws on a terminal that a sandbox is starting.
type starting struct {
	mu    sync.Mutex
	text  string // reason why it does not run yet
	stop  chan struct{}
	drawn chan struct{} // closed when the drawing is off the screen
	once  sync.Once
}

// showStart begins to draw. Where nothing is drawn it returns nil, whose
// methods do nothing.
func showStart(c *console.Console) *starting {
	if c.Quiet || c.JSON || !c.Terminal {
		return nil
	}
	s := &starting{stop: make(chan struct{}), drawn: make(chan struct{})}
	go s.draw(c)
	return s
}

func (s *starting) draw(c *console.Console) {
	defer close(s.drawn)
	live := c.Live()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	began := time.Now()
	for i := 0; ; i++ {
		select {
		case <-s.stop:
			live.Draw(nil)
			return
		case <-tick.C:
			s.mu.Lock()
			text := s.text
			s.mu.Unlock()
			live.Draw([]string{fmt.Sprintf("%s starting %s %s", c.Paint(console.Cyan, console.Spinner(i)),
				c.Paint(console.Dim, fmt.Sprintf("%.1fs", time.Since(began).Seconds())), text)})
		}
	}
}

// note adds text to the drawing, and reports whether there is a drawing.
func (s *starting) note(text string) bool {
	if s == nil {
		return false
	}
	select {
	case <-s.stop:
		return false
	default:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = text
	return true
}

// end removes the drawing from the screen.
func (s *starting) end() {
	if s == nil {
		return
	}
	s.once.Do(func() { close(s.stop) })
	<-s.drawn
}
