package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"
)

// document is one document of a file.
type document struct {
	text   []byte
	number int // counted from 1
	first  int // line of the file on which text begins
	begin  int // line of the file on which the content begins

	// tree is the text with its lines, parsed when somebody asks for a line:
	// most documents have nothing wrong with them.
	tree *yamlv3.Node
}

// syntaxError is a document that does not parse.
type syntaxError struct {
	line   int // of the file; 0: not known
	reason string
}

// splitYAML cuts a file at its document markers. Documents without content do
// not count.
func splitYAML(data []byte) []*document {
	var docs []*document
	cur := &document{first: 1}
	directive := false
	flush := func(next int) {
		if cur.begin > 0 {
			cur.number = len(docs) + 1
			docs = append(docs, cur)
		}
		cur, directive = &document{first: next}, false
	}
	number := 0
	for line := range bytes.Lines(data) {
		number++
		// A directive stands before its marker, in the same document.
		if marks(line, "---") && !directive {
			flush(number)
		}
		cur.text = append(cur.text, line...)
		switch {
		case marks(line, "..."):
			flush(number + 1)
		case cur.begin == 0 && line[0] == '%':
			directive = true
		case cur.begin == 0 && hasContent(line):
			cur.begin = number
		case marks(line, "---"):
			directive = false
		}
	}
	flush(number)
	return docs
}

// marks says whether the line begins with the marker as a word of its own.
func marks(line []byte, marker string) bool {
	rest, ok := bytes.CutPrefix(line, []byte(marker))
	return ok && (len(rest) == 0 || strings.ContainsRune(" \t\n", rune(rest[0])))
}

func hasContent(line []byte) bool {
	if marks(line, "---") {
		line = line[3:]
	}
	line = bytes.TrimSpace(line)
	return len(line) > 0 && line[0] != '#'
}

// splitJSON cuts a file of JSON values that follow one another. After a value
// that does not parse nothing more can be found.
func splitJSON(data []byte) ([]*document, *syntaxError) {
	var docs []*document
	dec := json.NewDecoder(bytes.NewReader(data))
	for {
		var raw json.RawMessage
		err := dec.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return docs, nil
		}
		if err != nil {
			at := dec.InputOffset()
			at += int64(len(data[at:]) - len(bytes.TrimLeft(data[at:], " \t\n")))
			if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
				at = syntax.Offset
			}
			return docs, &syntaxError{lineAt(data, at), "does not parse: " + trimPackage(err.Error())}
		}
		line := lineAt(data, dec.InputOffset()-int64(len(raw)))
		docs = append(docs, &document{text: raw, number: len(docs) + 1, first: line, begin: line})
	}
}

func lineAt(data []byte, offset int64) int {
	return 1 + bytes.Count(data[:min(int(offset), len(data))], []byte("\n"))
}

// toJSON returns the document as JSON, and what the conversion hides: keys that
// are set twice.
func (d *document) toJSON() ([]byte, []repeated, *syntaxError) {
	if json.Valid(d.text) {
		return d.text, nil, nil // The decoder finds repeated keys itself.
	}
	strict, strictErr := yaml.YAMLToJSONStrict(d.text)
	if strictErr == nil {
		return strict, nil, nil
	}
	lenient, err := yaml.YAMLToJSON(d.text)
	if err != nil {
		return nil, nil, d.syntaxError(err)
	}
	// Only repeated keys are errors to the one and not to the other.
	if twice := d.repeatedKeys(); len(twice) > 0 {
		return lenient, twice, nil
	}
	return nil, nil, d.syntaxError(strictErr)
}

// syntaxError takes the line out of an error of the YAML library, where it is
// counted from the beginning of the document.
func (d *document) syntaxError(err error) *syntaxError {
	text := trimPackage(err.Error())
	out := &syntaxError{}
	if rest, ok := strings.CutPrefix(text, "line "); ok {
		digits, after, _ := strings.Cut(rest, ": ")
		if n, err := strconv.Atoi(digits); err == nil {
			out.line, text = d.first+n-1, after
		}
	}
	out.reason = "does not parse: " + strings.Join(strings.Fields(text), " ")
	return out
}

// trimPackage removes the names of the libraries that wrote an error: they say
// nothing to whoever wrote the manifest.
func trimPackage(text string) string {
	for {
		rest := text
		for _, prefix := range []string{
			"error converting YAML to JSON: ", "yaml: ", "json: ", "unmarshal errors:", "invalid character: ",
		} {
			rest = strings.TrimSpace(strings.TrimPrefix(rest, prefix))
		}
		if rest == text {
			return text
		}
		text = rest
	}
}

// root returns the tree of the document, nil if it has none.
func (d *document) root() *yamlv3.Node {
	if d.tree == nil {
		d.tree = &yamlv3.Node{}
		if err := yamlv3.Unmarshal(d.text, d.tree); err != nil {
			// The line is a courtesy: without a tree it is that of the document.
			d.tree = &yamlv3.Node{}
		}
	}
	if len(d.tree.Content) == 0 {
		return nil
	}
	return d.tree.Content[0]
}

// line returns the line of the file on which the field is, or what comes
// nearest: the parent that should hold it, the beginning of the document.
func (d *document) line(field string) int {
	if field == "" {
		return d.begin // Without a question there is no need for the tree.
	}
	line := d.begin
	for node := d.root(); node != nil && field != ""; {
		if node.Kind == yamlv3.AliasNode {
			node = node.Alias
		}
		next, at, rest := step(node, field)
		if next == nil {
			break
		}
		// Anchors may stand before the place that uses them; so may the line.
		line = d.first + at - 1
		node, field = next, rest
	}
	return line
}

// step goes from a node to the child that the first part of the field names,
// and returns the child, its line and the rest of the field. Keys may hold
// dots, so the node's own keys decide where the first part ends.
func step(node *yamlv3.Node, field string) (child *yamlv3.Node, line int, rest string) {
	switch node.Kind {
	case yamlv3.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			key := node.Content[i]
			rest, ok := strings.CutPrefix(field, key.Value)
			if ok && key.Value != "" && (rest == "" || rest[0] == '.' || rest[0] == '[') {
				return node.Content[i+1], key.Line, strings.TrimPrefix(rest, ".")
			}
		}
	case yamlv3.SequenceNode:
		inside, after, ok := strings.Cut(strings.TrimPrefix(field, "["), "]")
		i, err := strconv.Atoi(inside)
		if ok && err == nil && i >= 0 && i < len(node.Content) {
			return node.Content[i], node.Content[i].Line, strings.TrimPrefix(after, ".")
		}
	}
	return nil, 0, ""
}

// repeated is a key that a mapping has twice.
type repeated struct {
	field string
	line  int
}

func (d *document) repeatedKeys() []repeated {
	root := d.root()
	if root == nil {
		return nil
	}
	var out []repeated
	var walk func(node *yamlv3.Node, at string)
	walk = func(node *yamlv3.Node, at string) {
		switch node.Kind {
		case yamlv3.MappingNode:
			seen := map[string]bool{}
			for i := 0; i+1 < len(node.Content); i += 2 {
				key := node.Content[i]
				field := join(at, key.Value)
				if seen[key.Value] {
					out = append(out, repeated{field, d.first + key.Line - 1})
				}
				seen[key.Value] = true
				walk(node.Content[i+1], field)
			}
		case yamlv3.SequenceNode:
			for i, child := range node.Content {
				walk(child, fmt.Sprintf("%s[%d]", at, i))
			}
		}
	}
	walk(root, "")
	return out
}

// join puts a child's name behind its parent's.
func join(parent, child string) string {
	if parent == "" || child == "" || child[0] == '[' {
		return parent + child
	}
	return parent + "." + child
}
