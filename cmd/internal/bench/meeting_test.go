package bench

import (
	"testing"

	"github.com/hetc/hetc/runtime/executor"
)

// Options are pairs.
func TestMeetingConfig(t *testing.T) {
	if _, err := meetingConfig("0", "completion"); err == nil {
		t.Error("an option without a value is accepted")
	}
	if got, err := meetingConfig("0", "a=b,c=d"); err != nil || got.Options["c"] != "d" {
		t.Errorf("got %+v, %v", got, err)
	}
}

// The quantiles are those of the samples.
func TestMeetingQuantiles(t *testing.T) {
	m := meeting{}
	for i := range int64(100) {
		m.met = append(m.met, executor.Met{Took: 99 - i, Core: i / 2})
	}
	if m.judge(); m.P50NS != 50 || m.P95NS != 95 || m.CoreNS != 25 {
		t.Errorf("got %+v", m)
	}
}
