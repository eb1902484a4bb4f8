package waybill

import (
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
)

// Named is a message that knows its semantic name, such as "order.placed".
type Named interface{ MessageName() string }

// Keyed is a message that is ordered among messages with an equal key.
type Keyed interface{ PartitionKey() string }

// RawMessage is a message whose body is already encoded: its bytes travel
// unchanged. It is how tools without the application's Go types dispatch.
type RawMessage struct {
	Name        string
	Key         string
	ContentType string // empty means application/json, which is checked to be valid
	Body        []byte
}

// MessageName returns Name.
func (m RawMessage) MessageName() string { return m.Name }

// PartitionKey returns Key.
func (m RawMessage) PartitionKey() string { return m.Key }

// Types is the registry of message names: an allow-list from names to Go types.
// Register before use; reading is safe for concurrent use.
type Types struct {
	mu     sync.RWMutex
	byName map[string]reflect.Type // RawMessage's type for names allowed raw
	names  map[reflect.Type]string // names given by Register to types without a method
	alias  map[string]string

	upcasters map[string]upcaster // by old name
}

// NewTypes returns an empty registry.
func NewTypes() *Types {
	return &Types{byName: map[string]reflect.Type{}, names: map[reflect.Type]string{}, alias: map[string]string{}, upcasters: map[string]upcaster{}}
}

// Register registers M under name; empty means the name it has, or gives itself. It
// panics when M cannot be a message, has another name, or the name is taken by another
// type.
func Register[M any](t *Types, name string) {
	typ := reflect.TypeFor[M]()
	if err := checkShape(typ); err != nil {
		panic(err)
	}
	if name == "" {
		name = t.nameOfType(typ)
	}
	if _, named := reflect.Zero(typ).Interface().(Named); name == "" && !named {
		panic(errNoName(typ))
	}
	if err := checkName(name); err != nil {
		panic(fmt.Errorf("%w (type %s)", err, typ))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if current, ok := t.alias[name]; ok {
		panic(fmt.Errorf("waybill: message name %q is an alias of %q, so %s cannot have it", name, current, typ))
	}
	if known, ok := t.byName[name]; ok && known != typ {
		panic(fmt.Errorf("waybill: message name %q is taken by %s, so %s cannot have it", name, known, typ))
	}
	if had, ok := t.names[typ]; ok && had != name {
		panic(fmt.Errorf("waybill: %s is registered as %q, so it cannot be %q: a type is dispatched under one name, and Types.Alias gives it an old one", typ, had, name))
	}
	t.byName[name] = typ
	t.names[typ] = name
}

// nameOfType returns the name a type was registered with, or gives itself.
func (t *Types) nameOfType(typ reflect.Type) string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if name, ok := t.names[typ]; ok {
		return name
	}
	if named, ok := reflect.Zero(typ).Interface().(Named); ok {
		return named.MessageName()
	}
	return ""
}

// Alias makes messages that arrive under an old name decode as name, which
// must be registered. It panics when old is already in use.
func (t *Types) Alias(old, name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.byName[name]; !ok {
		panic(fmt.Errorf("waybill: alias %q: %q is not registered", old, name))
	}
	if _, ok := t.byName[old]; ok || t.alias[old] != "" {
		panic(fmt.Errorf("waybill: alias %q is already in use", old))
	}
	t.alias[old] = name
}

// AllowRaw registers names that have no Go type in this process: they decode as
// RawMessage. It panics on an invalid name.
func (t *Types) AllowRaw(names ...string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range names {
		if err := checkName(name); err != nil {
			panic(err)
		}
		if _, ok := t.byName[name]; !ok {
			t.byName[name] = reflect.TypeFor[RawMessage]()
		}
	}
}

// Names returns the registered names, sorted.
func (t *Types) Names() []string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Sorted(maps.Keys(t.byName))
}

// Aliases returns the old names, each with the name that it decodes as.
func (t *Types) Aliases() map[string]string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return maps.Clone(t.alias)
}

// NameOf returns the name under which msg travels. A raw message must have a
// registered name; a Go type must be registered or name itself.
func (t *Types) NameOf(msg any) (string, error) {
	if raw, ok := msg.(RawMessage); ok {
		_, name, err := t.lookup(raw.Name)
		return name, err
	}
	typ := reflect.TypeOf(msg)
	if err := checkShape(typ); err != nil {
		return "", err
	}
	t.mu.RLock()
	name, ok := t.names[typ]
	t.mu.RUnlock()
	if ok {
		return name, nil
	}
	if named, ok := msg.(Named); ok {
		return named.MessageName(), checkName(named.MessageName())
	}
	return "", errNoName(typ)
}

func errNoName(typ reflect.Type) error {
	return &TypeError{typ.String(), "it has no name: give it a method MessageName() string or register it"}
}

// lookup resolves a received name and its aliases.
func (t *Types) lookup(name string) (reflect.Type, string, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if current, ok := t.alias[name]; ok {
		name = current
	}
	typ, ok := t.byName[name]
	if !ok {
		return nil, "", &UnknownNameError{name, slices.Sorted(maps.Keys(t.byName))}
	}
	return typ, name, nil
}

var shapes sync.Map // reflect.Type -> error or nil: the results of checkShape

// checkShape refuses types that would silently lose a name or a partition key: a
// method with a pointer receiver is not in the method set of the value.
func checkShape(typ reflect.Type) error {
	if known, ok := shapes.Load(typ); ok {
		err, _ := known.(error)
		return err
	}
	err := shapeOf(typ)
	if typ != nil {
		shapes.Store(typ, err)
	}
	return err
}

func shapeOf(typ reflect.Type) error {
	switch {
	case typ == nil:
		return &TypeError{"nil", "a message is a struct"}
	case typ.Kind() == reflect.Pointer && typ.Elem().Kind() == reflect.Struct:
		return &TypeError{typ.String(), "pass the struct itself, not a pointer to it"}
	case typ.Kind() != reflect.Struct:
		return &TypeError{typ.String(), "a message is a struct"}
	}
	for _, want := range []reflect.Type{reflect.TypeFor[Named](), reflect.TypeFor[Keyed](), reflect.TypeFor[json.Marshaler](), reflect.TypeFor[encoding.TextMarshaler]()} {
		if !typ.Implements(want) && reflect.PointerTo(typ).Implements(want) {
			return &TypeError{typ.String(), fmt.Sprintf("%s has a pointer receiver and would be missed: give it a value receiver", want.Method(0).Name)}
		}
	}
	return nil
}

// maxName is the width of the message_name column.
const maxName = 190

func checkName(name string) error {
	switch {
	case name == "":
		return &InvalidError{"message name", name, "it is empty"}
	case len(name) > maxName:
		return &LimitError{"message name length", len(name), maxName, ""}
	}
	ok := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r)
	}
	for _, r := range name {
		if !ok(r) {
			return &InvalidError{"message name", name, "use letters, digits, '.', '_' and '-', as in order.placed"}
		}
	}
	return nil
}
