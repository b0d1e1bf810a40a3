package cli

import "strings"

// textWidth is how wide text output is at the most.
const textWidth = 100

// folded breaks text into lines at spaces.
func folded(s string, width int) []string {
	var out []string
	line := ""
	for _, word := range strings.Fields(s) {
		if line != "" && len([]rune(line))+1+len([]rune(word)) > width {
			out = append(out, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(out, line)
}
