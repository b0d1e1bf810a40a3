package journal

import (
	"encoding"
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"flanwatch/flannel"
)

// codec writes values as JSON and reads them back without loss: numbers of 64 bits, text that is no UTF-8, and nil apart from
// empty. encoding/json loses the second and cannot count the keys that it does not know. Zero values are left out.
type codec struct {
	session string // of times that do not name another
	unknown int    // keys met while reading that have no place here
	fields  map[reflect.Type][]field
}

// field is one field of a struct under its name in JSON.
type field struct {
	name  string
	index []int
}

func newCodec() codec { return codec{fields: map[reflect.Type][]field{}} }

var (
	timeType   = reflect.TypeFor[flannel.Time]()
	wallType   = reflect.TypeFor[time.Time]()
	ruleType   = reflect.TypeFor[flannel.Rule]()
	prefixType = reflect.TypeFor[netip.Prefix]()
	addrType   = reflect.TypeFor[netip.Addr]()
)

// of lists the fields of a struct, those of embedded structs among them.
func (c *codec) of(t reflect.Type) []field {
	if list, ok := c.fields[t]; ok {
		return list
	}
	var list []field
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			for _, inner := range c.of(f.Type) {
				list = append(list, field{inner.name, append([]int{i}, inner.index...)})
			}
			continue
		}
		if f.IsExported() {
			list = append(list, field{fieldName(f), []int{i}})
		}
	}
	c.fields[t] = list
	return list
}

// fieldName is the name that the type gives for JSON, else the field's own in lower camel case.
func fieldName(f reflect.StructField) string {
	if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
		return name
	}
	runes := []rune(f.Name)
	for i := range runes {
		if i > 0 && i+1 < len(runes) && unicode.IsLower(runes[i+1]) || !unicode.IsUpper(runes[i]) {
			break
		}
		runes[i] = unicode.ToLower(runes[i])
	}
	return string(runes)
}

// append writes a value.
func (c *codec) append(dst []byte, v reflect.Value) ([]byte, error) {
	switch v.Type() {
	case timeType:
		return c.appendTime(dst, v.Interface().(flannel.Time))
	case wallType:
		text, err := wallText(v.Interface().(time.Time))
		return appendText(dst, text), err
	case prefixType:
		if p := v.Interface().(netip.Prefix); p.IsValid() {
			return appendText(dst, p.String()), nil
		}
		return append(dst, "null"...), nil
	case ruleType:
		if text, ok := ruleText(v.Interface().(flannel.Rule)); ok {
			return appendText(dst, text), nil
		}
	}
	switch v.Kind() {
	case reflect.Pointer:
		return c.append(dst, v.Elem())
	case reflect.Struct:
		if v.Type() == addrType {
			return appendScalar(dst, v)
		}
		return c.appendStruct(dst, v)
	case reflect.Slice:
		return c.appendSlice(dst, v)
	case reflect.Map:
		return c.appendMap(dst, v)
	}
	return appendScalar(dst, v)
}

func appendScalar(dst []byte, v reflect.Value) ([]byte, error) {
	if m, ok := v.Interface().(encoding.TextMarshaler); ok {
		if text, err := m.MarshalText(); err == nil { // a value without a name is written as a number
			return appendText(dst, string(text)), nil
		}
	}
	switch v.Kind() {
	case reflect.Bool:
		return strconv.AppendBool(dst, v.Bool()), nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return strconv.AppendInt(dst, v.Int(), 10), nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return strconv.AppendUint(dst, v.Uint(), 10), nil
	case reflect.Float64:
		text, err := json.Marshal(v.Float())
		return append(dst, text...), err
	case reflect.String:
		return appendText(dst, v.String()), nil
	}
	return dst, fmt.Errorf("write %s: no form in JSON", v.Type())
}

func (c *codec) appendStruct(dst []byte, v reflect.Value) ([]byte, error) {
	dst = append(dst, '{')
	first := true
	for _, f := range c.of(v.Type()) {
		x := v.FieldByIndex(f.index)
		if x.IsZero() {
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = append(appendText(dst, f.name), ':')
		var err error
		if dst, err = c.append(dst, x); err != nil {
			return dst, fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return append(dst, '}'), nil
}

func (c *codec) appendSlice(dst []byte, v reflect.Value) (_ []byte, err error) {
	dst = append(dst, '[')
	for i := range v.Len() {
		if i > 0 {
			dst = append(dst, ',')
		}
		if dst, err = c.append(dst, v.Index(i)); err != nil {
			return dst, err
		}
	}
	return append(dst, ']'), nil
}

func (c *codec) appendMap(dst []byte, v reflect.Value) (_ []byte, err error) {
	keys := v.MapKeys()
	name := func(k reflect.Value) string { return fmt.Sprint(k.Interface()) }
	slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(name(a), name(b)) })
	dst = append(dst, '{')
	for i, k := range keys {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(appendText(dst, name(k)), ':')
		if dst, err = c.append(dst, v.MapIndex(k)); err != nil {
			return dst, err
		}
	}
	return append(dst, '}'), nil
}

func (c *codec) appendTime(dst []byte, t flannel.Time) ([]byte, error) {
	wall, err := wallText(t.Wall)
	text := wall + " " + strconv.FormatInt(int64(t.Boot), 10)
	if t.Session != c.session {
		text += " " + t.Session
	}
	return appendText(dst, text), err
}

// wallText is RFC 3339, which ends with the year 9999.
func wallText(t time.Time) (string, error) {
	t = t.UTC()
	if y := t.Year(); y < 0 || y > 9999 {
		return "", fmt.Errorf("write time: year %d", y)
	}
	return t.Format(time.RFC3339Nano), nil
}

// ruleText is the canonical text of a rule, unless reading it would not give the same rule.
func ruleText(r flannel.Rule) (string, bool) {
	text := r.String()
	back, err := flannel.ParseRule(text)
	return text, err == nil && sameRule(&r, &back)
}

func sameRule(a, b *flannel.Rule) bool {
	return a.Target == b.Target && slices.Equal(a.Matches, b.Matches)
}

// appendText writes a string. JSON knows only UTF-8: other bytes go into a Go string literal, and so does text that would be
// taken for one.
func appendText(dst []byte, s string) []byte {
	if !utf8.ValidString(s) || strings.HasPrefix(s, `"`) {
		s = strconv.Quote(s)
	}
	if plain(s) {
		return append(append(append(dst, '"'), s...), '"')
	}
	quoted, _ := json.Marshal(s) // a string has no reason to fail
	return append(dst, quoted...)
}

func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			return false
		}
	}
	return true
}
