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

// attrs are what an expression has, by kind: bytes, or an expression, which has
// no name if it is nested attributes. Whoever knows one takes it out.
type attrs map[int]any

// parseLine reads a line of a listed rule.
func parseLine(line string) (*listedExpr, error) {
	x, rest, err := parseExpr(strings.TrimSpace(line))
	if err == nil && rest != "" {
		err = fmt.Errorf("unexpected %q", rest)
	}
	return x, err
}

// parseExpr reads what appendExpr wrote, up to the end of the text or the
// parenthesis.
func parseExpr(text string) (x *listedExpr, rest string, err error) {
	end := strings.IndexAny(text+" ", " )")
	all := attrs{}
	x = &listedExpr{text[:end], all}
	text = text[end:]
	for text = strings.TrimLeft(text, " "); text != "" && text[0] != ')' && err == nil; text = strings.TrimLeft(text, " ") {
		name, value, _ := strings.Cut(text, "=")
		kind, err := strconv.Atoi(name)
		if err != nil {
			return x, "", err
		}
		if inner, nested := strings.CutPrefix(value, "("); nested {
			if all[kind], text, err = parseExpr(inner); err != nil {
				return x, "", err
			}
			text = strings.TrimPrefix(text, ")")
			continue
		}
		end := strings.IndexAny(value+" ", " )")
		if all[kind], err = hex.DecodeString(value[:end]); err != nil {
			return x, "", err
		}
		text = value[end:]
	}
	return x, text, nil
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

// nested takes an expression out, or nested attributes; an empty one if there is none.
func (a attrs) nested(kind int) *listedExpr {
	x, ok := a[kind].(*listedExpr)
	if delete(a, kind); !ok {
		return &listedExpr{}
	}
	return x
}

// done is an error if there is more than was taken out.
func (a attrs) done() error {
	if len(a) == 0 {
		return nil
	}
	return fmt.Errorf("attributes %v are not known", slices.Sorted(maps.Keys(a)))
}
