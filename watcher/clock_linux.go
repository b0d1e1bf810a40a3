package watcher

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"flanwatch/flannel"
)

// clock tells the time on both clocks of flannel.Time.
type clock struct{ session string }

// newClock starts a session: the boot of this machine as watched by this process.
func newClock() clock {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		boot = []byte("unknown-boot")
	}
	return clock{fmt.Sprintf("%s/%d", strings.TrimSpace(string(boot)), os.Getpid())}
}

// now is exact to a microsecond, less than it takes to tell the time: what is beyond would only fill the journal.
func (c clock) now() flannel.Time {
	return flannel.Time{
		Wall: time.Now().Truncate(time.Microsecond), Boot: bootTime().Truncate(time.Microsecond), Session: c.session,
	}
}

// bootTime reads CLOCK_BOOTTIME; it exists on every kernel that runs Kubernetes, so an error means a broken build.
func bootTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("read CLOCK_BOOTTIME: " + err.Error())
	}
	return time.Duration(ts.Nano())
}
