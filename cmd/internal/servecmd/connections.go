package servecmd

import (
	"net"
	"net/http"
	"slices"
	"sync"
)

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
