package profiler

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/runtime/driver"
)

// source takes samples of one request.
type source interface {
	// sample measures n executions and returns nanoseconds per execution. It runs on the caller's
	// goroutine and uses lanes as it needs them.
	sample(ctx context.Context, n int) (float64, error)
	close(ctx context.Context)
}

// soloSource runs one operator while all other processors are idle.
type soloSource struct{ *loadedOp }

// sample executes the operator times times in a row on its lane.
func (s soloSource) sample(ctx context.Context, times int) (ns float64, err error) {
	err = s.lane.do(ctx, func() error {
		ns, err = s.run(times)
		return err
	})
	return ns, err
}

// warmOperands brings the caches into the state in which a running model finds them, whatever was measured meanwhile:
// it reads footprint bytes of the operands through which the operator rotates, and executes the operator once.
// RATIONALE: Why does an execution that is not counted precede each sample?
func (s soloSource) warmOperands(ctx context.Context, footprint int64) error {
	return s.lane.do(ctx, func() error {
		for _, st := range s.stores {
			data := st.region.Bytes()
			readMemory(data[:min(int64(len(data)), footprint)/512*512])
		}
		if _, ok := s.lane.proc.(driver.Asynchronous); ok {
			return nil // a sample is the difference of two runs, of which the first is not counted
		}
		return s.runOnce(s.lane.proc)
	})
}

// concurrentSource runs one operator while other processors are busy, with operators or with reading memory.
type concurrentSource struct {
	*loadedOp
	others []*loadedOp
	stream *streamPartner
}

// sample starts the others, waits until each has finished once, and stops them after its own runs.
// So every execution that counts had company from beginning to end.
func (s *concurrentSource) sample(ctx context.Context, times int) (ns float64, err error) {
	var stop, failed atomic.Bool
	var waits []func() error
	begun := make([]atomic.Bool, len(s.others))
	if s.stream != nil {
		if err := s.stream.start(); err != nil {
			return 0, err
		}
		defer s.stream.stop()
	}
	for i, other := range s.others {
		waits = append(waits, other.lane.start(ctx, func() error {
			for !stop.Load() {
				if _, err := other.run(1); err != nil {
					failed.Store(true)
					return err
				}
				begun[i].Store(true)
			}
			return nil
		}))
	}
	err = s.lane.do(ctx, func() (err error) {
		if !await(ctx, begun, &failed) {
			return ctx.Err()
		}
		ns, err = s.run(times)
		return err
	})
	stop.Store(true)
	for _, wait := range waits {
		if failed := wait(); failed != nil && err == nil {
			err = failed
		}
	}
	if err == nil && failed.Load() {
		err = diag.New(diag.ClassRun, "a processor beside failed")
	}
	return ns, err
}

// await spins until all flags are set. It returns false when something has failed or the context has ended before.
func await(ctx context.Context, begun []atomic.Bool, failed *atomic.Bool) bool {
	for i := range begun {
		for spins := 1; !begun[i].Load(); spins++ {
			if failed.Load() || ctx.Err() != nil {
				return false
			}
			if spins&0xfff == 0 {
				runtime.Gosched()
			}
		}
	}
	return true
}

// close frees the executables of the measured operator and of its company.
func (s *concurrentSource) close(ctx context.Context) {
	s.loadedOp.close(ctx)
	for _, other := range s.others {
		other.close(ctx)
	}
}

// streamPartner reads memory on the cores of a processor while another one is measured.
type streamPartner struct {
	cores  []int
	memory []byte
	read   func([]byte) uint64
	ws     *workers
}

// start begins to read, with one worker on each core.
func (s *streamPartner) start() (err error) {
	s.ws, err = startWorkers(s.cores, reading(s.memory, len(s.cores), s.read))
	return err
}

// stop ends the workers.
func (s *streamPartner) stop() { s.ws.close() }

// loadSource measures how long a driver takes to load an operator.
type loadSource struct {
	r      *runner
	lane   *lane
	op     op.Op
	layout string
}

// sample loads and unloads the operator times times; compiling it is not counted.
func (s *loadSource) sample(ctx context.Context, times int) (float64, error) {
	total := 0.0
	for range times {
		ld, err := s.r.loadOp(ctx, s.lane, s.op, s.layout, 0)
		if err != nil {
			return 0, err
		}
		total += ld.loadNS
		ld.close(ctx)
	}
	return total / float64(times), nil
}

// close has nothing to free: sample has freed what it loaded.
func (s *loadSource) close(context.Context) {}

// statedSource repeats a value that the SoC's description states: hand-overs of a simulated SoC are not executed.
type statedSource float64

// sample needs no measurement, so that all samples are equal.
func (s statedSource) sample(context.Context, int) (float64, error) { return float64(s), nil }
func (s statedSource) close(context.Context)                        {}

// copySource measures a copy between two buffers, on the thread of the processor that needs the data.
type copySource struct {
	lane     *lane
	dst, src []byte
}

// sample copies the whole buffer times times; the result is the time of one copy.
func (c *copySource) sample(ctx context.Context, times int) (ns float64, err error) {
	err = c.lane.do(ctx, func() error {
		start := c.lane.proc.Now()
		for range times {
			copy(c.dst, c.src)
		}
		ns = float64(c.lane.proc.Now()-start) / float64(times)
		return nil
	})
	return ns, err
}

// close leaves the buffers to the stores.
func (c *copySource) close(context.Context) {}

// streamSource measures bandwidth with readers of its own, one per core; its samples are the time of
// bytes bytes.
type streamSource struct {
	memory        []byte
	read          func([]byte) uint64
	cores, beside []int
	bytes         int64
	window        time.Duration
}

// sample reads for a window of time, whatever the number of executions asked for.
func (s *streamSource) sample(ctx context.Context, _ int) (float64, error) {
	xs, err := sampleRates(ctx, s.cores, s.beside, 1, s.window, reading(s.memory, len(s.cores)+len(s.beside), s.read))
	if err != nil {
		return 0, err
	}
	return float64(s.bytes) / xs[0], nil
}

// close leaves the memory to the runner, which all streams share.
func (s *streamSource) close(context.Context) {}

// handoverSource measures how long a flag takes from one core to another.
type handoverSource struct{ from, to int }

// sample passes the flag back and forth times times; the result is the time of one way.
func (h *handoverSource) sample(ctx context.Context, times int) (float64, error) {
	_, xs, err := handover(ctx, h.from, h.to, 1, uint32(times))
	if err != nil {
		return 0, err
	}
	return xs[0], nil
}

// close has nothing to free: the threads end with each sample.
func (h *handoverSource) close(context.Context) {}

// openSource prepares the source of a request's samples.
func (r *runner) openSource(ctx context.Context, what *record.Measurement) (source, error) {
	switch what.Kind {
	case record.Op, record.Launch:
		return r.openOp(ctx, what)
	case record.Load:
		lane, err := r.lane(ctx, what.Proc, nil)
		if err != nil {
			return nil, err
		}
		return &loadSource{r, lane, *what.Op, what.Layout}, nil
	case record.Bandwidth:
		return r.openBandwidth(ctx, what)
	case record.Sync:
		return r.openSync(what)
	case record.Copy:
		return r.openCopy(ctx, what)
	}
	return nil, diag.New(diag.ClassInput, "measure: unknown kind %q", what.Kind)
}

// footprint returns the number of bytes through which operands rotate; bytes is the number that the request states, 0
// for none.
func (r *runner) footprint(cold bool, bytes int64) int64 {
	switch {
	case !cold:
		return 0
	case bytes > 0:
		return min(bytes, r.coldBytes)
	}
	return r.coldBytes
}

// openOp loads an operator and what runs beside it.
func (r *runner) openOp(ctx context.Context, what *record.Measurement) (source, error) {
	if r.virtual(what.Proc) {
		return r.openVirtual(ctx, what)
	}
	lane, err := r.lane(ctx, what.Proc, nil)
	if err != nil {
		return nil, err
	}
	ld, err := r.loadMeasured(ctx, lane, what, groupMember{number: 0, operators: 1 + len(what.Concurrent)})
	if err != nil || len(what.Concurrent) == 0 {
		return soloSource{ld}, err
	}
	out := &concurrentSource{loadedOp: ld}
	for _, partner := range what.Concurrent {
		if err := r.addPartner(ctx, out, what, partner); err != nil {
			out.close(ctx)
			return nil, err
		}
	}
	return out, nil
}

// addPartner loads what one partner runs beside the measured operator. A partner without an operator reads memory: on
// its cores where it has some, in one group with all other readers, and otherwise by adding large matrices.
func (r *runner) addPartner(
	ctx context.Context, out *concurrentSource, what *record.Measurement, partner record.Partner,
) error {
	if err := r.soc.Concurrent(what.Proc, partner.Proc); err != nil {
		return err
	}
	proc := r.soc.Processor(partner.Proc)
	if partner.Op == nil && readsOnCores(proc) {
		memory, err := r.stream()
		if err != nil {
			return err
		}
		read, err := r.reader(ctx)
		if err != nil {
			return err
		}
		if out.stream == nil {
			out.stream = &streamPartner{memory: memory, read: read}
		}
		out.stream.cores = append(out.stream.cores, proc.Cores...)
		return nil
	}
	if partner.Op == nil {
		operator := streamOp(false)
		partner.Op, partner.Layout = &operator, ""
	}
	lane, err := r.lane(ctx, partner.Proc, nil)
	if err != nil {
		return err
	}
	other, err := r.loadInGroup(ctx, lane, *partner.Op, partner.Layout, r.footprint(partner.Cold, what.Footprint),
		groupMember{number: 1 + len(out.others), operators: 1 + len(what.Concurrent)})
	if err != nil {
		return err
	}
	out.others = append(out.others, other)
	return nil
}

// openVirtual is openOp on a processor with a virtual clock. Streams beside it are an option of its
// driver; operators side by side are run one after the other, and the driver then works out when
// each would have run.
func (r *runner) openVirtual(ctx context.Context, what *record.Measurement) (source, error) {
	var streams []string
	var partners []*loadedOp
	open := func(partner record.Partner) error {
		if partner.Op == nil {
			streams = append(streams, partner.Proc)
			return nil
		}
		lane, err := r.lane(ctx, partner.Proc, nil)
		if err != nil {
			return err
		}
		ld, err := r.loadOp(ctx, lane, *partner.Op, partner.Layout, 0)
		if err == nil {
			partners = append(partners, ld)
		}
		return err
	}
	closeAll := func() {
		for _, partner := range partners {
			partner.close(ctx)
		}
	}
	for _, partner := range what.Concurrent {
		if err := open(partner); err != nil {
			closeAll()
			return nil, err
		}
	}
	var options map[string]string
	if len(streams) > 0 {
		options = map[string]string{"beside": strings.Join(streams, ",")}
	}
	lane, err := r.lane(ctx, what.Proc, options)
	if err != nil {
		closeAll()
		return nil, err
	}
	ld, err := r.loadMeasured(ctx, lane, what, alone)
	switch {
	case err != nil:
		closeAll()
		return nil, err
	case len(partners) == 0:
		ld.startNoise(r.sequence(what, ""))
		return soloSource{ld}, nil
	}
	sequence := r.sequence(what, what.Key())
	ld.startNoise(sequence)
	for _, partner := range partners {
		partner.startNoise(sequence)
	}
	return &virtualSource{ld, partners}, nil
}

// sequence names the noise that a request gets on a virtual clock. It depends on nothing measured before, so that an
// interrupted run that is resumed records the same as an uninterrupted one.
func (r *runner) sequence(what *record.Measurement, name string) string {
	if visits := r.writer.Set().Rounds(what.Key()); visits > 0 { // it is measured anew
		name += fmt.Sprintf(" visit %d", visits)
	}
	return name
}

// virtualSource runs one operator on a virtual clock while others repeat theirs.
type virtualSource struct {
	*loadedOp
	others []*loadedOp
}

// sample runs each operator once, then lets the driver compute how long the first takes while the
// others repeat.
func (s *virtualSource) sample(ctx context.Context, times int) (ns float64, err error) {
	loads := append([]*loadedOp{s.loadedOp}, s.others...)
	for range times {
		schedule := driver.Schedule{}
		for i, ld := range loads {
			proc, ok := ld.lane.proc.(driver.Virtual)
			if !ok {
				return 0, diag.New(diag.ClassRun, "measure side by side: processor %q does not tell what its calls did",
					ld.lane.name)
			}
			if _, err := (soloSource{ld}).sample(ctx, 1); err != nil {
				return 0, err
			}
			schedule.Lanes = append(schedule.Lanes, driver.ScheduleLane{Proc: proc,
				Calls: []driver.ScheduleCall{{Work: proc.Last()}}, Endless: i > 0})
		}
		if err := schedule.Lanes[0].Proc.(driver.Virtual).Settle(&schedule); err != nil {
			return 0, err
		}
		span := schedule.Lanes[0].Calls[0].Span
		ns += float64(span.End - span.Start)
	}
	return ns / float64(times), nil
}

// close frees the loads of the operator and of the others.
func (s *virtualSource) close(ctx context.Context) {
	s.loadedOp.close(ctx)
	for _, other := range s.others {
		other.close(ctx)
	}
}

// streamOp measures the bandwidth of processors without readable cores: an addition of large
// matrices, which only moves memory. In virtual time it is so large that the launch does not count.
func streamOp(virtual bool) op.Op {
	operator := op.Op{Kind: op.Add, M: 2048, N: 4096}
	if virtual {
		operator.M = 1 << 22
	}
	return operator
}

// openBandwidth prepares reading memory; processors without readable cores add large matrices instead.
func (r *runner) openBandwidth(ctx context.Context, what *record.Measurement) (source, error) {
	proc := r.soc.Processor(what.Proc)
	if proc == nil {
		return nil, r.unknown(what.Proc)
	}
	if r.virtual(what.Proc) || !readsOnCores(proc) {
		operator := streamOp(r.virtual(what.Proc))
		own := *what
		own.Op, own.Layout = &operator, ""
		src, err := r.openOp(ctx, &own)
		if err != nil {
			return nil, err
		}
		return &scaledSource{src, float64(what.Bytes) / float64(operator.Bytes())}, nil
	}
	memory, err := r.stream()
	if err != nil {
		return nil, err
	}
	read, err := r.reader(ctx)
	if err != nil {
		return nil, err
	}
	out := &streamSource{memory: memory, read: read, cores: proc.Cores, bytes: what.Bytes, window: r.options.window}
	for _, partner := range what.Concurrent {
		if err := r.soc.Concurrent(what.Proc, partner.Proc); err != nil {
			return nil, err
		}
		if partner.Op != nil {
			return nil, diag.New(diag.ClassInput,
				"measure bandwidth of %q beside an operator: want beside reading memory", what.Proc)
		}
		other := r.soc.Processor(partner.Proc)
		if !readsOnCores(other) {
			return nil, diag.New(diag.ClassInfeasible,
				"measure bandwidth of %q beside %q, which is a device: that device is measured beside the cores instead",
				what.Proc, partner.Proc)
		}
		out.beside = append(out.beside, other.Cores...)
	}
	return out, nil
}

// scaledSource turns times of one amount of work into times of another.
type scaledSource struct {
	source
	factor float64
}

// sample returns a sample of the source, multiplied.
func (s *scaledSource) sample(ctx context.Context, times int) (float64, error) {
	ns, err := s.source.sample(ctx, times)
	return ns * s.factor, err
}

// openSync prepares handing a flag from one processor's first core to the other's; a simulated SoC states the time.
// What the hand-over to a device with a queue takes, probe measures.
func (r *runner) openSync(what *record.Measurement) (source, error) {
	from, to := r.soc.Processor(what.Proc), r.soc.Processor(what.To)
	if from == nil {
		return nil, r.unknown(what.Proc)
	}
	if to == nil {
		return nil, r.unknown(what.To)
	}
	if err := r.soc.Concurrent(what.Proc, what.To); err != nil {
		return nil, err
	}
	queues := from.SingleQueue || to.SingleQueue // a device that is made of cores sets no flag on them
	if queues || r.virtual(what.Proc) || r.virtual(what.To) || len(from.Cores) == 0 || len(to.Cores) == 0 {
		link, ok := r.soc.Link(what.Proc, what.To)
		if !ok || !r.virtual(what.Proc) {
			return nil, diag.New(diag.ClassInput,
				"hand-over from %q to %q: it cannot be measured on these processors, and SoC %q does not state it",
				what.Proc, what.To, r.soc.Name)
		}
		return statedSource(1e3 * link.HandoverUS), nil
	}
	return &handoverSource{from.Cores[0], to.Cores[0]}, nil
}

// openCopy prepares copying between buffers of two processors, or of one; a simulated SoC states the speed.
func (r *runner) openCopy(ctx context.Context, what *record.Measurement) (source, error) {
	link, ok := r.soc.Link(what.Proc, what.To)
	if ok && link.CopyGBps > 0 { // of a simulated SoC, or into a memory that is not the host's: probe has measured it
		return statedSource(1e3*link.CopyLaunchUS + float64(what.Bytes)/link.CopyGBps), nil
	}
	if r.virtual(what.Proc) {
		return nil, diag.New(diag.ClassInput, "copy from %q to %q: SoC %q does not state its speed", what.Proc,
			what.To, r.soc.Name)
	}
	src, err := r.lane(ctx, what.Proc, nil)
	if err != nil {
		return nil, err
	}
	dst := src
	if what.To != "" {
		if dst, err = r.lane(ctx, what.To, nil); err != nil {
			return nil, err
		}
	}
	from, err := src.ops.buffer("copy from ", op.U8, what.Bytes)
	if err != nil {
		return nil, err
	}
	to, err := dst.ops.buffer("copy to ", op.U8, what.Bytes)
	if err != nil {
		return nil, err
	}
	return &copySource{dst, to.Bytes()[:what.Bytes], from.Bytes()[:what.Bytes]}, nil
}
