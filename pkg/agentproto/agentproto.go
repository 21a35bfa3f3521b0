// Package agentproto is what the node and the agent in a sandbox say to each
// other.
package agentproto

// VaultUID owns the directories of the agent in a sandbox.
const VaultUID = 2147483000

// StartMode says when the main process is started.
type StartMode uint8

// Start modes.
const (
	StartAtOnce StartMode = iota
	StartOnRequest
)
