package waybill

import (
	"fmt"
	"reflect"
)

// An upcaster converts messages of one version to the next.
type upcaster struct {
	to      string // a message name
	convert func(msg any) (any, error)
}

// Upcast makes messages of Old arrive at the handlers of New, as convert returns them;
// several upcasters form a chain from the oldest version to the newest. It registers both
// types. convert depends on its argument alone. It may be called concurrently, for each
// attempt again, and keeps the partition key. An error or a panic of it is a *DecodeError
// around an *UpcastError: no retry helps, and the message is kept as it came.
//
// Dispatched messages of Old travel as they are. Upcast panics if the names of the types
// do not differ, if Old has an upcaster already or handlers, if the chain would end in
// Old, or if convert is nil.
func Upcast[Old, New any](b *Bus, convert func(Old) (New, error)) {
	if convert == nil {
		panic(fmt.Errorf("waybill: bus %s: the upcaster of %s is nil", b.name, reflect.TypeFor[Old]()))
	}
	t := b.Types()
	Register[Old](t, "")
	Register[New](t, "")
	var old Old
	var next New
	from, err := t.NameOf(old)
	if err != nil {
		panic(err)
	}
	to, err := t.NameOf(next)
	if err != nil {
		panic(err)
	}
	if names := b.Handlers(from); len(names) > 0 {
		panic(fmt.Errorf("waybill: bus %s: handlers %q of %s would get no messages behind an upcaster to %s: register them for %T", b.name, names, from, to, next))
	}
	t.addUpcaster(from, upcaster{to, func(msg any) (any, error) {
		m, ok := msg.(Old)
		if !ok {
			return nil, &TypeError{fmt.Sprintf("%T", msg), fmt.Sprintf("the upcaster to %s wants %T", to, old)}
		}
		return convert(m)
	}})
}

func (t *Types) addUpcaster(from string, u upcaster) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if known, ok := t.upcasters[from]; ok {
		panic(fmt.Errorf("waybill: %s has an upcaster to %s already: a version has one next version", from, known.to))
	}
	for name := u.to; name != ""; name = t.upcasters[name].to {
		if name == from {
			panic(fmt.Errorf("waybill: the upcaster from %s to %s leads back to %s", from, u.to, from))
		}
	}
	t.upcasters[from] = u
}

// Upcasters returns the old names that have an upcaster, each with its next version.
func (t *Types) Upcasters() map[string]string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	all := make(map[string]string, len(t.upcasters))
	for from, u := range t.upcasters {
		all[from] = u.to
	}
	return all
}

// Versions returns the names through which a message that is received as name decodes: name
// itself, the name it is an alias of, and those of the upcasters. Handlers get the last.
func (t *Types) Versions(name string) []string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	all := []string{name}
	if current, ok := t.alias[name]; ok {
		all = append(all, current)
	}
	for {
		next, ok := t.upcasters[all[len(all)-1]]
		if !ok {
			return all
		}
		all = append(all, next.to)
	}
}

// upcast converts a message of name to its newest version.
func (t *Types) upcast(name string, msg any) (newest string, converted any, err error) {
	newest = name
	for {
		t.mu.RLock()
		next, ok := t.upcasters[newest]
		t.mu.RUnlock()
		if !ok {
			return newest, msg, nil
		}
		if err := Guard(func() (err error) { msg, err = next.convert(msg); return err }); err != nil {
			return "", nil, &DecodeError{name, &UpcastError{newest, next.to, err}}
		}
		newest = next.to
	}
}

// stampsOf returns the stamps that tell a handler the name of its message, which was
// dispatched as from.
func stampsOf(name, from string) []Stamp {
	if name == from {
		return []Stamp{MessageName(name)}
	}
	return []Stamp{MessageName(name), UpcastFrom(from)}
}
