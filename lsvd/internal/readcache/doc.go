// Package readcache reads segments, through what it keeps of them in memory, on a
// local disk and, for prefetches, in flight. Its unit is the frame; segments
// never change, so nothing is ever invalidated, only dropped.
//
//	Read, Load, CopyCached  fill memory of the caller, from the fastest tier
//	Queue, Finish           the same without a goroutine that waits
//	Prefetch, PrefetchNow   fetch frames that no read needs yet
//	Index, Warm, Drop       indexes of segments
//	Add                     keeps a segment that was just created
//
// [Streams] finds sequential streams among reads; admission.go decides how much is
// fetched beyond what a read needs.
package readcache
