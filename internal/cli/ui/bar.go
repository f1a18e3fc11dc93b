package ui

import (
	"fmt"
	"strings"
	"sync"
)

// barWidth is the width of a bar in characters.
const barWidth = 24

// Bar shows the progress through a number of items: on a terminal as a bar in one line, elsewhere as a line per wave.
type Bar struct {
	task  *Task // on a terminal
	out   *Progress
	what  string
	total int
	wave  int

	mu           sync.Mutex
	done, failed int
}

// Bar starts a bar for total items, with wave items per wave. what describes the finished items, such as "clusters
// asked".
func (p *Progress) Bar(total, wave int, what string) *Bar {
	b := &Bar{out: p, what: what, total: total, wave: max(wave, 1)}
	if p.Spin && p.Out != nil {
		b.task = p.Start("%s", b.text())
	}
	return b
}

// Step counts one more finished item. It is safe for concurrent use.
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

// End removes the bar and prints the totals in one line.
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
