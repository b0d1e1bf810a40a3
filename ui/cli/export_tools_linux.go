package cli

import (
	"context"
	"os"
	"strings"

	"flanwatch/flannel"
	"flanwatch/watcher/journal"
	"flanwatch/watcher/proc"
)

// installedIptables asks the program itself for its version, "" where the report is not made on the node of the recording.
func installedIptables(h journal.Header) string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil || h.BootID == "" || strings.TrimSpace(string(boot)) != h.BootID {
		return ""
	}
	return proc.IptablesHost(context.Background(), flannel.Time{}).Value
}
