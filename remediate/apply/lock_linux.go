package apply

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"flanwatch/flannel"
)

// lockFile is where iptables-legacy keeps its lock, below the root.
const lockFile = "run/xtables.lock"

// Lock is the real lock of iptables-legacy. Whoever inherits its file holds it too.
type Lock struct{ file *os.File }

// TakeLock takes the lock, as iptables-legacy does, and waits no longer than the bound. The error is then ErrLocked and
// names the holder.
func TakeLock(root string, wait time.Duration) (*Lock, error) {
	f, err := openLock(root)
	if err != nil {
		return nil, fmt.Errorf("open lock /%s: %w", lockFile, err)
	}
	for deadline := time.Now().Add(wait); ; time.Sleep(10 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return &Lock{f}, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("take lock /%s: %w", lockFile, err), f.Close())
		}
		if time.Now().After(deadline) {
			err := fmt.Errorf("%w by %s for more than %v", ErrLocked, holder(f), wait)
			return nil, errors.Join(err, f.Close())
		}
	}
}

// openLock opens the file inside the root, links included, and makes it if it is not there.
func openLock(root string) (*os.File, error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	fd, err := unix.Openat2(dir, lockFile, &unix.OpenHow{
		Flags: unix.O_CREAT | unix.O_RDWR | unix.O_CLOEXEC, Mode: 0o600, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if errors.Is(err, unix.ENOSYS) && root == "/" {
		fd, err = unix.Openat(dir, lockFile, unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "/"+lockFile), nil
}

// Release gives the lock back.
func (l *Lock) Release() { l.file.Close() }

// holder names the process that holds the lock, as /proc/locks tells.
func holder(f *os.File) string {
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil {
		return "a process that is not known"
	}
	id := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return "a process that is not known"
	}
	for scan := bufio.NewScanner(bytes.NewReader(locks)); scan.Scan(); {
		// 1: FLOCK  ADVISORY  WRITE 811 00:1a:1234 0 EOF; those that wait have an arrow after the number.
		f := strings.Fields(scan.Text())
		if len(f) < 8 || f[1] != "FLOCK" || f[5] != id {
			continue
		}
		if pid, err := strconv.Atoi(f[4]); err == nil && pid > 0 {
			return process(pid)
		}
	}
	return "a process that is not known"
}

func process(pid int) string {
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return fmt.Sprintf("process %d", pid)
	}
	return fmt.Sprintf("%s[%d]", flannel.Printable(strings.TrimSpace(string(comm))), pid)
}
