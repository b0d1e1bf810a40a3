//go:build !linux

package cli

import "flanwatch/watcher/journal"

// installedIptables is not known: nothing is recorded here.
func installedIptables(journal.Header) string { return "" }
