package disks

import (
	"context"
	"reflect"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/crontime"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/opt"
	"miren.dev/runtime/pkg/schema"
)

// ScheduleRequest describes the scheduled snapshots of a disk, and their copies.
// Without Every and Times none are taken any more; those that exist stay.
type ScheduleRequest struct {
	Project, Name string
	Every         time.Duration // between snapshots
	Times         string        // as cron writes them, instead of Every
	TimeZone      string        // of Times; "": UTC
	Retention     Retention
	CopyTo        string // URL of the store for copies; "": as before
	CopyKeep      int64  // 0: as before
	CopyOff       bool   // none is copied any more; copies that exist stay
}

// Retention says which scheduled snapshots are kept: the newest Keep of them
// that are younger than For. The newest is kept in any case.
type Retention struct {
	Keep int64         // 0: as before if For is 0 too, else the largest number
	For  time.Duration // 0: as before if Keep is 0 too, else any age
}

// Schedule has snapshots of a disk taken regularly, and keeps the newest ones;
// with a store, each is copied there. InvalidArgument for times that cannot be read.
func (s *Service) Schedule(ctx context.Context, req ScheduleRequest) (*disk.Disk, error) {
	switch {
	case req.CopyOff && req.CopyTo != "":
		return nil, errs.New(errs.InvalidArgument, "state either a store for copies or that there are none")
	case req.Every > 0 && req.Times != "":
		return nil, errs.New(errs.InvalidArgument, "state either the time between snapshots or their times")
	case req.Times == "" && req.TimeZone != "":
		return nil, errs.New(errs.InvalidArgument, "a time zone needs the times of snapshots")
	}
	if req.Times != "" {
		if _, err := crontime.Parse(req.Times, req.TimeZone); err != nil {
			return nil, err
		}
	}
	d, err := s.Find(ctx, req.Project, req.Name)
	if err != nil {
		return nil, err
	}
	return entity.ModifySpec(ctx, s.Store, d.GetID(), func(d *disk.Disk) error {
		req.apply(&d.Spec, time.Now())
		return nil
	})
}

// Declare gives the named disk of a project the schedule that app.toml declares. It
// changes nothing if the disk has that schedule. NotFound: there is no such disk.
func Declare(ctx context.Context, s entity.Store, project schema.ID, name string, want *app.VolumeSnapshots, now time.Time) error {
	d, err := entity.ByName[disk.Disk](ctx, s, project, name)
	if err != nil {
		return err
	}
	req := ScheduleRequest{Times: want.Cron, TimeZone: want.TimeZone, Retention: Retention{Keep: opt.Value(want.Keep), For: opt.Value(want.KeepFor)}}
	if want.Keep == nil && want.KeepFor == nil {
		req.Retention.Keep = disk.DefaultSnapshotKeep
	}
	before := d.Spec
	if req.apply(&d.Spec, now); reflect.DeepEqual(before, d.Spec) {
		return nil
	}
	return entity.UpdateSpec(ctx, s, d)
}

// apply writes the request to a disk. now is when its times begin to count.
func (req ScheduleRequest) apply(x *disk.DiskSpec, now time.Time) {
	x.SnapshotEvery = nil
	if req.Every > 0 {
		x.SnapshotEvery = &req.Every
	}
	if req.Times == "" {
		x.SnapshotSince = nil
	} else if x.SnapshotSince == nil || x.SnapshotSchedule != req.Times || x.SnapshotTimeZone != req.TimeZone {
		x.SnapshotSince = &now
	}
	x.SnapshotSchedule, x.SnapshotTimeZone = req.Times, req.TimeZone
	if r := req.Retention; r.Keep > 0 || r.For > 0 {
		x.SnapshotKeep, x.SnapshotKeepFor = r.Keep, nil
		if r.Keep == 0 {
			x.SnapshotKeep = disk.MaxSnapshotKeep
		}
		if r.For > 0 {
			x.SnapshotKeepFor = &r.For
		}
	}
	if req.CopyTo != "" || req.CopyOff {
		x.CopyTo = req.CopyTo
	}
	if req.CopyKeep > 0 {
		x.CopyKeep = req.CopyKeep
	}
}

// CopySchedule gives a disk the schedule of another one. Times that are counted
// stay so.
func CopySchedule(to, from *disk.DiskSpec) {
	to.SnapshotEvery, to.SnapshotSchedule, to.SnapshotTimeZone = from.SnapshotEvery, from.SnapshotSchedule, from.SnapshotTimeZone
	to.SnapshotSince, to.SnapshotCountedTo = from.SnapshotSince, from.SnapshotCountedTo
	to.SnapshotKeep, to.SnapshotKeepFor, to.CopyTo, to.CopyKeep = from.SnapshotKeep, from.SnapshotKeepFor, from.CopyTo, from.CopyKeep
}
