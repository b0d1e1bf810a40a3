package wire

import (
	"bytes"
	"fmt"
	"strings"

	"flanwatch/flannel"
)

// describe puts an expression that is not understood into words: an extension of xtables as an option of iptables, anything
// else by its name and bytes.
func describe(e expression) string {
	option := map[string]string{"match": "-m", "target": "-j"}[string(e.name)]
	if t, ok := split(e.data); ok && option != "" {
		if name, rev, info, ok := extension(&t); ok && name != "" {
			return fmt.Sprintf("%s %s rev %d [%s]", option, name, rev, brief(info))
		}
	}
	does := ""
	if acts(e) {
		does = flannel.Doing
	}
	if len(e.data) == 0 {
		return fmt.Sprintf("[%s%s]", does, e.name)
	}
	return fmt.Sprintf("[%s%s %s]", does, e.name, brief(e.data))
}

// targetText describes what a rule does as iptables would begin it.
func targetText(e expression) string {
	if text := describe(e); !strings.HasPrefix(text, "[") {
		return text
	}
	return "-j " + strings.Replace(describe(e), "["+flannel.Doing, "[", 1)
}

// brief gives bytes in hexadecimal, not more than fit beside other words on a line.
func brief(b []byte) string {
	const most = 32
	if len(b) > most {
		return fmt.Sprintf("%x…", b[:most])
	}
	return fmt.Sprintf("%x", b)
}

// cString gives the bytes before the first NUL.
func cString(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}

func allZero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }
