package labtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// IptablesRoot gives a root directory of a Debian release with its iptables: bullseye has 1.8.7, bookworm 1.8.9, trixie
// 1.8.11. The programs run by chroot in a namespace:
//
//	n.Must("chroot " + labtest.IptablesRoot(t, "bullseye") + " iptables-nft -S")
//
// The first caller fetches the packages, which takes minutes, into the user's cache directory; test processes that run
// side by side wait for it.
func IptablesRoot(t testing.TB, release string) string {
	t.Helper()
	RequireRoot(t)
	root, err := iptablesRoot(release)
	if err != nil {
		lacks(t, fmt.Sprintf("needs a root of %s with iptables: %v", release, err))
	}
	return root
}

func iptablesRoot(release string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	root := filepath.Join(cache, "flanwatch", "roots", release)
	if err := os.MkdirAll(filepath.Dir(root), 0o755); err != nil {
		return "", err
	}
	lock, err := os.Create(root + ".lock")
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	if _, err := os.Stat(root); err == nil {
		return root, nil
	}
	return root, debootstrap(release, root)
}

// debootstrap builds the root beside its place, so that one which is there is whole. Its mounts go with its own mount
// namespace, whatever ends it.
func debootstrap(release, root string) error {
	part := root + ".part"
	if err := os.RemoveAll(part); err != nil {
		return err
	}
	cmd := exec.Command("debootstrap", "--variant=minbase", "--include=iptables", release, part)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w: %s", cmd.Args, err, tail(out))
	}
	return os.Rename(part, root)
}

func tail(out []byte) []byte { return out[max(0, len(out)-500):] }
