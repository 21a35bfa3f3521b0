package app

// DetailLease is the detail of a Conflict: the id of the deployment that is
// under way. An operation on the app gets this error until that deployment has
// ended; repeating it earlier does not help.
const DetailLease = "lease"
