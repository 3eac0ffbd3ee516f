package servecmd

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/hetc/hetc/cmd/internal/machine"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir"
)

// ownBytes is what a server holds at most beside what its plan predicts: code for HTTP and TLS, connections, texts, and
// what the collector has not come by for, which is more where other tests have the cores. A test has more code than
// hetserve.
const ownBytes = 48 << 20

// A thousand requests and more, many at a time, make a server hold no more than a few hundred do, and that is what the
// plan predicts of a full cache, for a few sequences and for many.
func TestMemoryIsWhatThePlanPredicts(t *testing.T) {
	require.Slow(t)
	for _, name := range []string{oneCore, manyHere} {
		t.Run(name, func(t *testing.T) {
			r := aloneIn(t, name)
			cases := load(t, r)
			predicted := planir.MemoryOf(r.Machine.Plan())
			p := spawnOf(t, name, "--max-body", "8KiB")
			peak := func() int64 {
				return machine.MemoryField(fmt.Sprintf("/proc/%d/status", p.command.Process.Pid), "VmHWM:")
			}
			started := peak()
			p.besiege(r, cases, r.Machine.Sequences()+4, 300)
			peaks := []int64{peak()}
			least := int64(math.MaxInt64) // that a round of requests adds: a leak adds in every one
			rounds := 0
			for ; rounds < 4 || rounds < 12 && least > 1<<20; rounds++ {
				p.besiege(r, cases, r.Machine.Sequences()+4, 175)
				p.idle()
				peaks = append(peaks, peak())
				least = min(least, peaks[len(peaks)-1]-peaks[len(peaks)-2])
			}
			all := peaks[len(peaks)-1]
			t.Logf("resident at most: %.1f MiB when it listens, %.1f after 300 requests, %.1f after %d; predicted %.1f: %s",
				mib(started), mib(peaks[0]), mib(all), 300+175*rounds, mib(predicted.Total), predicted)
			if all > predicted.Total+ownBytes {
				t.Errorf("%.1f MiB are resident, and the plan predicts %.1f: want at most %d MiB more", mib(all),
					mib(predicted.Total), ownBytes>>20)
			}
			if least > 1<<20 {
				t.Errorf("every 175 requests of %d make at least %.1f MiB more resident, want a round that adds at most 1",
					175*rounds, mib(least))
			}
		})
	}
}

// Bodies as large as may be, sixteen at a time: what the server holds of them beside the bytes themselves is what one
// of them takes to be understood, whatever it is made of.
func TestMemoryOfLargeBodies(t *testing.T) {
	require.Slow(t)
	const clients, body = 16, 1<<20 - 100
	p := spawnOf(t, oneCore)
	peak := func() int64 {
		return machine.MemoryField(fmt.Sprintf("/proc/%d/status", p.command.Process.Pid), "VmHWM:")
	}
	started := peak()
	list := func(element string) string {
		return "[" + strings.Repeat(element+",", body/(len(element)+1)-2) + element + "]"
	}
	text := func(part string) string { return `"` + strings.Repeat(part, body/len(part)) + `"` }
	for _, c := range []struct{ name, path, field, value string }{
		{"words", "/completions", "prompt", text("In the beginning God created the heaven and the earth. ")},
		{"one word", "/completions", "prompt", text("begat")},
		{"numbers", "/chat/completions", "messages", list("7")},
	} {
		var all sync.WaitGroup
		for range clients {
			all.Go(func() {
				response, err := p.client.Post(p.started.URL+c.path, "application/json",
					strings.NewReader(`{"`+c.field+`":`+c.value+`}`))
				if err != nil {
					t.Error(err)
					return
				}
				defer response.Body.Close()
				if answer, err := io.ReadAll(response.Body); err != nil || response.StatusCode != http.StatusBadRequest {
					t.Errorf("%s: status %d, %.200s (%v)", c.name, response.StatusCode, answer, err)
				}
			})
		}
		all.Wait()
		t.Logf("%s: resident at most %.1f MiB more than when it listened", c.name, mib(peak()-started))
	}
	if grown := peak() - started; grown > bodiesBytes {
		t.Errorf("resident at most %.1f MiB more than when it listened, want at most %d", mib(grown), bodiesBytes>>20)
	}
}

// bodiesBytes is what a server holds at most of sixteen bodies of 1 MiB: the bytes themselves, what becomes of the one
// that is understood at the time, and as much again that the collector has not come by for.
const bodiesBytes = 128 << 20

// mib is a size in MiB.
func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }
