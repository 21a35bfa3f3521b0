package stack

import (
	"slices"

	"miren.dev/runtime/pkg/appconfig"
	"miren.dev/runtime/pkg/errs"
)

// web is the service that every detected stack has.
func web(port int64) []appconfig.Service {
	return []appconfig.Service{{Name: appconfig.DefaultService, Port: ptr(port)}}
}

// services completes the services of a plan with what the configuration says.
func (s *source) services(p *Plan) error {
	detected := p.Services
	p.Services = slices.Clone(s.cfg.Services)
	if s.cfg.Procfile {
		p.because("Procfile has the commands of the services")
	}
	find := func(name string) *appconfig.Service {
		for i := range p.Services {
			if p.Services[i].Name == name {
				return &p.Services[i]
			}
		}
		return nil
	}
	for _, d := range detected {
		have := find(d.Name)
		if have == nil {
			// A Procfile without web is an app without web.
			if d.Name == appconfig.DefaultService && s.cfg.Procfile && len(p.Services) > 0 {
				continue
			}
			p.Services = append(p.Services, d)
			continue
		}
		if have.Port == nil {
			have.Port = d.Port
		}
		if len(have.Command) == 0 {
			have.Command = d.Command
		}
		if have.HealthPath == "" {
			have.HealthPath = d.HealthPath
		}
	}
	if web := find(appconfig.DefaultService); web != nil && web.Port == nil {
		web.Port = ptr(int64(appconfig.DefaultPort))
	}
	for _, svc := range p.Services {
		if svc.Port != nil && *svc.Port > 0 {
			p.because("service %s listens on port %d, which PORT tells it", svc.Name, *svc.Port)
		}
		for _, v := range svc.Volumes {
			p.because("service %s mounts the disk %s at %s", svc.Name, v.Disk, v.Path)
		}
		if svc.Name != appconfig.DefaultService && len(svc.Command) == 0 {
			return errs.New(errs.InvalidArgument, "service %s has no command", svc.Name).
				WithHint("set command in [services.%s] of %s", svc.Name, s.cfg.File)
		}
	}
	return nil
}

// ownsCommands says whether the configuration has the command of the web service, or a Procfile those of all.
func (s *source) ownsCommands() bool {
	web := s.cfg.Service(appconfig.DefaultService)
	return s.cfg.Procfile && len(s.cfg.Services) > 0 || web != nil && len(web.Command) > 0
}
