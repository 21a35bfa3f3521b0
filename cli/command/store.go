package command

import (
	"context"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/remote"
)

// Store returns the entity store of the server.
func (e *Env) Store(ctx context.Context) (entity.Store, error) {
	c, err := e.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return remote.New(c), nil
}
