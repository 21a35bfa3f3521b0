// Package inspect looks at volumes without opening them: [List] and [Info]
// describe them as their manifests do, [Dump] in all detail, [Check] verifies
// every object that a volume and its snapshots name, [CheckLog] the local log
// of a volume that is not open. Nothing here claims a volume or writes.
package inspect
