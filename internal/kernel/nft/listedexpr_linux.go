package nft

import (
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// listedExpr is an expression of a [ListedRule].
type listedExpr struct {
	name string
	attrs
}

// attrs are what an expression has, by kind: bytes, or attrs if they are nested.
// Whoever knows one takes it out.
type attrs map[int]any

// parseExpr reads what appendExpr wrote.
func parseExpr(line string) (*listedExpr, error) {
	name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
	all, rest, err := parseAttrs(text)
	if err == nil && rest != "" {
		err = fmt.Errorf("unexpected %q", rest)
	}
	return &listedExpr{name, all}, err
}

// parseAttrs reads attributes up to the end of the text or the parenthesis.
func parseAttrs(text string) (all attrs, rest string, err error) {
	all = attrs{}
	for text = strings.TrimLeft(text, " "); text != "" && text[0] != ')' && err == nil; text = strings.TrimLeft(text, " ") {
		name, value, _ := strings.Cut(text, "=")
		kind, err := strconv.Atoi(name)
		if err != nil {
			return nil, "", err
		}
		if inner, nested := strings.CutPrefix(value, "("); nested {
			if all[kind], text, err = parseAttrs(inner); err != nil {
				return nil, "", err
			}
			text = strings.TrimPrefix(text, ")")
			continue
		}
		end := strings.IndexAny(value+" ", " )")
		if all[kind], err = hex.DecodeString(value[:end]); err != nil {
			return nil, "", err
		}
		text = value[end:]
	}
	return all, text, nil
}

// bytes takes an attribute out; nil if there is none.
func (a attrs) bytes(kind int) []byte {
	b, _ := a[kind].([]byte)
	delete(a, kind)
	return b
}

// number takes a number out, which may have been left out if it is zero.
func (a attrs) number(kind int) (n uint64) {
	for _, b := range a.bytes(kind) {
		n = n<<8 | uint64(b)
	}
	return n
}

func (a attrs) string(kind int) string { return strings.TrimRight(string(a.bytes(kind)), "\x00") }

func (a attrs) nested(kind int) attrs {
	inner, _ := a[kind].(attrs)
	delete(a, kind)
	return inner
}

// done is an error if there is more than was taken out.
func (a attrs) done() error {
	if len(a) == 0 {
		return nil
	}
	return fmt.Errorf("attributes %v are not known", slices.Sorted(maps.Keys(a)))
}
