package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"flanwatch/flannel"
)

func newInstallSelf(std Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "install-self DIR",
		Short: "Copy this program into a folder",
		Long: `install-self copies this program into a folder that is there, as DIR/flanwatch. It is meant for an init container,
whose image holds nothing but flanwatch: no shell, no cp.`,
		Example: "  flanwatch install-self /plugin",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			path, err := installSelf(args[0])
			if err != nil {
				return exit(ExitRefused, fmt.Errorf("install into %s: %w", args[0], err))
			}
			_, err = fmt.Fprintln(std.Out, flannel.Printable(path))
			return err
		},
	}
}

// installSelf puts a copy beside its place and renames it, so that a program that is started meanwhile is the old or the new
// one, never half of it.
func installSelf(dir string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	in, err := os.Open(self)
	if err != nil {
		return "", err
	}
	defer in.Close()
	out, err := os.CreateTemp(dir, ".flanwatch-*")
	if err != nil {
		return "", err
	}
	_, err = io.Copy(out, in)
	path := filepath.Join(dir, "flanwatch")
	err = errors.Join(err, out.Chmod(0o755), out.Sync(), out.Close())
	if err == nil {
		err = os.Rename(out.Name(), path)
	}
	if err != nil {
		return "", errors.Join(err, os.Remove(out.Name()))
	}
	return path, nil
}
