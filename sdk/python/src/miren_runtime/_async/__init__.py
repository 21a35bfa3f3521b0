"""The hand-written client. hack/sdk.sh makes ``_sync`` of it."""
