package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"regexp"
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
	broken error

	// lines are those of all fields, found when somebody asks for one: most
	// documents have nothing wrong with them.
	lines map[string]int
	twice []string // fields that are set twice
}

// split cuts a file into the documents that hold something.
func split(file string, data []byte) []*document {
	data = bytes.TrimPrefix(data, []byte("\uFEFF"))
	data = bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n"))
	data = bytes.ReplaceAll(data, []byte("\r"), []byte("\n"))
	if path.Ext(file) == ".json" {
		return splitJSON(data)
	}
	return splitYAML(data)
}

// splitYAML cuts a file at its document markers before anything is parsed, so
// that one document that does not parse leaves the others alone.
func splitYAML(data []byte) []*document {
	var docs []*document
	var cur *document
	number := 0
	for line := range bytes.Lines(data) {
		number++
		content := line
		if marks(line, "---") {
			cur, content = nil, line[3:]
		}
		if cur == nil {
			cur = &document{first: number}
		}
		cur.text = append(cur.text, line...)
		content = bytes.TrimSpace(content)
		switch {
		case marks(line, "..."):
			cur = nil
		case cur.begin > 0 || len(content) == 0 || content[0] == '#' || content[0] == '%': // % is a directive
		default:
			cur.begin, cur.number = number, len(docs)+1
			docs = append(docs, cur)
		}
	}
	return docs
}

// marks says whether the line begins with the marker as a word of its own.
func marks(line []byte, marker string) bool {
	rest, ok := bytes.CutPrefix(line, []byte(marker))
	return ok && (len(rest) == 0 || strings.ContainsRune(" \t\n", rune(rest[0])))
}

// splitJSON cuts a file of JSON values that follow one another. After a value
// that does not parse nothing more can be found.
func splitJSON(data []byte) []*document {
	var docs []*document
	line := 1
	skip := func(data []byte, n int) []byte {
		line += bytes.Count(data[:n], []byte("\n"))
		return data[n:]
	}
	for rest := bytes.TrimRight(data, " \t\n"); len(rest) > 0; {
		rest = skip(rest, len(rest)-len(bytes.TrimLeft(rest, " \t\n")))
		dec := json.NewDecoder(bytes.NewReader(rest))
		var raw json.RawMessage
		err := dec.Decode(&raw)
		d := &document{text: raw, number: len(docs) + 1, first: line, begin: line, broken: err}
		docs = append(docs, d)
		if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
			d.begin += bytes.Count(rest[:min(int(syntax.Offset), len(rest))], []byte("\n"))
		}
		if err != nil {
			break
		}
		rest = skip(rest, int(dec.InputOffset()))
	}
	return docs
}

// toJSON returns the document as JSON. Fields that are set twice are in it once
// and in d.twice, unless the decoder of the JSON finds them itself.
func (d *document) toJSON() ([]byte, error) {
	if d.broken != nil || json.Valid(d.text) {
		return d.text, d.broken
	}
	raw, err := yaml.YAMLToJSONStrict(d.text)
	if err == nil {
		return raw, nil
	}
	// Only repeated keys are errors to the one and not to the other.
	raw, lenient := yaml.YAMLToJSON(d.text)
	if lenient != nil {
		return nil, lenient
	}
	if d.walk(); len(d.twice) > 0 {
		return raw, nil
	}
	return nil, err
}

// parseError takes apart what the libraries that parse documents say. They count
// lines from the beginning of the document.
var parseError = regexp.MustCompile(`^(?:error converting YAML to JSON: )?(?:yaml: )?(?:unmarshal errors: )?(?:line (\d+): )?(.*)$`)

// explain returns the line and the words of an error in a document.
func (d *document) explain(err error) (line int, reason string) {
	parts := parseError.FindStringSubmatch(strings.Join(strings.Fields(err.Error()), " "))
	line = d.begin
	if n, err := strconv.Atoi(parts[1]); err == nil {
		line = d.first + n - 1
	}
	return line, "does not parse: " + parts[2]
}

// walk finds the lines of all fields and those that are set twice.
func (d *document) walk() {
	d.lines, d.twice = map[string]int{}, nil
	var tree yamlv3.Node
	if err := yamlv3.Unmarshal(d.text, &tree); err != nil || len(tree.Content) == 0 {
		return // The line is a courtesy: without a tree it is that of the document.
	}
	var visit func(node *yamlv3.Node, at string)
	visit = func(node *yamlv3.Node, at string) {
		seen := map[string]bool{}
		for i, child := range node.Content {
			field, line := fmt.Sprintf("%s[%d]", at, i), child.Line
			if node.Kind == yamlv3.MappingNode {
				if i%2 == 0 {
					continue
				}
				key := node.Content[i-1]
				field, line = join(at, key.Value), key.Line
				if seen[field] {
					d.twice = append(d.twice, field)
				}
				seen[field] = true
			}
			d.lines[field] = d.first + line - 1
			visit(child, field)
		}
	}
	visit(tree.Content[0], "")
}

// line returns the line of the file on which the field is, or what comes
// nearest: the parent that should hold it, the beginning of the document.
func (d *document) line(field string) int {
	if field != "" && d.lines == nil {
		d.walk()
	}
	for field != "" {
		if line, ok := d.lines[field]; ok {
			return line
		}
		field = field[:max(0, strings.LastIndexAny(field, ".["))]
	}
	return d.begin
}

// join puts a child's name behind its parent's.
func join(parent, child string) string {
	if parent == "" || child == "" || child[0] == '[' {
		return parent + child
	}
	return parent + "." + child
}
