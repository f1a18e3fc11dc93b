package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// memoryGroup is a control group of Linux in which a program has no more memory than in its container. A program that
// needs more is killed there.
type memoryGroup struct{ dir string }

// newMemoryGroup makes one, of version 2 or 1. That needs root.
func newMemoryGroup(limit int64) (*memoryGroup, error) {
	var problems []error
	for _, version := range []struct{ root, file string }{
		{"/sys/fs/cgroup", "memory.max"},
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"},
	} {
		dir, err := os.MkdirTemp(version.root, "pinniped-bench-")
		if err != nil {
			problems = append(problems, err)
			continue
		}
		group := &memoryGroup{dir}
		if err = group.write(version.file, strconv.FormatInt(limit, 10)); err == nil {
			return group, nil
		}
		problems = append(problems, err, group.close())
	}
	return nil, fmt.Errorf("making a control group: %w", errors.Join(problems...))
}

// write changes a file that the system made: a folder that is no control group has none.
func (g *memoryGroup) write(name, value string) error {
	file, err := os.OpenFile(filepath.Join(g.dir, name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(value)
	return errors.Join(err, file.Close())
}

// add moves a program into the group. A nil group is none.
func (g *memoryGroup) add(pid int) error {
	if g == nil {
		return nil
	}
	if err := g.write("cgroup.procs", strconv.Itoa(pid)); err != nil {
		return fmt.Errorf("bounding the agent's memory: %w", err)
	}
	return nil
}

// close removes the group, in which no program may be left.
func (g *memoryGroup) close() error {
	if g == nil {
		return nil
	}
	return os.Remove(g.dir)
}
