package main

import (
	"encoding/json"
	"testing"

	"google.golang.org/protobuf/types/known/anypb"
)

func anyJSON(t *testing.T, data string) *anypb.Any {
	t.Helper()
	if !json.Valid([]byte(data)) {
		t.Fatalf("not JSON: %s", data)
	}
	return &anypb.Any{TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/Process", Value: []byte(data)}
}
