package render

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"text/template"
	"text/template/parse"
	"time"

	"github.com/seed-4578ace9/notifier/configs"
)

// Template makes messages of events. Make one with Parse. It is safe for concurrent use.
type Template struct {
	parsed  *template.Template
	source  string        // markup in it is the operator's own
	maxTime time.Duration // of one rendering; 0: unbounded, as a built-in template ends by itself, however busy the machine is
}

// Bounds of one rendering. An operator's template may loop; built-in templates have no bound of time.
const (
	maxResult = 256 << 10 // bytes
	maxTime   = time.Second
)

var summaryTemplate = sync.OnceValue(func() *Template { return builtIn("slack-summary.tmpl", configs.SlackSummary) })

// Parse parses the text of a template and tries it on samples of every kind of event. Its error says what is wrong, and
// with which sample.
func Parse(text string) (*Template, error) {
	t, err := parseTemplate("template", text)
	if err != nil {
		return nil, err
	}
	t.maxTime = maxTime
	for _, s := range trials() {
		c := newContent(s.view)
		if _, err := t.execute(c, c.Mention); err != nil {
			return nil, fmt.Errorf("with a sample event (%s): %w", s.name, err)
		}
	}
	return t, nil
}

func parseTemplate(name, text string) (*Template, error) {
	parsed, err := template.New(name).Funcs(functions).Parse(text)
	if err != nil {
		return nil, withoutPrefix(err)
	}
	for _, each := range parsed.Templates() {
		if each.Tree != nil {
			prepare(each.Tree, each.Root)
		}
	}
	return &Template{parsed: parsed, source: text}, nil
}

// builtIn parses a template that tests have tried.
func builtIn(name, text string) *Template {
	t, err := parseTemplate(name, text)
	if err != nil {
		panic(fmt.Sprintf("built-in template %s: %v", name, err))
	}
	return t
}

// withoutPrefix takes "template: " off an error of the template package. The callers have a prefix of their own.
func withoutPrefix(err error) error {
	return errors.New(strings.TrimPrefix(err.Error(), "template: "))
}

// prepare makes a parsed template safe to execute. It appends the function escaped to every action that prints, so nothing reaches a message
// unescaped. It begins every list of nodes with an empty text: each turn of a loop and each call of a template then writes to the
// [boundedBuffer], which ends the execution when its time is over.
func prepare(tree *parse.Tree, node parse.Node) {
	branches := func(b *parse.BranchNode) {
		prepare(tree, b.List)
		if b.ElseList != nil {
			prepare(tree, b.ElseList)
		}
	}
	switch node := node.(type) {
	case *parse.ListNode:
		for _, inner := range node.Nodes {
			prepare(tree, inner)
		}
		node.Nodes = slices.Insert(node.Nodes, 0, parse.Node(&parse.TextNode{NodeType: parse.NodeText, Pos: node.Pos}))
	case *parse.IfNode:
		branches(&node.BranchNode)
	case *parse.RangeNode:
		branches(&node.BranchNode)
	case *parse.WithNode:
		branches(&node.BranchNode)
	case *parse.ActionNode:
		if len(node.Pipe.Decl) == 0 {
			identifier := parse.NewIdentifier(escaped).SetTree(tree).SetPos(node.Pos)
			command := &parse.CommandNode{NodeType: parse.NodeCommand, Pos: node.Pos, Args: []parse.Node{identifier}}
			node.Pipe.Cmds = append(node.Pipe.Cmds, command)
		}
	}
}

// execute renders data and checks the result against Slack's limits.
func (t *Template) execute(data any, mention markup) (layout, error) {
	result := boundedBuffer{template: t.parsed.Name()}
	if t.maxTime > 0 {
		result.deadline = time.Now().Add(t.maxTime)
	}
	if err := t.parsed.Execute(&result, data); err != nil {
		return layout{}, withoutPrefix(err)
	}
	l, err := parseLayout(result.text.Bytes())
	if err != nil {
		return layout{}, err
	}
	return l, l.check(func(token string) bool { return t.allows(token, mention) })
}

var (
	httpLink = regexp.MustCompile(`^https?://[^|\s]+(\|[^|]*)?$`)
	dateForm = regexp.MustCompile(`^!date\^\d+\^[^|^]*\|[^|]*$`)
)

// allows reports whether markup comes from the operator or from the functions link, time and clock.
func (t *Template) allows(token string, mention markup) bool {
	whole := "<" + token + ">"
	return httpLink.MatchString(token) || dateForm.MatchString(token) ||
		strings.Contains(string(mention), whole) || strings.Contains(t.source, whole)
}

// boundedBuffer takes at most maxResult bytes of a template, until its deadline.
type boundedBuffer struct {
	text     bytes.Buffer
	template string
	deadline time.Time // zero: none
}

func (b *boundedBuffer) Write(p []byte) (int, error) {
	if b.text.Len()+len(p) > maxResult {
		return 0, fmt.Errorf("the result of %q is longer than %d bytes", b.template, maxResult)
	}
	if !b.deadline.IsZero() && time.Now().After(b.deadline) {
		return 0, fmt.Errorf("the execution of %q took longer than %v", b.template, maxTime)
	}
	return b.text.Write(p)
}
