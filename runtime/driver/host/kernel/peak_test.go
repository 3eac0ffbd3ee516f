package kernel

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/mem"
)

// tileOperations is the number of multiply-adds of a product of tiles.
const tileOperations = 16 * 16 * 64

// The loops do what was asked for, rounded up to a whole number of turns, and return how much they did.
func TestPeakCounts(t *testing.T) {
	const largestTurn = 2 * 4 * tileOperations // of the set amx
	eachSet(t, func(t *testing.T, s *Set) {
		loops := map[string]func(int64) int64{"i8": s.PeakI8, "f32": s.PeakF32}
		if s.Issue != nil {
			loops["issue"] = s.Issue
		}
		for name, peak := range loops {
			if got := peak(0); got != 0 {
				t.Errorf("%s: %d operations, want none", name, got)
			}

			turn := peak(1)
			if turn > largestTurn {
				t.Errorf("%s: one turn is %d operations, want at most %d", name, turn, largestTurn)
			}
			counts := []int64{1, turn, turn + 1, 7*turn - 1, 3 << 20, peakTurns * turn, (peakTurns + 3) * turn}
			for _, ops := range counts {
				if ops > 1<<28 && s.Name == "reference" {
					continue // the same loop as portable
				}
				want := (ops + turn - 1) / turn * turn
				if got := peak(ops); got != want {
					t.Errorf("%s: %d operations for %d, want %d, whole turns of %d", name, got, ops, want, turn)
				}
			}
		}
	})
}

// Every line is read, and nothing beyond: the sum of the lines' first words is right, and no byte behind is touched.
func TestStream(t *testing.T) {
	eachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(1, 2))
		for _, lines := range []int{0, 1, 7, 8, 9, 16, 17, 23, 1000} {
			memory := guardedSlice[uint8](t, 64*lines)
			for i := range memory {
				memory[i] = uint8(rng.Uint32())
			}

			got := s.Stream(memory)

			want := uint64(0)
			for i := range lines {
				want += binary.NativeEndian.Uint64(memory[64*i:])
			}
			if got != want {
				t.Errorf("%d lines: sum %x, want %x", lines, got, want)
			}
		}
	})
}

// BenchmarkLimits shows what the matrix kernels of each set are measured against.
func BenchmarkLimits(b *testing.B) {
	region, err := mem.Alloc(1<<30, 4096)
	if err != nil {
		b.Fatal(err)
	}
	defer region.Close()
	_ = region.Advise(0, len(region.Bytes()), mem.HugePages)
	memory := region.Bytes()
	for i := 0; i < len(memory); i += 64 {
		memory[i] = byte(i)
	}

	for _, s := range Sets() {
		for name, peak := range map[string]func(int64) int64{"i8": s.PeakI8, "f32": s.PeakF32} {
			b.Run(s.Name+"/"+name, func(b *testing.B) {
				best := 0.0
				for b.Loop() {
					start := time.Now()
					ops := peak(1 << 24)
					best = max(best, float64(ops)/float64(time.Since(start).Nanoseconds()))
				}
				b.ReportMetric(best, "best_Gop/s")
			})
		}
		b.Run(s.Name+"/stream", func(b *testing.B) {
			best, at := 0.0, 0
			const part = 32 << 20
			for b.Loop() {
				start := time.Now()
				s.Stream(memory[at : at+part])
				best = max(best, part/float64(time.Since(start).Nanoseconds()))
				at = (at + part) % len(memory)
			}
			b.ReportMetric(best, "best_GB/s")
		})
	}
}
