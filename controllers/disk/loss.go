package disk

import (
	"time"

	"miren.dev/runtime/api/disk"
)

// reportEvery is the shortest time between two reports of what a disk has not sent.
// A disk whose figures have changed within mountedCheck is read that often.
const reportEvery = 5 * time.Second

// maxCuts bounds the cuts of a report; the last one stands for all that follow.
const maxCuts = 16

// Unsent says which acknowledged writes of a volume the store does not have. The
// writes of a volume have sequence numbers; a later write has a higher one.
type Unsent struct {
	Last    int64 // the newest write
	Durable int64 // the store has all writes up to this one
	Bytes   int64 // data of those between them, in whole blocks of 4096 bytes
	Cuts    []disk.UnsentCut
	// Most is the most bytes that can be unsent at a time; nil: not known.
	Most *int64
}

// Opened says which writes a volume had when it was opened.
type Opened struct {
	After   int64 // the newest write
	Lost    bool  // later ones may be lost: the log that may have them is not here
	Damaged bool  // data after that write is damaged in the store or the log
}

// Report puts what the node has not sent into the status of its disk, and reports
// whether it differs from what stood there.
func (u *Unsent) Report(s *disk.DiskStatus, now time.Time) bool {
	if u == nil {
		return false
	}
	changed := s.ReportedAt == nil || s.LastWrite == nil || *s.LastWrite != u.Last || s.SentWrite == nil || *s.SentWrite != u.Durable
	if !changed {
		return false
	}
	cuts := u.Cuts
	if len(cuts) > maxCuts {
		rest := disk.UnsentCut{Last: cuts[len(cuts)-1].Last}
		for _, c := range cuts[maxCuts-1:] {
			rest.Bytes += c.Bytes
		}
		cuts = append(cuts[:maxCuts-1:maxCuts-1], rest)
	}
	s.ReportedAt, s.LastWrite, s.SentWrite, s.UnsentBytes, s.UnsentCuts, s.UnsentMostBytes = &now, &u.Last, &u.Durable, &u.Bytes, cuts, u.Most
	return true
}

// forgetReport removes the report of a node from the status of a disk.
func forgetReport(s *disk.DiskStatus) {
	s.ReportedAt, s.LastWrite, s.SentWrite, s.UnsentBytes, s.UnsentCuts, s.UnsentMostBytes = nil, nil, nil, nil, nil, nil
}

// Loss returns bounds of the bytes of acknowledged writes that a takeover has lost,
// from the last report of the node that was down and what the volume had when it was
// opened. most is nil if no bound is known. A cut reaches the store as a whole, but a
// node that was restarted may have cut otherwise: a cut that begins before the end of
// the found changes counts as found.
func Loss(s *disk.DiskStatus, o Opened) (least int64, most *int64) {
	if !o.Lost && !o.Damaged { // it was closed clean, or its log is here
		return 0, &least
	}
	if s.SentWrite != nil {
		before := *s.SentWrite
		for _, c := range s.UnsentCuts {
			if before >= o.After {
				least += c.Bytes
			}
			before = c.Last
		}
	}
	if s.UnsentMostBytes == nil || o.Damaged || s.SentWrite != nil && o.After < *s.SentWrite {
		return least, nil // nothing bounds what the store has lost
	}
	bound := max(least, *s.UnsentMostBytes)
	return least, &bound
}

// checkAfter is the wait before a mounted disk is read again.
func checkAfter(s *disk.DiskStatus) time.Duration {
	if s.ReportedAt != nil && time.Since(*s.ReportedAt) < mountedCheck {
		return reportEvery
	}
	return mountedCheck
}

// bound is the form of a bound in logs.
func bound(most *int64) any {
	if most == nil {
		return "unknown"
	}
	return *most
}
