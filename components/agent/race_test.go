//go:build race

package agent_test

func init() { raceDetector = true }
