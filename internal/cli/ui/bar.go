package ui

import (
	"fmt"
	"strings"
	"sync"
)

// barWidth is how many characters a bar has.
const barWidth = 24

// Bar shows how many of a number of things are done. On a terminal that is a bar in one line, elsewhere a line for
// each wave.
type Bar struct {
	task  *Task // on a terminal
	out   *Progress
	what  string
	total int
	wave  int

	mu           sync.Mutex
	done, failed int
}

// Bar begins to show total things, which are done in waves of a number. what says what they are and what happens to
// them, such as "clusters asked".
func (p *Progress) Bar(total, wave int, what string) *Bar {
	b := &Bar{out: p, what: what, total: total, wave: max(wave, 1)}
	if p.Spin && p.Out != nil {
		b.task = p.Start("%s", b.text())
	}
	return b
}

// Step says that one more is done. It is safe for concurrent use.
func (b *Bar) Step(failed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done++
	if failed {
		b.failed++
	}
	switch {
	case b.task != nil:
		b.task.Update("%s", b.text())
	case b.done%b.wave == 0 && b.done < b.total:
		b.out.Info("%s", b.text())
	}
}

// End takes the bar away, and says in a line how many were done.
func (b *Bar) End() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.task != nil {
		b.task.Stop()
	}
	if b.total > 0 {
		b.out.Info("%s", b.sentence())
	}
}

func (b *Bar) sentence() string {
	text := fmt.Sprintf("%d of %d %s", b.done, b.total, b.what)
	if b.failed > 0 {
		text += fmt.Sprintf(", %d failed", b.failed)
	}
	return text
}

func (b *Bar) text() string {
	if b.task == nil && !b.out.Spin {
		return b.sentence()
	}
	full := 0
	if b.total > 0 {
		full = b.done * barWidth / b.total
	}
	return "[" + strings.Repeat("█", full) + strings.Repeat("·", barWidth-full) + "] " + b.sentence()
}
