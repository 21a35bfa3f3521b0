package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"miren.dev/runtime/api/server"
	"miren.dev/runtime/components/baseimage"
	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
)

const (
	// refreshLook is how often the server looks whether something is to be done about base images.
	refreshLook = time.Minute
	// refreshPause is the longest time between two tries to give templates the images that were made again.
	refreshPause = time.Hour
)

// refresher makes the base images of the machine again at intervals, if the configuration says so. When this server,
// another one of the machine or a command made them again, it gives the templates that come with the system new versions.
type refresher struct {
	bases    *baseimage.Store
	schedule baseimage.Schedule
	window   string
	renew    func(context.Context) ([]string, error) // the templates
	renewed  string                                  // file with the rounds whose images the templates have
	look     time.Duration
	logger   *slog.Logger

	failures int       // of renew, in a row
	retry    time.Time // not before
}

func newRefresher(c *control) *refresher {
	window, _ := baseimage.ParseWindow(c.cfg.Build.RefreshWindow) // the configuration was checked
	r := &refresher{
		bases: c.m.bases, schedule: baseimage.Schedule{Every: c.cfg.Build.RefreshEvery, Window: window}, window: c.cfg.Build.RefreshWindow,
		renewed: c.m.in.State("base-image-rounds"), look: refreshLook, logger: c.logger.With("component", "base images"),
	}
	r.renew = func(ctx context.Context) ([]string, error) { return c.templates.Renew(ctx, c.images.Newer) }
	return r
}

// Run works until ctx ends. A refresh that it cuts short leaves the old images in use. It begins with the removal of what
// a killed server left of images that it was making.
func (r *refresher) Run(ctx context.Context) error {
	if err := r.bases.Sweep(ctx); err != nil && ctx.Err() == nil {
		r.logger.Warn("remove unfinished base images", "error", err, "advice", errs.HintOf(err))
	}
	t := time.NewTicker(r.look)
	defer t.Stop()
	for {
		r.once(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

// once refreshes the images and the templates if that is due.
func (r *refresher) once(ctx context.Context) {
	began := time.Now()
	ran, err := r.bases.RefreshDue(ctx, r.schedule, func(line string) { r.logger.Info("refresh of base images", "progress", line) })
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		next := time.Time{}
		if last, lerr := r.bases.LastRun(); lerr == nil {
			next = r.schedule.Next(last, time.Now())
		}
		r.logger.Error("base images were not refreshed; builds use the old ones", "error", err, "advice", errs.HintOf(err), "next", next)
	case ran:
		r.logger.Info("base images were refreshed", "took", time.Since(began).Round(time.Second))
	}
	if err := r.bases.RemoveReplaced(ctx); err != nil && ctx.Err() == nil {
		r.logger.Warn("remove replaced base images", "error", err)
	}
	r.renewTemplates(ctx)
}

// renewTemplates gives the templates new versions if the images were made again since it last did. It notes the rounds
// afterwards: if it is killed, the next server finds the templates that are missing.
func (r *refresher) renewTemplates(ctx context.Context) {
	if time.Now().Before(r.retry) {
		return
	}
	rounds, err := r.bases.Rounds()
	var names []string
	if err == nil {
		var noted []byte
		if noted, err = os.ReadFile(r.renewed); err == nil && string(noted) == rounds || errors.Is(err, os.ErrNotExist) && rounds == "" {
			return
		}
		names, err = r.renew(ctx)
	}
	if len(names) > 0 {
		r.logger.Info("templates have images that were made again", "templates", strings.Join(names, " "))
	}
	if err == nil {
		err = atomicfile.Write(r.renewed, []byte(rounds), 0o600)
	}
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		wait := min(r.look<<min(r.failures, 10), refreshPause)
		r.failures, r.retry = r.failures+1, time.Now().Add(wait)
		r.logger.Error("templates keep their old images", "error", err, "advice", errs.HintOf(err), "again_in", wait)
		return
	}
	r.failures, r.retry = 0, time.Time{}
}

// status describes the refresh for people and programs; nil if there is nothing to say.
func (r *refresher) status() *server.ImageRefresh {
	last, err := r.bases.LastRun()
	if last == nil && err == nil && r.schedule.Every == 0 {
		return nil
	}
	s := &server.ImageRefresh{Window: r.window}
	if r.schedule.Every > 0 {
		s.Every = &r.schedule.Every
	}
	if err != nil {
		s.Error, s.Advice = err.Error(), errs.HintOf(err)
	}
	if last != nil {
		s.Running, s.StartedAt, s.EndedAt, s.SucceededAt = last.Running, &last.StartedAt, last.EndedAt, last.SucceededAt
		s.Made, s.Error, s.Advice = last.Made, last.Error, last.Advice
		if n := int64(last.Failures); n > 0 {
			s.Failures = &n
		}
	}
	if next := r.schedule.Next(last, time.Now()); !next.IsZero() && !s.Running {
		s.NextAt = &next
	}
	return s
}

// checkRefresh is the finding of r doctor about a refresh.
func checkRefresh(s *server.ImageRefresh) server.Check {
	c := server.Check{Name: "base images", Level: server.CheckLevelOk, Found: "the refresh is due"}
	switch {
	case s.Error != "":
		c.Level, c.Found, c.Advice = server.CheckLevelWarn, "the last refresh failed: "+s.Error, s.Advice
	case s.Running:
		c.Found = "a refresh runs since " + s.StartedAt.Local().Format(time.DateTime)
	case s.SucceededAt != nil:
		c.Found = fmt.Sprintf("refreshed at %s", s.SucceededAt.Local().Format(time.DateTime))
	}
	if s.NextAt != nil {
		c.Found += "; next at " + s.NextAt.Local().Format(time.DateTime)
	}
	return c
}

// RefreshImages makes the base images of the machine again that have packages with newer versions; see
// baseimage.Store.Refresh. No server need run.
func RefreshImages(ctx context.Context, cfg *config.Config, dryRun bool, progress func(string)) ([]baseimage.Outdated, error) {
	bin, err := toolchainDir(cfg)
	if err != nil {
		return nil, err
	}
	in, err := instance.Find(cfg.StateDir, cfg.RunDir)
	if err != nil && !errs.Is(err, errs.NotFound) {
		return nil, err
	}
	return newBases(cfg, bin, in, nil).Refresh(ctx, dryRun, progress)
}

// ExportImages writes the base images of a machine as an archive (baseimage.Export). It
// needs no server.
func ExportImages(ctx context.Context, cfg *config.Config, w io.Writer, names []string, progress func(string)) ([]baseimage.Archived, error) {
	bin, err := toolchainDir(cfg)
	if err != nil {
		return nil, err
	}
	return newBases(cfg, bin, nil, nil).Export(ctx, w, names, progress)
}

// ImportImages gives a machine the images of such an archive (baseimage.Import). It needs no server.
func ImportImages(ctx context.Context, cfg *config.Config, r io.Reader, progress func(string)) ([]baseimage.Archived, error) {
	bin, err := toolchainDir(cfg)
	if err != nil {
		return nil, err
	}
	return newBases(cfg, bin, nil, nil).Import(ctx, r, progress)
}
