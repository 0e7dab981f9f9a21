package doctest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Block is a fenced block of a page.
type Block struct {
	Line     int    // number of the line that opens it
	Language string // the first word of its info string
	Text     string // ends with a line end

	NotRun string // why the commands do not run; for a text, what it is; empty if the block runs

	// The next two fields are for output blocks only.
	Eventually bool
	Status     int
}

const notRun = "not run: "

var languages = []string{"sh", "output", "env", "go", "python", "javascript", "json", "yaml", "text"}

// Blocks reads the fenced blocks of a page, in their order.
func Blocks(page string) ([]Block, error) {
	var blocks []Block
	var open *Block
	fence, indent := "", ""
	for number, line := range strings.Split(page, "\n") {
		text := strings.TrimLeft(line, " ")
		switch {
		case open == nil && strings.HasPrefix(text, "```"):
			fence, indent = text[:len(text)-len(strings.TrimLeft(text, "`"))], line[:len(line)-len(text)]
			block, err := parse(text[len(fence):])
			if err != nil {
				return nil, fmt.Errorf("line %d: %w", number+1, err)
			}
			block.Line = number + 1
			open = &block
		case open == nil:
		case strings.TrimRight(text, " ") == fence:
			if open.Language == "output" && (len(blocks) == 0 || !blocks[len(blocks)-1].prints()) {
				return nil, fmt.Errorf("line %d: there are no commands before this output", open.Line)
			}
			blocks = append(blocks, *open)
			open = nil
		default:
			open.Text += strings.TrimPrefix(line, indent) + "\n"
		}
	}
	if open != nil {
		return nil, fmt.Errorf("line %d: the block has no end", open.Line)
	}
	return blocks, nil
}

// prints reports whether an output block may follow: the commands or the program run.
func (b Block) prints() bool { return b.NotRun == "" && (b.Language == "sh" || b.Language == "go") }

func parse(info string) (Block, error) {
	language, option, _ := strings.Cut(strings.TrimSpace(info), " ")
	b := Block{Language: language}
	if !slices.Contains(languages, language) {
		return b, fmt.Errorf("unknown language %q, want one of %q", language, languages)
	}
	reason, excepted := strings.CutPrefix(option, notRun)
	status, hasStatus := strings.CutPrefix(option, "status ")
	switch {
	case excepted && reason != "" && language != "output":
		b.NotRun = reason
	case language == "text":
		return b, fmt.Errorf("a text needs %q and what it is", notRun)
	case option == "":
	case language == "output" && option == "eventually":
		b.Eventually = true
	case language == "output" && hasStatus:
		var err error
		if b.Status, err = strconv.Atoi(status); err != nil {
			return b, fmt.Errorf("status %q is not a number", status)
		}
	default:
		return b, fmt.Errorf("unknown option %q of %s", option, language)
	}
	return b, nil
}
