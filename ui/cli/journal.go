package cli

import (
	"path/filepath"

	"flanwatch/watcher/incident"
	"flanwatch/watcher/journal"
)

// journalPath is where the journal lies: the file or folder that was named, else a folder in the state folder.
func (o *options) journalPath() string {
	if o.journal != "" {
		return o.journal
	}
	return filepath.Join(o.state, "journal")
}

// recordingPath is the journal that a command on recordings reads.
func (o *options) recordingPath(args []string) string {
	if len(args) > 0 {
		return args[0]
	}
	return o.journalPath()
}

// remembered is the state that the journal tells of the last hours; without a journal, that of knowing nothing.
func (o *options) remembered() *incident.State {
	s, r, err := journal.OpenState(o.journalPath())
	if err != nil {
		return incident.NewState()
	}
	r.Close()
	return s
}
