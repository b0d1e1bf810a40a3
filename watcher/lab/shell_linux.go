package lab

import (
	"errors"
	"strings"
	"time"
)

// shell is bash -c with a line of simple commands, as a person at the node types them. It stays for a moment after the
// last one, as a person does, so that a watcher can see who the parent of the command was.
func shell(_ string, args []string) error {
	if len(args) != 2 || args[0] != "-c" {
		return errors.New("usage: bash -c COMMANDS")
	}
	for line := range strings.SplitSeq(args[1], ";") {
		words, err := shellWords(line)
		if err != nil {
			return err
		}
		if len(words) == 0 {
			continue
		}
		if err := run("", words...); err != nil {
			return err
		}
	}
	time.Sleep(500 * time.Millisecond)
	return nil
}
