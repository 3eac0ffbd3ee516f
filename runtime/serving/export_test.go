package serving

// Told reports whether the reader is to look again, as Next does before it waits.
func (a *Answer) Told() bool {
	select {
	case <-a.more:
		return true
	default:
		return false
	}
}
