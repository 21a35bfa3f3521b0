package appconfig

import (
	"time"

	"miren.dev/runtime/pkg/errs"
)

// Scale is the bounds within which the number of sandboxes of a service follows its load. A nil pointer is absent.
type Scale struct {
	Min  *int64 // 0: it sleeps without requests; nil: 1
	Max  *int64
	Idle *time.Duration // time without a request after which it sleeps
	CPU  *int64         // percent of its CPU that a sandbox is aimed to use; nil: CPU does not count
	// Suspend: a sandbox is paused with its memory when the service goes to sleep.
	Suspend bool
}

// scale reads the bounds of a service.
func (p *parser) scale(to **Scale) field {
	keys := func(s *Scale) table {
		return table{
			"min":     p.integer(&s.Min, 0, MaxReplicas),
			"max":     p.integer(&s.Max, 1, MaxReplicas),
			"idle":    p.duration(&s.Idle, MinScaleIdle, MaxScaleIdle),
			"cpu":     p.integer(&s.CPU, 1, 100),
			"suspend": p.boolean(&s.Suspend),
		}
	}
	return field{object(keys(&Scale{}), "max"), func(key string, v any) {
		s := &Scale{}
		p.table(keys(s)).set(key, v)
		*to = s
	}}
}

// checkScale refuses a scale that contradicts itself or the rest of its service.
func (p *parser) checkScale(key string, s *Service) {
	refuse := func(at, hint, format string, args ...any) {
		at = key + "." + at
		p.keep(p.line(at), errs.New(errs.InvalidArgument, "%s%s: "+format, append([]any{p.prefix(at), at}, args...)...).WithHint("%s", hint))
	}
	if s.Scale == nil {
		if s.Concurrency != nil {
			refuse("concurrency", "add scale = {min = 1, max = 5} to ["+key+"]", "it counts only for a number of sandboxes that follows the load")
		}
		return
	}
	low, high := int64(1), int64(0)
	if s.Scale.Min != nil {
		low = *s.Scale.Min
	}
	if s.Scale.Max != nil {
		high = *s.Scale.Max
	}
	port := s.Name == DefaultService
	if s.Port != nil {
		port = *s.Port != 0
	}
	switch {
	case s.Replicas != nil:
		refuse("scale", "remove replicas, or scale", "replicas says a fixed number, and scale bounds of one that follows the load")
	case high == 0:
		refuse("scale", "such as scale = {min = 1, max = 5}", "it needs max, the most sandboxes")
	case low > high:
		refuse("scale", "the least number is at most the most", "min is %d, but max is %d", low, high)
	case !port && low == 0:
		refuse("scale", "set min = 1, or give the service a port", "min is 0, but the service has no port, so no request would wake it")
	case !port && s.Scale.CPU == nil:
		refuse("scale", "add cpu = 70, or set replicas instead of scale", "the service has no port, so its number cannot follow requests")
	case s.Scale.Suspend && low > 0:
		refuse("scale", "set min = 0, or remove suspend", "suspend says how the service sleeps, but with min = %d it never does", low)
	case s.Scale.Suspend && s.Writes() != "":
		refuse("scale", "remove suspend, or set read_only = true in ["+key+".volumes."+s.Writes()+"]",
			"a suspended sandbox would keep the disk %s, to which the service writes", s.Writes())
	case high > 1 && s.Writes() != "":
		refuse("scale", "set max = 1, or read_only = true in ["+key+".volumes."+s.Writes()+"]",
			"max is %d, but the service writes to the disk %s, which one sandbox at a time can do", high, s.Writes())
	}
}
