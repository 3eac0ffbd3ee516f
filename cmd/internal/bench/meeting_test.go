package bench

import (
	"io"
	"strings"
	"testing"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/runtime/executor"
)

// What cannot be measured is refused with a way out: the drivers that there are, or what kind of processor to choose.
func TestMeetingRefuses(t *testing.T) {
	for _, test := range []struct {
		options    MeetingOptions
		want, hint string
	}{
		{MeetingOptions{Driver: "opencll"}, `--driver "opencll": no such driver`, `did you mean "opencl"?`},
		{MeetingOptions{Driver: "host", Select: "0"}, `processor "0" of driver "host" executes calls synchronously`,
			"one that executes calls by itself"},
	} {
		test.options.Configs, test.options.Rounds = []string{""}, 1
		err := Meeting(t.Context(), &cli.Streams{Out: io.Discard, Err: io.Discard}, &test.options)
		hints := strings.Join(diag.HintsOf(err), " ")
		if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(hints, test.hint) {
			t.Errorf("%+v: %v with hints %q, want %q and %q", test.options, err, hints, test.want, test.hint)
		}
	}
}

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
