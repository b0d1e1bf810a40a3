package proc

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Namespace names a network namespace as the kernel does, "net:[4026531833]". It names one only as long as the namespace
// is open somewhere.
type Namespace string

// The fixed numbers that the kernel gives to the namespaces it boots with.
const (
	initialPIDNamespace  = "pid:[4026531836]"
	initialUserNamespace = "user:[4026531837]"
)

// Here is the network namespace of the calling thread.
func Here() (Namespace, error) { return NamespaceAt("/proc/thread-self/ns/net") }

// NamespaceAt is the network namespace that a path such as /run/netns/NAME or /proc/PID/ns/net leads to.
func NamespaceAt(path string) (Namespace, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", fmt.Errorf("look at namespace %s: %w", path, err)
	}
	return Namespace(fmt.Sprintf("net:[%d]", st.Ino)), nil
}

// view tells what this proc file system shows of the node's processes.
type view struct {
	initial bool   // it counts processes as the kernel's messages do
	own     bool   // flanwatch lives in a PID namespace of its own
	hides   string // why processes of others are not shown, "" if they are
}

func (fs *FS) view() view {
	pidns, err := fs.link("self/ns/pid")
	if err != nil {
		return view{own: true, hides: fs.name + " belongs to another PID namespace"}
	}
	v := view{own: pidns != initialPIDNamespace}
	if v.own {
		v.hides = "flanwatch runs in a PID namespace of its own and does not see the node's processes"
	}
	var buf [maxSmall]byte
	if b, err := fs.read("self/status", buf[:]); err == nil {
		pids, err := parseNSpid(b)
		v.initial = err == nil && len(pids) == 1 && !v.own
	}
	if option := fs.hidepid(); option != "" && v.hides == "" {
		v.hides = fmt.Sprintf("%s is mounted with hidepid=%s and hides processes without CAP_SYS_PTRACE", fs.name, option)
	}
	return v
}

// hidepid gives the mount option where it takes effect on us: the first process, which has every capability, is the one
// that is hidden whenever anything is.
func (fs *FS) hidepid() string {
	var buf [64]byte
	if _, err := fs.read("1/comm", buf[:]); err == nil {
		return ""
	}
	mounts := make([]byte, maxMounts)
	b, err := fs.read("thread-self/mountinfo", mounts)
	if err != nil {
		return ""
	}
	return parseHidepid(b, fs.name)
}
