//go:build !unix

package cli

import "time"

// ProcessorTime returns what this process has used of all processors together; 0 where the system does not say.
func ProcessorTime() time.Duration { return 0 }
