package cli

import (
	"path/filepath"
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
