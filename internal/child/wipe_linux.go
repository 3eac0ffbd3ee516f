package child

import (
	"bytes"
	"os"
	"strconv"
	"strings"
)

// wipe overwrites a variable in the memory that the kernel put the environment into when the process started. The C
// library's getenv reads it there, and /proc/PID/environ shows it to processes of the same user; neither notices
// os.Unsetenv. Where that memory cannot be written, it stays.
// RATIONALE: Why is the signing key overwritten in memory, when it is out of the environment?
func wipe(name string) {
	from, to, ok := block()
	if !ok {
		return
	}
	memory, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer memory.Close()
	env := make([]byte, to-from)
	if count, _ := memory.ReadAt(env, from); count != len(env) {
		return
	}
	for at := 0; at < len(env); {
		entry, _, _ := bytes.Cut(env[at:], []byte{0})
		if bytes.HasPrefix(entry, []byte(name+"=")) {
			_, _ = memory.WriteAt(make([]byte, len(entry)), from+int64(at))
		}
		at += len(entry) + 1
	}
}

// block returns where the environment lies: fields 50 and 51 of /proc/self/stat, see proc_pid_stat(5).
func block() (from, to int64, ok bool) {
	const fromField, toField, most = 50, 51, 64 << 20
	text, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return 0, 0, false
	}
	const before = 2 // the process's number and its name, which may hold blanks
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < toField-before {
		return 0, 0, false
	}
	from, err1 := strconv.ParseInt(fields[fromField-before-1], 10, 64)
	to, err2 := strconv.ParseInt(fields[toField-before-1], 10, 64)
	return from, to, err1 == nil && err2 == nil && from > 0 && from < to && to-from < most
}
