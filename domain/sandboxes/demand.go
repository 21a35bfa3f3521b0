package sandboxes

import (
	"sync"
	"time"

	"miren.dev/runtime/api/id"
)

const (
	// demandSlot is the time within which claims count as one burst.
	demandSlot = 10 * time.Second
	// maxSlots bounds the remembered bursts of a pool.
	maxSlots = 360
)

// Demand counts the requests for sandboxes of each warm pool, so that the pool
// can hold as many as the largest recent burst took. It is this process's own:
// a new server begins with none. The zero value is ready for use.
type Demand struct {
	mu    sync.Mutex
	pools map[id.WarmPool]*poolDemand
	wake  func(id.WarmPool)
}

// poolDemand has the bursts of one pool, oldest first.
type poolDemand struct {
	slots []demandCount
	last  time.Time
}

type demandCount struct {
	from  time.Time
	count int
}

// OnChange makes wake be called after each request. It must not block.
func (d *Demand) OnChange(wake func(id.WarmPool)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wake = wake
}

// Note counts a request for a sandbox of a pool.
func (d *Demand) Note(pool id.WarmPool, now time.Time) {
	d.mu.Lock()
	if d.pools == nil {
		d.pools = map[id.WarmPool]*poolDemand{}
	}
	p := d.pools[pool]
	if p == nil {
		p = &poolDemand{}
		d.pools[pool] = p
	}
	p.last = now
	if n := len(p.slots); n > 0 && now.Sub(p.slots[n-1].from) < demandSlot {
		p.slots[n-1].count++
	} else {
		if n == maxSlots {
			p.slots = append(p.slots[:0], p.slots[1:]...)
		}
		p.slots = append(p.slots, demandCount{from: now, count: 1})
	}
	wake := d.wake
	d.mu.Unlock()
	if wake != nil {
		wake(pool)
	}
}

// Peak returns the largest burst of a pool since then and when the oldest one
// began, and forgets older bursts.
func (d *Demand) Peak(pool id.WarmPool, since time.Time) (peak int, oldest time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.pools[pool]
	if p == nil {
		return 0, time.Time{}
	}
	keep := p.slots[:0]
	for _, s := range p.slots {
		if !s.from.Before(since) {
			keep = append(keep, s)
			peak = max(peak, s.count)
		}
	}
	p.slots = keep
	if len(keep) == 0 {
		return 0, time.Time{}
	}
	return peak, keep[0].from
}

// Last returns the time of the last request for a sandbox of a pool; zero: none
// is known.
func (d *Demand) Last(pool id.WarmPool) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.pools[pool]; p != nil {
		return p.last
	}
	return time.Time{}
}

// Forget removes the state of a deleted pool.
func (d *Demand) Forget(pool id.WarmPool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.pools, pool)
}
