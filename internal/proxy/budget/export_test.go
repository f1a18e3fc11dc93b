package budget

// Remembered returns for how many owners resets are remembered.
func (b *Budget) Remembered() int64 { return b.resets.count.Load() }

// Owners returns how many owners hold something.
func (b *Budget) Owners() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.shares)
}
