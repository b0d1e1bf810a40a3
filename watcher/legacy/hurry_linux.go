package legacy

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// Hurry ties the calling goroutine to its thread and lets the thread run ahead of all ordinary ones: where a chain is
// emptied and filled again within milliseconds on a busy machine, only a reader that is not kept waiting sees it empty. It
// is for the goroutine that calls Next and then Read, whose use of the processor the Reader bounds. It needs CAP_SYS_NICE;
// without it, or a share of real time, the error says so and nothing is lost but certainty.
func Hurry() error {
	runtime.LockOSThread()
	attr := unix.SchedAttr{
		Size:     unix.SizeofSchedAttr,
		Policy:   unix.SCHED_RR,
		Priority: 1,
		Flags:    unix.SCHED_FLAG_RESET_ON_FORK, // not for threads and programs started from here
	}
	err := unix.SchedSetAttr(0, &attr, 0)
	if err == nil {
		return nil
	}
	if unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), -20) == nil {
		return nil
	}
	return fmt.Errorf("raise priority: %w", err)
}
