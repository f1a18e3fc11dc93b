package atomicfile_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pinniped-toolkit/pinniped/pkg/atomicfile"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

func TestReplaceAMountPoint(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	dir := t.TempDir()
	actual, path := write(t, filepath.Join(dir, "actual")), write(t, filepath.Join(dir, "mounted"))
	mount(t, actual, path, "", syscall.MS_BIND)
	must.Do(t, replace(t, path, nil))
	expect(t, actual, "content")
	must.Do(t, atomicfile.Write(path, []byte("private")))
	expect(t, actual, "private")
	if info, err := os.Stat(actual); err != nil || info.Mode() != 0o600 {
		t.Errorf("want mode 0600 after Write, got %v, %v", info.Mode(), err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("want nothing left behind, got %v, %v", entries, err)
	}
}

// TestReplaceInAReadOnlyFolder overwrites the target of a link in a read-only directory. The backup is next to the
// link.
func TestReplaceInAReadOnlyFolder(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	dir := t.TempDir()
	folder := filepath.Join(dir, "readonly")
	must.Do(t, os.Mkdir(folder, 0o755))
	actual := write(t, filepath.Join(dir, "actual"))
	mount(t, "none", folder, "tmpfs", 0)
	target := write(t, filepath.Join(folder, "config"))
	mount(t, actual, target, "", syscall.MS_BIND)
	mount(t, "none", folder, "", syscall.MS_REMOUNT|syscall.MS_RDONLY)
	must.Do(t, replace(t, link(t, target, filepath.Join(dir, "link")), nil))
	expect(t, actual, "content")
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 3 {
		t.Errorf("want nothing left behind, got %v, %v", entries, err)
	}
	err := replace(t, target, nil)
	if problem, ok := errors.AsType[*atomicfile.InPlaceError](err); !ok || problem.Folder != folder || problem.Copy != "" {
		t.Errorf("without a place for a copy: %v", err)
	}
}

// inNamespace runs the test again in a process that can mount, and reports whether this is that process.
func inNamespace(t *testing.T) bool {
	t.Helper()
	const mark = "PINNIPED_TEST_NAMESPACE"
	if os.Getenv(mark) != "" {
		return true
	}
	self := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	self.Env = append(os.Environ(), mark+"=1")
	self.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := self.CombinedOutput()
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.ENOSPC) {
		t.Skipf("this system has no user namespaces for us: %v", err)
	}
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

func mount(t *testing.T, source, target, kind string, flags uintptr) {
	t.Helper()
	if err := syscall.Mount(source, target, kind, flags, ""); err != nil {
		t.Fatalf("mounting %s: %v", target, err)
	}
	if flags&syscall.MS_REMOUNT == 0 {
		t.Cleanup(func() { _ = syscall.Unmount(target, syscall.MNT_DETACH) })
	}
}
