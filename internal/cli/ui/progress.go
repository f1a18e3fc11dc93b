package ui

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// Progress prints the steps of a command, one per line. It is safe for concurrent use. On a terminal a running Task
// shows a spinner; elsewhere nothing is overwritten. The zero value prints nothing.
type Progress struct {
	// Out receives the lines, normally stderr. Nil means no output.
	Out io.Writer
	// Style colours the marks.
	Style Style
	// Spin lets a Task redraw its line. Set it only for a terminal.
	Spin bool
	// Now is the clock that measures long steps; nil means no durations.
	Now func() time.Time

	mu   sync.Mutex
	task *Task     // its line is on the screen
	last time.Time // end of the previous step
}

// NewProgress returns a Progress that writes to w, with colour and spinner if w and the environment allow them. With
// quiet it prints nothing.
func NewProgress(w io.Writer, getenv func(string) string, quiet bool) *Progress {
	if quiet {
		return &Progress{}
	}
	p := &Progress{Out: w, Style: StyleFor(w, getenv), Spin: IsTerminal(w) && getenv("TERM") != "dumb"}
	if p.Spin {
		p.Now, p.last = time.Now, time.Now()
	}
	return p
}

// Info prints a fact or an intention.
func (p *Progress) Info(format string, args ...any) { p.line("•", format, args...) }

// Done prints a step that succeeded.
func (p *Progress) Done(format string, args ...any) { p.step(p.Style.Good("✓"), format, args...) }

// Fail prints a step that failed.
func (p *Progress) Fail(format string, args ...any) { p.step(p.Style.Bad("✗"), format, args...) }

// Warn prints a warning.
func (p *Progress) Warn(format string, args ...any) { p.line(p.Style.Caution("!"), format, args...) }

// step prints a line with the duration of the step, if it is noticeable.
func (p *Progress) step(mark, format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := oneLine(fmt.Sprintf(format, args...))
	if p.Now != nil {
		now := p.Now()
		if took := now.Sub(p.last); !p.last.IsZero() && took >= noticeable {
			text += p.Style.Faint(fmt.Sprintf(" (%s)", took.Round(100*time.Millisecond)))
		}
		p.last = now
	}
	p.printLocked(mark, text)
}

// noticeable is the shortest duration that is printed.
const noticeable = 200 * time.Millisecond

func (p *Progress) line(mark, format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.printLocked(mark, oneLine(fmt.Sprintf(format, args...)))
}

func (p *Progress) printLocked(mark, text string) {
	if p.Out == nil {
		return
	}
	if p.task != nil {
		p.write("\r\x1b[K")
	}
	p.write(mark + " " + text + "\n")
}

// write ignores errors: progress output must not stop a command.
func (p *Progress) write(text string) { _, _ = io.WriteString(p.Out, text) }

// Task is a step that takes time. End it with Done, Fail or Stop; a second end does nothing.
type Task struct {
	progress *Progress
	text     string
	stop     chan struct{}
	stopped  chan struct{}
	once     sync.Once
}

// Start prints that a step begins. On a terminal the result replaces the line; elsewhere it is a second line.
func (p *Progress) Start(format string, args ...any) *Task {
	t := &Task{progress: p, text: oneLine(fmt.Sprintf(format, args...))}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.Out == nil || !p.Spin || p.task != nil {
		p.printLocked("•", t.text)
		return t
	}
	p.task, t.stop, t.stopped = t, make(chan struct{}), make(chan struct{})
	go t.spin()
	return t
}

func (t *Task) spin() {
	defer close(t.stopped)
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	frames := []rune("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")
	for i := 0; ; i++ {
		t.progress.mu.Lock()
		t.progress.write("\r\x1b[K" + string(frames[i%len(frames)]) + " " + t.text)
		t.progress.mu.Unlock()
		select {
		case <-t.stop:
			return
		case <-ticker.C:
		}
	}
}

// Update changes the text of a running step. Without a terminal, it prints another line if the text is new.
func (t *Task) Update(format string, args ...any) {
	text := oneLine(fmt.Sprintf(format, args...))
	t.progress.mu.Lock()
	defer t.progress.mu.Unlock()
	if text == t.text {
		return
	}
	t.text = text
	if t.stop == nil {
		t.progress.printLocked("•", text)
	}
}

// Done ends the step as a success.
func (t *Task) Done(format string, args ...any) {
	t.end(func() { t.progress.Done(format, args...) })
}

// Fail ends the step as a failure.
func (t *Task) Fail(format string, args ...any) {
	t.end(func() { t.progress.Fail(format, args...) })
}

// Stop ends the step without a result, for example before an error is printed.
func (t *Task) Stop() { t.end(func() {}) }

func (t *Task) end(print func()) {
	t.once.Do(func() {
		if t.stop != nil {
			close(t.stop)
			<-t.stopped
			t.progress.mu.Lock()
			t.progress.write("\r\x1b[K")
			t.progress.task = nil
			t.progress.mu.Unlock()
		}
		print()
	})
}

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
