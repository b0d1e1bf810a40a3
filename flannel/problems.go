package flannel

import (
	"fmt"
	"unicode/utf8"
)

// maxProblems bounds what is told of one file: one that holds something else entirely would fill the screen.
const maxProblems = 20

// problems collects the faults of one file.
type problems struct {
	file string
	list []Problem
	more int
}

func (p *problems) add(line int, format string, args ...any) {
	if len(p.list) == maxProblems {
		p.more++
		return
	}
	p.list = append(p.list, Problem{File: p.file, Line: line, What: fmt.Sprintf(format, args...)})
}

func (p *problems) all() []Problem {
	if p.more > 0 {
		return append(p.list, Problem{File: p.file, What: fmt.Sprintf("%d more faults of this kind", p.more)})
	}
	return p.list
}

// shown gives a foreign value for a message: printable, of bounded length, in quotes.
func shown(s string) string { return `"` + brief(s) + `"` }

func brief(s string) string {
	const most = 60
	s = Printable(s)
	if utf8.RuneCountInString(s) > most {
		s = string([]rune(s)[:most]) + "…"
	}
	return s
}
