package capability

// Waiting is how a lane notices that a processor which executes calls by itself is done with one. It is no ability but a
// choice: profiles measure which is best on a device.
type Waiting string

const (
	WaitSleep Waiting = ""      // it sleeps for as long as the calls are expected to take, then asks again and again
	WaitPoll  Waiting = "poll"  // it asks again and again from the beginning
	WaitEvent Waiting = "event" // in the driver's own way, which wakes its thread
)

// Waitings are all ways to wait.
var Waitings = []Waiting{WaitSleep, WaitPoll, WaitEvent}
