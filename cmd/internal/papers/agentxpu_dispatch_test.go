package papers

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func drawElastic(t *rapid.T) elastic {
	time := rapid.Int64Range(1, 40)
	return elastic{
		chunks: rapid.IntRange(0, 16).Draw(t, "chunks"), npu: time.Draw(t, "npu"), gpu: time.Draw(t, "gpu"),
		rest: rapid.Int64Range(0, 40).Draw(t, "rest"),
	}
}

func TestElasticAgainstEverySplit(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		e := drawElastic(rt)
		printed, fastest := e.printed(), e.fastest()
		for i := range e.chunks + 1 {
			// From the chunks one by one, not by the formula.
			var npu, gpu int64
			for c := range e.chunks {
				if c < i {
					npu += e.npu
				} else {
					gpu += e.gpu
				}
			}
			gpu += e.rest
			if end := max(npu, gpu); end != e.end(i) || end < e.end(fastest) {
				rt.Fatalf("%+v: %d chunks on the NPU end at %d, said %d, the fastest at %d", e, i, end, e.end(i),
					e.end(fastest))
			}
			if d := max(npu-gpu, gpu-npu); d != e.difference(i) || d < e.difference(printed) ||
				d == e.difference(printed) && i < printed {
				rt.Fatalf("%+v: %d chunks on the NPU differ by %d", e, i, d)
			}
		}
		// With like processors the listing's rule is the fastest too.
		if e.npu == e.gpu && e.end(printed) != e.end(fastest) {
			rt.Fatalf("%+v: printed %d, fastest %d", e, printed, fastest)
		}
		if e.end(printed) > 2*e.end(fastest) {
			rt.Fatalf("%+v: printed ends at %d, fastest at %d", e, e.end(printed), e.end(fastest))
		}
		// Deferred and clamped, the remainder never ends before the NPU.
		if max(e.deferral(), 0)+e.rest < int64(e.chunks)*e.npu {
			rt.Fatalf("%+v: deferred by %d", e, e.deferral())
		}
	})
}

func TestNextBatch(t *testing.T) {
	request := rapid.Custom(func(t *rapid.T) served {
		return served{reactive: rapid.Bool().Draw(t, "reactive"), length: rapid.IntRange(1, 9).Draw(t, "length")}
	})
	requests := rapid.SliceOfN(request, 0, 6)
	rapid.Check(t, func(rt *rapid.T) {
		batch, arrived := requests.Draw(rt, "batch"), requests.Draw(rt, "arrived")
		most := rapid.IntRange(1, 4).Draw(rt, "cap")
		var reactive, proactive, all []served
		for i := range batch {
			batch[i].name = string(rune('a' + i))
		}
		for i := range arrived {
			arrived[i].name = string(rune('A' + i))
			if arrived[i].reactive {
				reactive = append(reactive, arrived[i])
			} else {
				proactive = append(proactive, arrived[i])
			}
		}
		all = append(slices.Clone(batch), arrived...)
		urgent := 0
		for _, r := range all {
			if r.reactive {
				urgent++
			}
		}
		for _, descending := range []bool{true, false} {
			next, waiting := nextBatch(batch, reactive, proactive, most, descending)
			if len(next)+len(waiting) != len(all) {
				rt.Fatalf("%d requests became %d and %d", len(all), len(next), len(waiting))
			}
			for _, r := range all {
				if slices.Contains(next, r) == slices.Contains(waiting, r) {
					rt.Fatalf("%v is in both or neither", r)
				}
			}
			for _, r := range waiting {
				if r.reactive || urgent == 0 || len(next) < most {
					rt.Fatalf("%v waits, %d reactive, batch of %d, cap %d", r, urgent, len(next), most)
				}
			}
			if want := max(urgent, min(most, len(all))); urgent > 0 && len(next) != want {
				rt.Fatalf("batch of %d, want %d", len(next), want)
			}
			for _, w := range waiting {
				for _, r := range next {
					if !r.reactive && (descending && w.length > r.length || !descending && w.length < r.length) {
						rt.Fatalf("descending %v: %v waits, %v does not", descending, w, r)
					}
				}
			}
		}
		// Of all choices of as many, ascending order has the least sum and the least maximum of lengths.
		next, _ := nextBatch(batch, reactive, proactive, most, false)
		sum, longest := lengths(next)
		var others, must []served
		for _, r := range all {
			if r.reactive {
				must = append(must, r)
			} else {
				others = append(others, r)
			}
		}
		for set := range 1 << len(others) {
			try := slices.Clone(must)
			for i, r := range others {
				if set>>i&1 == 1 {
					try = append(try, r)
				}
			}
			if len(try) != len(next) {
				continue
			}
			if s, l := lengths(try); s < sum || l < longest {
				rt.Fatalf("%v decodes %d tokens (longest %d), %v only %d (%d)", next, sum, longest, try, s, l)
			}
		}
	})
}
