package config

import (
	"flag"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// Key is one setting.
type Key struct {
	Name    string // path in the YAML file, e.g. "limits.connections"
	Flag    string // name of the flag
	Default string
	Doc     string
}

// shortFlags are the settings whose flag is not the path.
func shortFlags() map[string]string {
	return map[string]string{
		"drives": "drive", "http.listen": "listen", "http.admin_listen": "admin-listen", "http.region": "region",
		"http.domains": "domain",
	}
}

// Keys lists every setting in the order of the struct.
func Keys() []Key {
	var keys []Key
	c := Default()
	walk(reflect.ValueOf(&c).Elem(), "", func(name, doc string, v reflect.Value) {
		flagName := strings.NewReplacer(".", "-", "_", "-").Replace(name)
		if short, ok := shortFlags()[name]; ok {
			flagName = short
		}
		keys = append(keys, Key{Name: name, Flag: flagName, Default: show(v), Doc: doc})
	})
	return keys
}

func walk(v reflect.Value, prefix string, visit func(name, doc string, v reflect.Value)) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name := f.Tag.Get("yaml")
		switch {
		case name == "-":
		case f.Type.Kind() == reflect.Struct:
			walk(v.Field(i), prefix+name+".", visit)
		default:
			visit(prefix+name, f.Tag.Get("doc"), v.Field(i))
		}
	}
}

func show(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case []string:
		return strings.Join(x, ",")
	default:
		return fmt.Sprint(x)
	}
}

// Flags collects the settings given as flags, so that they can be laid over the file's.
type Flags struct {
	given []given
}

type given struct {
	key, flag, value string
}

// RegisterFlags adds one flag per setting. Give the result to Load after parsing.
func RegisterFlags(fs *flag.FlagSet) *Flags {
	f := &Flags{}
	for _, k := range Keys() {
		usage := k.Doc
		if k.Default != "" && k.Default != "false" {
			usage += " (default " + k.Default + ")"
		}
		fs.Var(&value{flags: f, key: k}, k.Flag, usage)
	}
	return f
}

// value is one flag. It checks what it is given at once, so that the message names the flag.
type value struct {
	flags *Flags
	key   Key
}

// String is empty: the default is part of the usage text.
func (v *value) String() string { return "" }

// IsBoolFlag lets "--rdma-shm" stand for "--rdma-shm=true".
func (v *value) IsBoolFlag() bool { return v.key.Default == "true" || v.key.Default == "false" }

// Set notes the value.
func (v *value) Set(s string) error {
	var scratch Config
	if err := set(&scratch, v.key.Name, s, false); err != nil {
		return err
	}
	v.flags.given = append(v.flags.given, given{key: v.key.Name, flag: v.key.Flag, value: s})
	return nil
}

func (f *Flags) apply(c *Config) error {
	seen := map[string]bool{}
	for _, g := range f.given {
		if err := set(c, g.key, g.value, seen[g.key]); err != nil {
			return fmt.Errorf("flag --%s: %w", g.flag, err)
		}
		seen[g.key] = true
	}
	return nil
}

// set assigns text to the setting. A list is split at commas; with more it is appended to.
func set(c *Config, key, text string, more bool) error {
	err := fmt.Errorf("%w: no setting %q", ErrInvalid, key)
	walk(reflect.ValueOf(c).Elem(), "", func(name, _ string, v reflect.Value) {
		if name != key {
			return
		}
		err = assign(v, text, more)
	})
	return err
}

func assign(v reflect.Value, text string, more bool) error {
	switch x := v.Addr().Interface().(type) {
	case *string:
		*x = text
	case *bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("%w: %q is not true or false", ErrInvalid, text)
		}
		*x = b
	case *int:
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("%w: %q is not a whole number", ErrInvalid, text)
		}
		*x = n
	case *time.Duration:
		d, err := time.ParseDuration(text)
		if err != nil {
			return fmt.Errorf("%w: %q is not a duration such as 8s", ErrInvalid, text)
		}
		*x = d
	case *Bytes:
		return x.UnmarshalText([]byte(text))
	case *[]string:
		if !more {
			*x = nil
		}
		for item := range strings.SplitSeq(text, ",") {
			if item = strings.TrimSpace(item); item != "" {
				*x = append(*x, item)
			}
		}
	default:
		return fmt.Errorf("config: setting of type %s has no flag", v.Type())
	}
	return nil
}
