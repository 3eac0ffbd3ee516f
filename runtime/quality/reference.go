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

type window struct {
	Window
	offset int64
	lse    []float64
	top    []int32
}

// NewReference makes an empty one; Close removes its temporary file.
func NewReference() (*Reference, error) {
	f, err := os.CreateTemp("", "hetc-reference-*")
	if err != nil {
		return nil, diag.New(diag.ClassIO, "keep the reference's logits: %w", err).WithHint("TMPDIR names a directory for temporary files")
	}
	removed := os.Remove(f.Name()) == nil // gone even if this process is killed; where open files stay, Close removes it
	return &Reference{file: f, removed: removed}, nil
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
func (r *Reference) Add(ctx context.Context, m *executor.Machine, text Window) error {
	if r.vocab == 0 {
		r.vocab = m.Vocabulary()
	}
	if m.Vocabulary() != r.vocab {
		return diag.New(diag.ClassInput, "reference has %d token ids, want %d as before", m.Vocabulary(), r.vocab)
	}
	if text.Next >= int32(r.vocab) {
		return diag.New(diag.ClassInput, "reference: the window is followed by id %d, want 0..%d", text.Next, r.vocab-1)
	}
	n := len(text.Tokens)
	w := window{Window: text, offset: r.at, lse: make([]float64, n), top: make([]int32, n)}
	if _, err := r.file.Seek(r.at, 0); err != nil {
		return diag.New(diag.ClassIO, "keep the reference's logits: %w", err)
	}
	out := bufio.NewWriterSize(r.file, 1<<20)
	err := forward(ctx, m, text.Tokens, n, func(i int, x row) error {
		w.lse[i], w.top[i] = x.lse, int32(x.top)
		_, err := out.Write(mem.Bytes(x.logits))
		return err
	})
	if err == nil {
		err = out.Flush()
	}
	if err != nil {
		var d *diag.Diagnostic
		if errors.As(err, &d) || ctx.Err() != nil {
			return fmt.Errorf("reference: %w", err)
		}
		return diag.New(diag.ClassIO, "keep the reference's logits: %w", err).WithHint("TMPDIR names a directory for temporary files; fewer --windows need less space")
	}
	r.at += int64(n) * r.rowBytes()
	r.windows = append(r.windows, w)
	return nil
}

func (r *Reference) rowBytes() int64 { return 4 * int64(r.vocab) }

// Windows is the number of windows held.
func (r *Reference) Windows() int { return len(r.windows) }

// Clear forgets all windows.
func (r *Reference) Clear() { r.windows, r.at = nil, 0 }

// Compare executes window i with another machine, step tokens a call (the window's length for its prefill,
// 1 for its decode programs), and adds the comparison to t.
func (r *Reference) Compare(ctx context.Context, m *executor.Machine, i, step int, t *Tally) error {
	if m.Vocabulary() != r.vocab {
		return diag.New(diag.ClassInput, "compare: candidate has %d token ids, and its reference %d", m.Vocabulary(), r.vocab)
	}
	w := &r.windows[i]
	want := make([]float32, r.vocab)
	var kl, top, nll, ref, followed float64
	err := forward(ctx, m, w.Tokens, step, func(pos int, got row) error {
		if _, err := r.file.ReadAt(mem.Bytes(want), w.offset+int64(pos)*r.rowBytes()); err != nil {
			return diag.New(diag.ClassIO, "read back the reference's logits: %w", err)
		}
		p := row{want, w.lse[pos], int(w.top[pos])}
		kl += divergence(&p, &got)
		if p.top == got.top {
			top++
		}
		if next, ok := w.next(pos); ok {
			nll -= got.logp(next)
			ref -= p.logp(next)
			followed++
		}
		return nil
	})
	if err != nil {
		return err
	}
	n := float64(len(w.Tokens))
	t.positions += len(w.Tokens)
	t.kl, t.top = append(t.kl, kl/n), append(t.top, top/n)
	t.nll, t.ref = append(t.nll, nll/followed), append(t.ref, ref/followed)
	return nil
}

// Execute executes a window for those who observe m.
func Execute(ctx context.Context, m *executor.Machine, w Window) error {
	return forward(ctx, m, w.Tokens, len(w.Tokens), func(int, row) error { return nil })
}

// forward executes tokens on an empty cache, step of them a call, and hands over every position's row.
func forward(ctx context.Context, m *executor.Machine, tokens []int32, step int, sink func(pos int, r row) error) error {
	m.Reset()
	return m.Do(ctx, func(c *executor.Control) error {
		for at := 0; at < len(tokens); at += step {
			part := tokens[at:min(at+step, len(tokens))]
			_, err := c.Forward(part, executor.WantAll, func(i int, logits []float32) error {
				r, err := newRow(logits)
				if err != nil {
					return diag.New(diag.ClassRun, "position %d: %w, want finite logits", at+i, err)
				}
				return sink(at+i, r)
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}
