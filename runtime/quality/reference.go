package quality

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/runtime/executor"
)

// Reference holds what one execution computed for windows of tokens.
type Reference struct {
	file    *os.File // logits f32 [positions, vocabulary] in the byte order of this machine
	removed bool     // its name
	vocab   int
	windows []window
	at      int64
}

// window is one whose logits are in the file. lse and top are those of its rows.
type window struct {
	Window
	offset int64 // in the file, in bytes
	// log of the sum of exponentials, by row
	lse []float64
	// likeliest token, by row
	top []int32
	// -log p of the next token, by row
	losses []float64
}

// NewReference makes an empty one; Close removes its temporary file.
func NewReference() (*Reference, error) {
	file, err := os.CreateTemp("", "hetc-reference-*")
	if err != nil {
		return nil, diag.New(diag.ClassIO, "keep the reference's logits: %w", err).
			WithHint("TMPDIR names a directory for temporary files")
	}
	// Gone even if this process is killed. Where open files cannot be removed, Close does it.
	removed := os.Remove(file.Name()) == nil
	return &Reference{file: file, removed: removed}, nil
}

// Close removes what is held.
func (r *Reference) Close() error {
	err := r.file.Close()
	if !r.removed {
		err = errors.Join(err, os.Remove(r.file.Name()))
	}
	return err
}

// Add executes a window in one call and holds its logits.
func (r *Reference) Add(ctx context.Context, machine *executor.Machine, text Window) error {
	if r.vocab == 0 {
		r.vocab = machine.Vocabulary()
	}
	if machine.Vocabulary() != r.vocab {
		return diag.New(diag.ClassInput, "reference has %d token ids, want %d as before", machine.Vocabulary(), r.vocab)
	}
	if text.Next >= int32(r.vocab) {
		return diag.New(diag.ClassInput, "reference: the window is followed by id %d, want 0..%d", text.Next, r.vocab-1)
	}
	// the logits go to the file, one row after the other; what is small stays in memory
	count := len(text.Tokens)
	kept := window{Window: text, offset: r.at, lse: make([]float64, count), top: make([]int32, count)}
	if _, err := r.file.Seek(r.at, 0); err != nil {
		return diag.New(diag.ClassIO, "keep the reference's logits: %w", err)
	}
	out := bufio.NewWriterSize(r.file, 1<<20)
	err := forward(ctx, machine, text.Tokens, count, func(i int, logits row) error {
		kept.lse[i], kept.top[i] = logits.lse, int32(logits.top)
		if next, ok := text.next(i); ok {
			kept.losses = append(kept.losses, -logits.logp(next))
		}
		_, err := out.Write(mem.Bytes(logits.logits))
		return err
	})
	if err == nil {
		err = out.Flush()
	}
	if err != nil {
		var diagnostic *diag.Diagnostic
		if errors.As(err, &diagnostic) || ctx.Err() != nil {
			return fmt.Errorf("reference: %w", err)
		}
		return diag.New(diag.ClassIO, "keep the reference's logits: %w", err).
			WithHint("TMPDIR names a directory for temporary files; fewer --windows need less space")
	}
	r.at += int64(count) * r.rowBytes()
	r.windows = append(r.windows, kept)
	return nil
}

// rowBytes returns the size of a row in the file.
func (r *Reference) rowBytes() int64 { return 4 * int64(r.vocab) }

// Windows returns the number of windows held.
func (r *Reference) Windows() int { return len(r.windows) }

// Clear forgets all windows.
func (r *Reference) Clear() { r.windows, r.at = nil, 0 }

// Compare executes window i with another machine, step tokens a call (the window's length for its prefill,
// 1 for its decode programs), and adds the comparison to tally. Only one row of each execution is in memory.
func (r *Reference) Compare(ctx context.Context, machine *executor.Machine, i, step int, tally *Tally) error {
	if machine.Vocabulary() != r.vocab {
		const other = "compare: candidate has %d token ids, and its reference %d"
		return diag.New(diag.ClassInput, other, machine.Vocabulary(), r.vocab)
	}
	// sums over the positions; the last one has no next token in the text
	kept := &r.windows[i]
	want := make([]float32, r.vocab)
	var kl, top, nll, ref, followed float64
	err := forward(ctx, machine, kept.Tokens, step, func(pos int, got row) error {
		if _, err := r.file.ReadAt(mem.Bytes(want), kept.offset+int64(pos)*r.rowBytes()); err != nil {
			return diag.New(diag.ClassIO, "read back the reference's logits: %w", err)
		}
		reference := row{want, kept.lse[pos], int(kept.top[pos])}
		kl += divergence(&reference, &got)
		if reference.top == got.top {
			top++
		}
		if next, ok := kept.next(pos); ok {
			nll -= got.logp(next)
			ref -= reference.logp(next)
			followed++
		}
		return nil
	})
	if err != nil {
		return err
	}
	count := float64(len(kept.Tokens))
	tally.positions += len(kept.Tokens)
	tally.kl, tally.top = append(tally.kl, kl/count), append(tally.top, top/count)
	tally.nll, tally.ref = append(tally.nll, nll/followed), append(tally.ref, ref/followed)
	return nil
}

// Execute executes a window whose results are not needed: an observer of the machine sees its steps.
func Execute(ctx context.Context, machine *executor.Machine, text Window) error {
	return forward(ctx, machine, text.Tokens, len(text.Tokens), func(int, row) error { return nil })
}

// forward executes tokens on an empty cache, step of them a call, and hands over every position's row.
func forward(
	ctx context.Context, machine *executor.Machine, tokens []int32, step int, sink func(pos int, out row) error,
) error {
	machine.Reset()
	return machine.Do(ctx, func(control *executor.Control) error {
		for at := 0; at < len(tokens); at += step {
			part := tokens[at:min(at+step, len(tokens))]
			_, err := control.Forward(part, executor.WantAll, func(i int, logits []float32) error {
				out, err := newRow(logits)
				if err != nil {
					return diag.New(diag.ClassRun, "position %d: %w, want finite logits", at+i, err)
				}
				return sink(at+i, out)
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// Losses are -log p of the token that follows each position of window i, in nats, as the text has it; those of
// positions that nothing follows are missing.
func (r *Reference) Losses(i int) []float64 { return r.windows[i].losses }
