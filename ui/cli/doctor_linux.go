package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"flanwatch/assets"
	"flanwatch/flannel"
	"flanwatch/watcher"
)

// doctorSchema names the form of doctor's JSON.
const doctorSchema = "flanwatch.doctor/v1"

func newDoctor(o *options, std Streams) *cobra.Command {
	var schema bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this node lets flanwatch see and do",
		Long: `doctor tries once everything that watching and repairing need: privileges, namespaces, readers, events, programs, and the
folder for journal and receipts. It changes nothing.

Exit code: 0 the packet filter can be read, 3 it cannot.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if schema {
				_, err := std.Out.Write(assets.DoctorSchema)
				return err
			}
			return doctor(cmd.Context(), o, std.Out)
		},
	}
	cmd.Flags().BoolVar(&schema, "schema", false, "print the JSON Schema of the JSON output and exit")
	return cmd
}

type doctorReport struct {
	Schema    string            `json:"schema"`
	Abilities []watcher.Ability `json:"abilities"`
}

// needed are the abilities without which a verdict proves nothing.
var needed = []string{"CAP_NET_ADMIN", "network namespace"}

func doctor(ctx context.Context, o *options, out io.Writer) error {
	w, err := watcher.Open(o.watcher())
	if err != nil {
		return exit(ExitUnreadable, err)
	}
	defer w.Close()
	r := doctorReport{doctorSchema, append(w.Abilities(ctx), o.keeping()...)}
	if o.output == "json" {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		err = enc.Encode(r)
	} else {
		err = r.writeText(out)
	}
	if err != nil {
		return exit(ExitUnreadable, fmt.Errorf("write abilities: %w", err))
	}
	for _, a := range r.Abilities {
		for _, name := range needed {
			if a.Name == name && !a.OK {
				return exit(ExitUnreadable, nil)
			}
		}
	}
	return nil
}

// keeping says whether journal, backups and receipts can be written, without writing any.
func (o *options) keeping() []watcher.Ability {
	out := []watcher.Ability{writable("write backups and receipts", o.state)}
	if o.unkept {
		return append(out, watcher.Ability{Name: "write the journal", Why: "--no-journal"})
	}
	path := o.journalPath()
	if strings.HasSuffix(path, ".jsonl") {
		path = filepath.Dir(path)
	}
	out = append(out, writable("write the journal", path))
	if o.readOnly {
		return append(out, watcher.Ability{Name: "change rules", Why: "--read-only: every plan is shown and none carried out"})
	}
	return append(out, watcher.Ability{Name: "change rules", OK: true, Why: "after confirmation of a plan only"})
}

// writable tells whether files can be made in a folder, or in the nearest one above it that exists.
func writable(name, folder string) watcher.Ability {
	at := filepath.Clean(folder)
	for {
		if _, err := os.Stat(at); err == nil || at == filepath.Dir(at) {
			break
		}
		at = filepath.Dir(at)
	}
	if err := unix.Access(at, unix.W_OK|unix.X_OK); err != nil {
		return watcher.Ability{Name: name, Why: fmt.Sprintf("%s: %v; name another folder with --state", at, err)}
	}
	if at != filepath.Clean(folder) {
		return watcher.Ability{Name: name, OK: true, Why: folder + ", which will be made"}
	}
	return watcher.Ability{Name: name, OK: true, Why: folder}
}

// writeText prints one ability a line.
func (r doctorReport) writeText(w io.Writer) error {
	width := 0
	for _, a := range r.Abilities {
		width = max(width, len(a.Name))
	}
	var b strings.Builder
	for _, a := range r.Abilities {
		mark := "✓"
		if !a.OK {
			mark = "✗"
		}
		for i, line := range folded(flannel.Printable(a.Why), textWidth-width-4) {
			if i == 0 {
				fmt.Fprintf(&b, "%s %-*s  %s\n", mark, width, a.Name, line)
			} else {
				fmt.Fprintf(&b, "  %-*s  %s\n", width, "", line)
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
