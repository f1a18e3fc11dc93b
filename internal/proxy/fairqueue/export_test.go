package fairqueue

// Owners returns how many owners have something in the queue.
func (q *Queue) Owners() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.owners)
}
