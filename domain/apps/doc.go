// Package apps has the operations and queries on apps and what belongs to them:
// versions, deployments, builds and pools. Surfaces and controllers call them.
//
// Operations are methods of [Service]; each is one conditional transaction (or a
// wait), and leaves the work to the controllers:
//
//	Find, Create, Ensure, Delete          an app
//	SetEnv                                its environment
//	Deploy, DeploySource                  a rollout, and one of new source
//	Rollback, Restart                     rollouts of versions that exist
//	PromotePreview, DeletePreview         a preview
//	Cancel, CancelDeployment              the end of a rollout under way
//	Follow, BuildLog                      the events of a deployment or build
//
// Queries and rules that need no more than a Reader are functions:
//
//	Versions, Deployments, Builds, Pools  what belongs to an app
//	ActiveVersion                         the version that it serves
//	LeaseOf, LeaseName, LeaseTTL          the right to change what an app serves
//	Services                              the services of a version as they run
//	PoolFor, Port, Retire, VersionName    pools and names of a version
//	EndPreview, PreviewLabel              a preview, which has a host of its own
//	ReleaseFor, ReleaseName               the sandbox of its release command
//	JobFor                                the sandbox of a command that runs to its end
//
// An operation that meets another writer tries again; a deployment that is under
// way is a Conflict with detail [app.DetailLease]. Errors name what to do next.
package apps
