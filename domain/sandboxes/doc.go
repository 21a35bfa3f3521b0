// Package sandboxes has the operations and queries on sandboxes. It is the only
// place with rules for them: every surface (RPC, later REST, MCP and SSH) decodes,
// authorises and calls it, and reads neither the store nor a node by itself.
//
// Operations are methods of [Service], one file each:
//
//	Create        a sandbox that stands alone, of an image or like an app's sandboxes
//	Wait          until a sandbox runs, is ready, or has ended
//	Stop, Delete  its end
//	Exec          a process in it
//	Attach        a process that goes on without a caller, again
//	Files         its files
//	Dial          a connection to a port of it
//	RunOnce       a process in a new one, which goes with it
//	RunCode       a program in a new one of its language's template
//	Pause, Resume, Snapshot, Fork, Extend
//	Logs          the output of its main process, or of all sandboxes of an app
//	Stats, Processes, Ports
//
// Queries and rules that need no more than a Reader, for controllers too:
//
//	OfApp, InPool, OnNode, Pending    lists
//	ByAge                             their order
//	Classify                          a pool's sandboxes by what became of them
//	EndedUnexpectedly, LabelCounted   which ends count as failures
//	Writes                            whether sandboxes of a template write to a disk
//
// What an operation needs from the machine that runs a sandbox it asks a [Node].
package sandboxes
