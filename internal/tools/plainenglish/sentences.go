package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// A sentence of a comment or of a page.
type sentence struct {
	file string
	line int // where its comment or paragraph begins
	text string
}

// comments has the mark of comments in the source files that are measured.
var comments = map[string]string{".go": "//", ".lua": "--"}

// read returns the sentences of all files at and below the paths, without tests and without testdata.
func read(paths []string) ([]sentence, error) {
	var all []sentence
	for _, root := range paths {
		err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case entry.IsDir():
				if entry.Name() == "testdata" {
					return fs.SkipDir
				}
				return nil
			case file != root && !measured(file):
				return nil
			}
			content, err := os.ReadFile(file) //nolint:gosec // the caller names the files
			if err != nil {
				return err
			}
			all = append(all, parse(file, string(content))...)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

func measured(file string) bool {
	extension := filepath.Ext(file)
	return extension == ".md" || comments[extension] != "" && !strings.HasSuffix(file, "_test.go")
}

// parse splits a file into its comments or paragraphs, and these into sentences of at least three words.
func parse(file, content string) []sentence {
	parser := parser{file: file}
	if mark := comments[filepath.Ext(file)]; mark != "" {
		parser.source(content, mark)
	} else {
		parser.page(content)
	}
	return parser.sentences
}

// A parser collects the lines of a comment or of a paragraph until it ends.
type parser struct {
	file      string
	begun     int
	lines     []string
	sentences []sentence
}

func (p *parser) source(content, mark string) {
	trailing := regexp.MustCompile("[^:\"'`]" + regexp.QuoteMeta(mark) + `\s+(.*)$`)
	for i, line := range strings.Split(content, "\n") {
		stripped := strings.TrimSpace(line)
		if strings.HasPrefix(stripped, mark) && !directive(stripped) {
			p.add(i+1, strings.TrimSpace(strings.TrimPrefix(stripped, mark)))
			continue
		}
		p.end()
		if found := trailing.FindStringSubmatch(line); found != nil {
			p.add(i+1, found[1])
			p.end()
		}
	}
	p.end()
}

func directive(line string) bool {
	return strings.HasPrefix(line, "//go:") || strings.HasPrefix(line, "//nolint") || strings.HasPrefix(line, "--@")
}

// page reads the paragraphs of Markdown. Headings, tables, fenced blocks and pictures are no sentences.
func (p *parser) page(content string) {
	fenced := false
	for i, line := range strings.Split(content, "\n") {
		stripped := strings.TrimSpace(line)
		fence := strings.HasPrefix(stripped, "```")
		if fence {
			fenced = !fenced
		}
		if fence || fenced || regexp.MustCompile(`^(#|\||<!--|!\[)`).MatchString(stripped) {
			p.end()
			continue
		}
		p.add(i+1, strings.TrimLeft(stripped, "-*> 0123456789."))
	}
	p.end()
}

// add appends a line to the paragraph. An empty line ends it.
func (p *parser) add(number int, line string) {
	if line == "" {
		p.end()
		return
	}
	if p.begun == 0 {
		p.begun = number
	}
	p.lines = append(p.lines, line)
}

var (
	// code finds code, links and references, which count as one word.
	code = regexp.MustCompile("`[^`]*`|\\[([^\\]]*)\\]\\([^)]*\\)|\\[[^\\]]*\\]")
	stop = regexp.MustCompile(`[.!?]\s+[A-Z]`)
)

func (p *parser) end() {
	text := code.ReplaceAllStringFunc(strings.Join(p.lines, " "), func(found string) string {
		if label := code.FindStringSubmatch(found)[1]; label != "" {
			return label
		}
		return "X"
	})
	for text != "" {
		first, rest := text, ""
		if at := stop.FindStringIndex(text); at != nil {
			first, rest = text[:at[0]+1], text[at[1]-1:]
		}
		if len(strings.Fields(first)) >= 3 {
			p.sentences = append(p.sentences, sentence{file: p.file, line: p.begun, text: strings.TrimSpace(first)})
		}
		text = rest
	}
	p.begun, p.lines = 0, nil
}
