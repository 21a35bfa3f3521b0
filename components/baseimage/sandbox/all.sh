# Run in the root of every image for sandboxes: all have the same users.
useradd --create-home --uid 1000 --shell /bin/bash user
