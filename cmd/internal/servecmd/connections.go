package servecmd

import (
	"net"
	"net/http"
	"slices"
	"sync"
)

// ownFiles is how many files a server has open beside its connections, at most: standard streams, the bundle, the
// listener, a recording, and what the Go runtime and drivers open.
const ownFiles = 20

// connectionsWithin returns how many connections there may be where the process may have so many files open; 0 files:
// that is unknown. With more, clients would find the server without a file for them, and idle connections would stay.
func connectionsWithin(files, wanted int, warn func(format string, args ...any)) int {
	room := max(1, files-ownFiles)
	if files == 0 || wanted <= room {
		return wanted
	}
	warn("--max-connections %d: this process may have %d files open, which is enough for %d connections; raise the limit "+
		"(ulimit -n)", wanted, files, room)
	return room
}

// connections keeps a place for who comes next. Clients leave connections open between two requests: when as many are
// open as may be, the one that has been idle for the longest time is closed.
type connections struct {
	most int

	mutex sync.Mutex
	open  map[net.Conn]bool
	idle  []net.Conn // in the order in which they became so
}

// changed is told of every connection that is new, works, is idle or closed: http.Server.ConnState.
func (c *connections) changed(connection net.Conn, state http.ConnState) {
	if leaves := c.note(connection, state); leaves != nil {
		_ = leaves.Close()
	}
}

// full reports whether as many connections are open as may be.
func (c *connections) full() bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return len(c.open) >= c.most
}

// note returns the connection that has to leave, nil for none.
func (c *connections) note(connection net.Conn, state http.ConnState) (leaves net.Conn) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.idle = slices.DeleteFunc(c.idle, func(other net.Conn) bool { return other == connection })
	switch state {
	case http.StateNew:
		c.open[connection] = true
	case http.StateIdle:
		c.idle = append(c.idle, connection)
	case http.StateClosed, http.StateHijacked:
		delete(c.open, connection)
	}
	if len(c.open) < c.most || len(c.idle) == 0 {
		return nil
	}
	leaves, c.idle = c.idle[0], c.idle[1:]
	delete(c.open, leaves)
	return leaves
}
