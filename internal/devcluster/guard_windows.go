package devcluster

import (
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/windows"
)

// guard ends the programs of a cluster when this process ends without having done so: it is a job object, which
// Windows closes together with its last handle, killing every process in it.
type guard struct {
	job windows.Handle
}

// newGuard makes the job. A temporary directory is not removed by it.
func newGuard(_ string) (*guard, error) {
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return nil, fmt.Errorf("creating a job object: %w", err)
	}
	info := windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION{
		BasicLimitInformation: windows.JOBOBJECT_BASIC_LIMIT_INFORMATION{
			LimitFlags: windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE,
		},
	}
	if _, err := windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation,
		uintptr(unsafe.Pointer(&info)), uint32(unsafe.Sizeof(info))); err != nil { //nolint:gosec // the call takes an address
		_ = windows.CloseHandle(job)
		return nil, fmt.Errorf("configuring a job object: %w", err)
	}
	return &guard{job: job}, nil
}

// add puts a started program into the job.
func (g *guard) add(process *os.Process) error {
	//nolint:gosec // process numbers fit
	handle, err := windows.OpenProcess(
		windows.PROCESS_SET_QUOTA|windows.PROCESS_TERMINATE,
		false,
		uint32(process.Pid),
	) //nolint:gosec
	if err != nil {
		return fmt.Errorf("opening the process: %w", err)
	}
	defer windows.CloseHandle(handle) //nolint:errcheck // nothing to do about it
	if err := windows.AssignProcessToJobObject(g.job, handle); err != nil {
		return fmt.Errorf("putting the process into the job object: %w", err)
	}
	return nil
}

// remove does nothing: a process that ended leaves its job.
func (g *guard) remove(*os.Process) {}

// dismiss closes the job. Its programs have ended by then.
func (g *guard) dismiss() { _ = windows.CloseHandle(g.job) }

// attributes gives a program its own process group, out of reach of Ctrl-C.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_PROCESS_GROUP}
}

// terminate ends a program. Windows knows no polite way for one without a console window.
func terminate(process *os.Process) error { return process.Kill() }
