package app

// DetailLease is the detail of the Conflict that an operation on an app meets
// while a deployment is under way: the id of that deployment. Trying again does
// not help before the deployment has ended.
const DetailLease = "lease"
