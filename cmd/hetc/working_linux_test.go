package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hetc/hetc/cmd/internal/solving"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/solver"
)

// workingWorkload permits so many combinations of schemes, with a bound of memory that binds, that keeping each of them as a problem took
// more than a gigabyte.
const workingWorkload = `schema: hetc.workload/1
prompts: [{tokens: 100}, {tokens: 300}]
schemes:
  prefill: [a32/w32, a8t/q8c, a8t/q4b32]
  decode: [a32/w32, a8t/q8c, a8t/q4b32]
memory: 60MiB
`

// workingResult is the part of solve's result that tells what solving took.
type workingResult struct {
	Digest string           `json:"digest"`
	Proof  solver.Proof     `json:"proof"`
	Solves []solving.Solved `json:"solves"`
	Took   struct {
		MS           int64 `json:"ms"`
		ProcessorMS  int64 `json:"processor_ms"`
		WorkingBytes int64 `json:"working_bytes"`
	} `json:"took"`
}

// limited runs hetc in a process that cannot get much memory. It returns what it said, its exit code and the most that was resident.
func limited(t *testing.T, d *dir, args ...string) (text string, code int, rss int64) {
	t.Helper()
	c := exec.Command("sh", append([]string{"-c", `ulimit -v 6000000; exec hetc "$@"`, "sh"}, args...)...)
	c.Dir = d.path
	c.Env = append(os.Environ(), "GOGC=") // as users run it
	var errs strings.Builder
	c.Stderr = &errs
	b, _ := c.Output()
	if code = c.ProcessState.ExitCode(); code != 0 {
		b = []byte(errs.String())
	}
	return string(b), code, c.ProcessState.SysUsage().(*syscall.Rusage).Maxrss << 10
}

// Solving keeps within its working memory: by what it counts, and by what the system says of the process. The plan does not
// depend on how much it may keep. With too little it refuses, with what to do.
func TestWorkingMemory(t *testing.T) {
	require.Slow(t)
	d := &dir{T: t, path: t.TempDir(), model: artifacts(t).model}
	d.must(os.WriteFile(d.at("w.yaml"), []byte(workingWorkload), 0o600))
	if text, code, _ := limited(t, d, "profile", "--soc", "snapdragon-8gen3", "--model", d.model, "--workload", "w.yaml", "--rounds", "1", "-o", "r.jsonl"); code != 0 {
		t.Fatalf("profile: %d\n%s", code, text)
	}
	solve := func(memory, plan string) (string, int, int64) {
		return limited(t, d, "--json", "solve", "--soc", "snapdragon-8gen3", "--record", "r.jsonl", "--model", d.model, "--workload", "w.yaml", "--working-memory", memory, "-o", plan, "--write-models", "models-"+memory)
	}
	digests := map[string]bool{}
	for memory, bytes := range map[string]int64{"1GiB": 1 << 30, "96MiB": 96 << 20} {
		text, code, rss := solve(memory, memory+".yaml")
		var r workingResult
		if err := json.Unmarshal([]byte(text), &r); code != 0 || err != nil {
			t.Fatalf("%s: %d, %v\n%s", memory, code, err, text)
		}
		engines := 0.0
		for _, x := range r.Solves {
			engines += x.MS
		}
		t.Logf("%s: %d problems, %d KiB counted, %d KiB resident, %d ms (%d of processor), engines %.0f ms", memory, len(r.Solves), r.Took.WorkingBytes>>10, rss>>10, r.Took.MS, r.Took.ProcessorMS, engines)
		if r.Took.WorkingBytes > bytes || r.Took.WorkingBytes < 1<<20 || rss > 500<<20 {
			t.Errorf("%s: %d bytes counted, %d resident", memory, r.Took.WorkingBytes, rss)
		}
		if len(r.Solves) > 200 {
			t.Errorf("%s: %d problems were posed", memory, len(r.Solves))
		}
		if float64(r.Took.MS) < engines || r.Took.ProcessorMS < 1 {
			t.Errorf("%s: took %d ms in all, and engines %v", memory, r.Took.MS, engines)
		}
		if r.Proof.Problems == 0 || r.Proof.Open != 0 {
			t.Errorf("%s: %+v", memory, r.Proof)
		}
		digests[r.Digest] = true
		// Of the problems that were posed only those whose solutions are in the plan are written.
		files, err := filepath.Glob(d.at("models-" + memory + "/*.lp"))
		if err != nil || len(files) == 0 || len(files) > r.Proof.Problems || len(files) >= len(r.Solves) {
			t.Errorf("%s: %d linear programs of %d problems, %d of the plan, %v", memory, len(files), len(r.Solves), r.Proof.Problems, err)
		}
		checkIndex(t, d.at("models-"+memory), files, r.Solves)
	}
	if len(digests) != 1 {
		t.Errorf("the plan depends on the working memory: %v", digests)
	}
	for memory, want := range map[string]string{"2MiB": "more working memory than the 2 MiB", "lots": `--working-memory "lots"`} {
		text, code, _ := solve(memory, "x.yaml")
		if code != map[string]int{"2MiB": 4, "lots": 2}[memory] || !strings.Contains(text, want) || !strings.Contains(text, "hint: ") {
			t.Errorf("%s: %d\n%s", memory, code, text)
		}
	}
}
