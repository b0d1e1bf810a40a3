package journal

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"time"

	"flanwatch/flannel"
)

// read reads one JSON value into what v points to.
func (c *codec) read(text []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var x any
	if err := d.Decode(&x); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one value")
	}
	return c.assign(reflect.ValueOf(v).Elem(), x)
}

// assign gives v the value that x tells; null tells none.
func (c *codec) assign(v reflect.Value, x any) error {
	if x == nil {
		return nil
	}
	if text, ok := x.(string); ok {
		return c.assignText(v, unquoted(text))
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		return c.assign(v.Elem(), x)
	case reflect.Struct:
		return c.assignStruct(v, x)
	case reflect.Slice:
		return c.assignSlice(v, x)
	case reflect.Map:
		return c.assignMap(v, x)
	}
	return assignScalar(v, x)
}

func (c *codec) assignText(v reflect.Value, text string) (err error) {
	switch v.Type() {
	case timeType:
		var t flannel.Time
		if t, err = c.time(text); err == nil {
			v.Set(reflect.ValueOf(t))
		}
		return err
	case wallType:
		var t time.Time
		if t, err = time.Parse(time.RFC3339Nano, text); err == nil {
			v.Set(reflect.ValueOf(t.UTC()))
		}
		return err
	case prefixType:
		var p netip.Prefix
		if p, err = netip.ParsePrefix(text); err == nil {
			v.Set(reflect.ValueOf(p))
		}
		return err
	case ruleType:
		var r flannel.Rule
		if r, err = flannel.ParseRule(text); err == nil {
			v.Set(reflect.ValueOf(r))
		}
		return err
	}
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(text))
	}
	if v.Kind() != reflect.String {
		return fmt.Errorf("text in place of %s", v.Type())
	}
	v.SetString(text)
	return nil
}

func assignScalar(v reflect.Value, x any) error {
	if b, ok := x.(bool); ok && v.Kind() == reflect.Bool {
		v.SetBool(b)
		return nil
	}
	n, ok := x.(json.Number)
	if !ok {
		return fmt.Errorf("%T in place of %s", x, v.Type())
	}
	switch {
	case v.CanInt():
		i, err := strconv.ParseInt(n.String(), 10, v.Type().Bits())
		v.SetInt(i)
		return err
	case v.CanUint():
		u, err := strconv.ParseUint(n.String(), 10, v.Type().Bits())
		v.SetUint(u)
		return err
	case v.CanFloat():
		f, err := n.Float64()
		v.SetFloat(f)
		return err
	}
	return fmt.Errorf("number in place of %s", v.Type())
}

func (c *codec) assignStruct(v reflect.Value, x any) error {
	object, ok := x.(map[string]any)
	if !ok {
		return fmt.Errorf("%T in place of %s", x, v.Type())
	}
	known := 0
	for _, f := range c.of(v.Type()) {
		value, ok := object[f.name]
		if !ok {
			continue
		}
		known++
		if err := c.assign(v.FieldByIndex(f.index), value); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	c.unknown += len(object) - known
	return nil
}

func (c *codec) assignSlice(v reflect.Value, x any) error {
	list, ok := x.([]any)
	if !ok {
		return fmt.Errorf("%T in place of %s", x, v.Type())
	}
	v.Set(reflect.MakeSlice(v.Type(), len(list), len(list)))
	for i, value := range list {
		if err := c.assign(v.Index(i), value); err != nil {
			return err
		}
	}
	return nil
}

func (c *codec) assignMap(v reflect.Value, x any) error {
	object, ok := x.(map[string]any)
	if !ok {
		return fmt.Errorf("%T in place of %s", x, v.Type())
	}
	v.Set(reflect.MakeMapWithSize(v.Type(), len(object)))
	for key, value := range object {
		e := reflect.New(v.Type().Elem()).Elem()
		if err := c.assign(e, value); err != nil {
			return err
		}
		k := reflect.New(v.Type().Key()).Elem()
		if err := c.assignText(k, unquoted(key)); err != nil {
			return err
		}
		v.SetMapIndex(k, e)
	}
	return nil
}

// time reads what appendTime wrote.
func (c *codec) time(text string) (flannel.Time, error) {
	wall, rest, _ := strings.Cut(text, " ")
	boot, session, named := strings.Cut(rest, " ")
	if !named {
		session = c.session
	}
	w, err := time.Parse(time.RFC3339Nano, wall)
	if err != nil {
		return flannel.Time{}, err
	}
	b, err := strconv.ParseInt(boot, 10, 64)
	return flannel.Time{Wall: w.UTC(), Boot: time.Duration(b), Session: session}, err
}

// unquoted takes text out of the Go string literal that it had to be written as.
func unquoted(s string) string {
	if strings.HasPrefix(s, `"`) {
		if u, err := strconv.Unquote(s); err == nil {
			return u
		}
	}
	return s
}
