package flannel

import (
	"errors"
	"strings"
)

// word is one word of a rule's text. A quoted word is a value, never an option.
type word struct {
	text   string // without quotes and escapes
	raw    string // as written
	quoted bool
}

// is tells whether the word is one of these options or signs.
func (w word) is(options ...string) bool {
	if w.quoted {
		return false
	}
	for _, o := range options {
		if w.text == o {
			return true
		}
	}
	return false
}

var errOpenQuote = errors.New("quote is not closed")

// splitWords cuts a line as iptables-save writes it: blanks part words, a double quote at the start of a word keeps it
// together up to the next one, and a backslash escapes only between them. Within a word a quote is a letter: names of
// interfaces can hold one and are printed as they are.
func splitWords(line string) ([]word, error) {
	var words []word
	for i := 0; i < len(line); {
		if blank(line[i]) {
			i++
			continue
		}
		w, n, err := nextWord(line[i:])
		if err != nil {
			return nil, err
		}
		words = append(words, w)
		i += n
	}
	return words, nil
}

func nextWord(s string) (word, int, error) {
	if s[0] == '"' {
		return quotedWord(s)
	}
	n := 0
	for n < len(s) && !blank(s[n]) {
		n++
	}
	return word{text: s[:n], raw: s[:n]}, n, nil
}

func quotedWord(s string) (word, int, error) {
	var text []byte
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '"':
			return word{text: string(text), raw: s[:i+1], quoted: true}, i + 1, nil
		case '\\':
			i++
			if i == len(s) {
				return word{}, 0, errOpenQuote
			}
		}
		text = append(text, s[i])
	}
	return word{}, 0, errOpenQuote
}

func blank(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

// quote writes a value as iptables-save does: bare if it is made of letters, digits, "_" and "-" alone, else in double
// quotes with a backslash before both quotes and the backslash itself.
func quote(s string) string {
	if s != "" && strings.IndexFunc(s, needsQuotes) < 0 {
		return s
	}
	return inQuotes(s)
}

// Quote writes a value of an option as iptables-save does.
func Quote(s string) string { return quote(s) }

func inQuotes(s string) string { return `"` + quoteEscapes.Replace(s) + `"` }

var quoteEscapes = strings.NewReplacer(`"`, `\"`, `'`, `\'`, `\`, `\\`)

func needsQuotes(r rune) bool {
	return r != '_' && r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
}

// bare writes the name of an interface, a chain or a protocol: iptables-save never quotes these, and no name that it
// accepts needs it. What could not be told from the words around it is quoted nevertheless.
func bare(s string) string {
	if s == "" || s == "!" || s[0] == '"' || strings.ContainsAny(s, " \t\r\n") {
		return inQuotes(s)
	}
	return s
}
