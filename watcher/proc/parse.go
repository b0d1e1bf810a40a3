package proc

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"flanwatch/watcher/diagnose"
)

// clockTick is the unit of times in /proc/PID/stat: USER_HZ, 100 a second on every architecture that Flannel runs on.
const clockTick = time.Second / 100

// stat is what flanwatch takes from /proc/PID/stat.
type stat struct {
	comm  string // up to 15 bytes, any but NUL
	state byte
	ppid  int
	start time.Duration // since boot, on the boot clock, in steps of clockTick
}

var errStat = errors.New("malformed stat")

// parseStat reads one line of /proc/PID/stat. The name stands in parentheses and may hold parentheses and spaces itself, so
// the last one closes it.
func parseStat(b []byte) (stat, error) {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return stat{}, errStat
	}
	fields := bytes.Fields(b[end+1:])
	if len(fields) < 20 || len(fields[0]) != 1 {
		return stat{}, errStat
	}
	ppid, err := strconv.Atoi(string(fields[1]))
	if err != nil || ppid < 0 {
		return stat{}, errStat
	}
	ticks, err := strconv.ParseUint(string(fields[19]), 10, 64)
	if err != nil || ticks > uint64(1<<63-1)/uint64(clockTick) {
		return stat{}, errStat
	}
	return stat{
		comm:  string(b[open+1 : end]),
		state: fields[0][0],
		ppid:  ppid,
		start: time.Duration(ticks) * clockTick,
	}, nil
}

// dead tells whether only the entry of an ended process is left.
func (s stat) dead() bool { return s.state == 'Z' || s.state == 'X' || s.state == 'x' }

// parseStrings splits /proc/PID/cmdline or environ at its NUL bytes. A program may write over both, so anything can stand
// there.
func parseStrings(b []byte) []string {
	b = bytes.TrimRight(b, "\x00")
	if len(b) == 0 {
		return nil
	}
	return strings.Split(string(b), "\x00")
}

// kept are the variables of a process that flanwatch takes: what decides Flannel's rules, where it runs, and nothing that
// can be a secret.
var kept = []string{
	"FLANNELD_IP_MASQ", "FLANNELD_IPTABLES_FORWARD_RULES", "FLANNELD_IPTABLES_RESYNC",
	"FLANNELD_IP_MASQ_FULLY_RANDOM_DISABLE", "FLANNELD_SUBNET_FILE", "FLANNELD_NET_CONFIG_PATH",
	"POD_NAME", "POD_NAMESPACE", "PATH",
}

// parseEnviron gives the variables worth keeping; never nil, so that "none set" differs from "unreadable".
func parseEnviron(b []byte) map[string]string {
	env := map[string]string{}
	for _, s := range parseStrings(b) {
		if name, value, ok := strings.Cut(s, "="); ok && slices.Contains(kept, name) {
			env[name] = value
		}
	}
	return env
}

// parseCgroup finds container and pod in /proc/PID/cgroup: the last element of the path that holds 64 hexadecimal digits
// is the container ("cri-containerd-<id>.scope", "docker-<id>.scope", "<id>"), the element before it that is named after a
// pod carries the pod's UID, written with "-" or with "_".
func parseCgroup(b []byte) diagnose.Container {
	var c diagnose.Container
	for line := range bytes.Lines(b) {
		_, rest, ok1 := bytes.Cut(bytes.TrimSpace(line), []byte(":"))
		_, path, ok2 := bytes.Cut(rest, []byte(":"))
		if !ok1 || !ok2 {
			continue
		}
		found := parseCgroupPath(string(path))
		if found.ID != "" {
			return found
		}
		if c.Pod == "" {
			c = found
		}
	}
	return c
}

func parseCgroupPath(path string) diagnose.Container {
	var c diagnose.Container
	for element := range strings.SplitSeq(path, "/") {
		element = strings.TrimSuffix(strings.TrimSuffix(element, ".scope"), ".slice")
		if uid, ok := podUID(element); ok {
			c = diagnose.Container{Pod: uid}
		} else if id := element[strings.LastIndexByte(element, '-')+1:]; isContainerID(id) {
			c.ID = id
		}
	}
	return c
}

func isContainerID(s string) bool {
	return len(s) == 64 && strings.Trim(s, "0123456789abcdef") == ""
}

// podUID reads "pod<uid>" (cgroupfs driver) or "kubepods-burstable-pod<uid>" (systemd driver). The UID of a static pod is
// a hash of 32 digits without dashes.
func podUID(element string) (string, bool) {
	i := strings.Index(element, "pod")
	for i > 0 && element[i-1] != '-' {
		next := strings.Index(element[i+1:], "pod")
		if next < 0 {
			return "", false
		}
		i += 1 + next
	}
	if i < 0 {
		return "", false
	}
	uid := strings.ReplaceAll(element[i+len("pod"):], "_", "-")
	digits := strings.ReplaceAll(uid, "-", "")
	if len(digits) != 32 || strings.Trim(digits, "0123456789abcdef") != "" {
		return "", false
	}
	return uid, true
}

// parseNSpid gives the process numbers of a process from the PID namespace of this /proc down to its own.
func parseNSpid(status []byte) ([]int, error) {
	for line := range bytes.Lines(status) {
		rest, ok := bytes.CutPrefix(line, []byte("NSpid:"))
		if !ok {
			continue
		}
		var pids []int
		for _, f := range bytes.Fields(rest) {
			n, err := strconv.Atoi(string(f))
			if err != nil {
				return nil, fmt.Errorf("read NSpid: %w", err)
			}
			pids = append(pids, n)
		}
		return pids, nil
	}
	return nil, errors.New("read NSpid: no such line")
}

// parseHidepid finds the hidepid option of the proc file system mounted on dir, "" where there is none. The last mount on
// a place is the one in view.
func parseHidepid(mountinfo []byte, dir string) string {
	value := ""
	for line := range bytes.Lines(mountinfo) {
		head, tail, ok := strings.Cut(string(line), " - ")
		place, kind := strings.Fields(head), strings.Fields(tail)
		if !ok || len(place) < 5 || len(kind) < 3 || place[4] != dir || kind[0] != "proc" {
			continue
		}
		value = ""
		for option := range strings.SplitSeq(kind[2], ",") {
			if v, ok := strings.CutPrefix(option, "hidepid="); ok && v != "0" && v != "off" {
				value = v
			}
		}
	}
	return value
}

// parseInodes takes the last column, the inode of each socket, out of /proc/PID/net/netlink.
func parseInodes(table []byte) (map[uint64]bool, error) {
	inodes := map[uint64]bool{}
	head := true
	for line := range bytes.Lines(table) {
		fields := bytes.Fields(line)
		if head {
			head = false
			if len(fields) == 0 || string(fields[len(fields)-1]) != "Inode" {
				return nil, errors.New("unknown table")
			}
			continue
		}
		if len(fields) == 0 {
			continue
		}
		n, err := strconv.ParseUint(string(fields[len(fields)-1]), 10, 64)
		if err != nil {
			return nil, err
		}
		inodes[n] = true
	}
	return inodes, nil
}
