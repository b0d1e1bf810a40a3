package host

import (
	"strconv"
	"strings"
)

// parseLocks finds who holds a whole file of a device in the text of /proc/locks:
//
//	1: FLOCK  ADVISORY  WRITE 811 00:1a:2034 0 EOF
//
// The number of the process is 0 where it is of a PID namespace that cannot be seen from here.
func parseLocks(text string, major, minor uint32, inode uint64) (pid int, held bool) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 6 || f[1] != "FLOCK" { // a waiting one has "->" there
			continue
		}
		if a, b, c, ok := parseDevice(f[5]); !ok || a != major || b != minor || c != inode {
			continue
		}
		pid, err := strconv.Atoi(f[4])
		if err != nil || pid < 0 {
			pid = 0
		}
		return pid, true
	}
	return 0, false
}

// parseDevice reads "MAJOR:MINOR:INODE", the first two hexadecimal.
func parseDevice(text string) (major, minor uint32, inode uint64, ok bool) {
	parts := strings.Split(text, ":")
	if len(parts) != 3 {
		return 0, 0, 0, false
	}
	a, errA := strconv.ParseUint(parts[0], 16, 32)
	b, errB := strconv.ParseUint(parts[1], 16, 32)
	c, errC := strconv.ParseUint(parts[2], 10, 64)
	return uint32(a), uint32(b), c, errA == nil && errB == nil && errC == nil
}
