package wire

import (
	"bytes"
	"fmt"
)

// describe puts an expression that is not understood into words: xtables extensions as an option of iptables, anything else
// by its name and bytes.
func describe(e expression) string {
	name := string(e.name)
	if name != "match" && name != "target" {
		return fmt.Sprintf("[%s %s]", name, brief(e.data))
	}
	option := "-m"
	if name == "target" {
		option = "-j"
	}
	t, ok := split(e.data)
	if !ok {
		return fmt.Sprintf("[%s %s]", name, brief(e.data))
	}
	ext, rev, info, ok := extension(&t)
	if !ok || ext == "" {
		return fmt.Sprintf("[%s %s]", name, brief(e.data))
	}
	return fmt.Sprintf("%s %s rev %d [%s]", option, ext, rev, brief(info))
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
