package cli

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"flanwatch/flannel"
	"flanwatch/watcher/host"
	"flanwatch/watcher/journal"
)

// recorder begins to write the journal.
func (o *options) recorder(now flannel.Time) *journal.Recorder {
	name, _ := os.Hostname() // without a name the header has none
	boot, _, _ := strings.Cut(now.Session, "/")
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease") // ditto
	return journal.NewRecorder(journal.Options{
		Path: o.journalPath(),
		Header: journal.Header{
			Version: version(), Node: name, BootID: boot, Session: now.Session,
			Kernel: strings.TrimSpace(string(kernel)), OS: o.system(),
		},
	})
}

// system is what the node's distribution calls itself, "" if it does not say.
func (o *options) system() string {
	files, err := host.OpenRoot(o.root)
	if err != nil {
		return ""
	}
	defer files.Close()
	for _, name := range []string{"/etc/os-release", "/usr/lib/os-release"} {
		text, _, err := files.ReadFile(name, 64<<10)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if value, ok := strings.CutPrefix(line, "PRETTY_NAME="); ok {
				return strings.Trim(strings.TrimSpace(value), `"'`)
			}
		}
	}
	return ""
}

// recordStatus says in one line what is being recorded and where, or why nothing is.
func recordStatus(r *journal.Recorder) string {
	file, size, err := r.State()
	switch {
	case errors.Is(err, journal.ErrBusy):
		return "recorded by another process"
	case err != nil:
		return "NOT RECORDING: " + flannel.Printable(err.Error())
	case file == "":
		return ""
	}
	return fmt.Sprintf("recording %s %.1f MB", flannel.Printable(file), float64(size)/1e6)
}
