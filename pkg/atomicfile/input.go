package atomicfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"
)

// pipeWait is how long a pipe may provide no data.
const pipeWait = time.Minute

// Inputs reads files that a user names, which may be pipes: /dev/stdin, or <(COMMAND) of a shell. A pipe can be read
// only once, so its content is cached. A nil *Inputs works and caches nothing.
type Inputs struct {
	mu   sync.Mutex
	kept map[string][]byte // by path
}

// Read reads the file at path, of at most limit bytes.
func (i *Inputs) Read(path string, limit int64) ([]byte, error) {
	if i == nil {
		return ReadInput(path, limit)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if content, ok := i.kept[path]; ok {
		return content, nil
	}
	content, err := ReadInput(path, limit)
	if info, _ := os.Stat(path); err == nil && (info == nil || !info.Mode().IsRegular()) {
		if i.kept == nil {
			i.kept = map[string][]byte{}
		}
		i.kept[path] = content
	}
	return content, err
}

// ReadInput is ReadFile for a file that a user names. It may be a pipe or device, which is read to the end. It returns
// an error if that provides no data for a minute.
func ReadInput(path string, limit int64) ([]byte, error) { return readInput(path, limit, pipeWait) }

// ReadStream reads r to the end. It returns ErrTooLarge after more than limit bytes.
func ReadStream(r io.Reader, limit int64) ([]byte, error) {
	content, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(content)) > limit {
		err = fmt.Errorf("%w: it has more than %d bytes", ErrTooLarge, limit)
	}
	return content, err
}

func readInput(path string, limit int64, wait time.Duration) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, &fs.PathError{Op: "open", Path: path, Err: rootCause(err)}
	case info.Mode().IsRegular() || info.IsDir():
		return ReadFile(path, limit)
	}
	// Opening a pipe blocks until its other end is open. The goroutine is abandoned if nothing comes.
	progress, result := make(chan struct{}, 1), make(chan error, 1)
	var content []byte
	go func() {
		file, err := os.Open(path)
		if err == nil {
			content, err = readPipe(file, limit, progress)
		}
		result <- err
	}()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-progress:
			timer.Reset(wait)
		case err := <-result:
			if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
				err = &fs.PathError{Op: "read", Path: path, Err: rootCause(err)}
			}
			return content, err
		case <-timer.C:
			err := fmt.Errorf("nothing was written to the pipe for %s", wait)
			return nil, &fs.PathError{Op: "read", Path: path, Err: err}
		}
	}
}

func readPipe(file *os.File, limit int64, progress chan<- struct{}) ([]byte, error) {
	defer func() { _ = file.Close() }()
	var content []byte
	chunk := make([]byte, 32<<10)
	for {
		n, err := file.Read(chunk)
		content = append(content, chunk[:n]...)
		switch {
		case int64(len(content)) > limit:
			return nil, fmt.Errorf("%w: it has more than %d bytes", ErrTooLarge, limit)
		case errors.Is(err, io.EOF):
			return content, nil
		case err != nil:
			return nil, err
		}
		select {
		case progress <- struct{}{}:
		default:
		}
	}
}
